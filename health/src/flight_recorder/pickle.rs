// SPDX-License-Identifier: Apache-2.0
//! A decoder for pickles of plain data: numbers, texts, lists, tuples and dictionaries.
//!
//! What a pickle can do beyond that (name a class, call it, set its state) is not known here and ends the reading. Opcodes
//! as in Python's `pickletools`.

use super::value::{Arena, Id, Value};

/// More memorised values than any recorder writes.
const MOST_MEMORISED: usize = 4_000_000;

/// Why a pickle is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// It ends too early: it may still be being written.
    #[error("it is cut off")]
    Cut,
    /// It holds something other than plain data.
    #[error("it holds something other than plain data (opcode {opcode:#04x} at byte {at})")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// Where.
        at: usize,
    },
    /// It makes no sense.
    #[error("it is damaged ({what} at byte {at})")]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: usize,
    },
}

/// On the stack is a value, or a mark.
#[derive(Clone, Copy)]
enum Item {
    Value(Id),
    Mark,
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    arena: Arena,
    stack: Vec<Item>,
    memory: Vec<Option<Id>>,
}

/// Reads a pickle. Returns all values and which one it stands for.
pub(super) fn decode(bytes: &[u8]) -> Result<(Arena, Id), PickleError> {
    let mut decoder = Decoder {
        bytes,
        at: 0,
        arena: Arena::default(),
        stack: Vec::new(),
        memory: Vec::new(),
    };
    loop {
        let at = decoder.at;
        let opcode = decoder.take::<1>()?[0];
        if opcode == b'.' {
            let value = decoder.pop()?;
            return Ok((decoder.arena, value));
        }
        decoder.carry_out(opcode, at)?;
    }
}

impl Decoder<'_> {
    fn carry_out(&mut self, opcode: u8, at: usize) -> Result<(), PickleError> {
        match opcode {
            // PROTO, FRAME: nothing to do.
            0x80 => {
                self.take::<1>()?;
            }
            0x95 => {
                self.take::<8>()?;
            }
            b'(' => self.stack.push(Item::Mark),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | 0x8a | b'G' => self.number(opcode)?,
            b'X' | 0x8c => self.text(opcode)?,
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' | b')' => self.push(Value::Sequence(Vec::new())),
            0x85..=0x87 => self.short_tuple(usize::from(opcode - 0x84))?,
            b't' => {
                let items = self.above_mark()?;
                self.push(Value::Sequence(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(vec![item])?;
            }
            b'e' => {
                let items = self.above_mark()?;
                self.extend_list(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend_dict(&[key, value])?;
            }
            b'u' => {
                let items = self.above_mark()?;
                self.extend_dict(&items)?;
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memory(opcode)?,
            opcode => return Err(PickleError::Opcode { opcode, at }),
        }
        Ok(())
    }

    fn take<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], PickleError> {
        let (part, _) = self.bytes[self.at..]
            .split_first_chunk::<LENGTH>()
            .ok_or(PickleError::Cut)?;
        self.at += LENGTH;
        Ok(*part)
    }

    fn slice(&mut self, length: usize) -> Result<&[u8], PickleError> {
        let rest = &self.bytes[self.at..];
        let part = rest.get(..length).ok_or(PickleError::Cut)?;
        self.at += length;
        Ok(part)
    }

    fn damaged(&self, what: &'static str) -> PickleError {
        PickleError::Damaged { what, at: self.at }
    }

    fn push(&mut self, value: Value) {
        let id = self.arena.add(value);
        self.stack.push(Item::Value(id));
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        match self.stack.pop() {
            Some(Item::Value(id)) => Ok(id),
            Some(Item::Mark) | None => Err(self.damaged("a value is missing")),
        }
    }

    fn above_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mut items = Vec::new();
        loop {
            match self.stack.pop() {
                Some(Item::Value(id)) => items.push(id),
                Some(Item::Mark) => break,
                None => return Err(self.damaged("a mark is missing")),
            }
        }
        items.reverse();
        Ok(items)
    }

    fn top(&self) -> Result<Id, PickleError> {
        match self.stack.last() {
            Some(Item::Value(id)) => Ok(*id),
            Some(Item::Mark) | None => Err(self.damaged("a value is missing")),
        }
    }

    fn number(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b'J' => Value::Int(i32::from_le_bytes(self.take()?).into()),
            b'K' => Value::Int(u8::from_le_bytes(self.take()?).into()),
            b'M' => Value::Int(u16::from_le_bytes(self.take()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.take()?)),
            _ => {
                let length = usize::from(self.take::<1>()?[0]);
                let bytes = self.slice(length)?;
                let Some(number) = little_endian(bytes) else {
                    return Err(self.damaged("a number is too large"));
                };
                Value::Int(number)
            }
        };
        self.push(value);
        Ok(())
    }

    fn text(&mut self, opcode: u8) -> Result<(), PickleError> {
        let length = match opcode {
            0x8c => usize::from(self.take::<1>()?[0]),
            _ => usize::try_from(u32::from_le_bytes(self.take()?)).unwrap_or(usize::MAX),
        };
        let text = String::from_utf8_lossy(self.slice(length)?).into_owned();
        self.push(Value::Text(text));
        Ok(())
    }

    fn short_tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Sequence(items));
        Ok(())
    }

    fn extend_list(&mut self, items: Vec<Id>) -> Result<(), PickleError> {
        let list = self.top()?;
        match self.arena.get_mut(list) {
            Some(Value::Sequence(list)) => {
                list.extend(items);
                Ok(())
            }
            _ => Err(self.damaged("something is appended to what is no list")),
        }
    }

    fn extend_dict(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let dict = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match self.arena.get_mut(dict) {
            Some(Value::Dict(dict)) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            _ => Err(self.damaged("something is set in what is no dictionary")),
        }
    }

    fn memory(&mut self, opcode: u8) -> Result<(), PickleError> {
        let index = match opcode {
            b'q' | b'h' => usize::from(self.take::<1>()?[0]),
            b'r' | b'j' => usize::try_from(u32::from_le_bytes(self.take()?)).unwrap_or(usize::MAX),
            _ => self.memory.len(),
        };
        if matches!(opcode, b'h' | b'j') {
            let known = self.memory.get(index).copied().flatten();
            let id = known.ok_or_else(|| self.damaged("a memorised value is missing"))?;
            self.stack.push(Item::Value(id));
            return Ok(());
        }
        // Python's own writer numbers them one by one.
        if index > self.memory.len() || index >= MOST_MEMORISED {
            return Err(self.damaged("a memorised value has a strange number"));
        }
        let id = self.top()?;
        if index == self.memory.len() {
            self.memory.push(Some(id));
        } else {
            self.memory[index] = Some(id);
        }
        Ok(())
    }
}

/// A number of up to eight bytes in two's complement.
fn little_endian(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 8 {
        return None;
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut whole = if negative { [0xff; 8] } else { [0; 8] };
    whole[..bytes.len()].copy_from_slice(bytes);
    Some(i64::from_le_bytes(whole))
}
