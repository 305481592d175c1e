// SPDX-License-Identifier: Apache-2.0
//! The stack machine that a pickle is a program for.

use super::{Id, Pickle, Value};

/// More values than any checkpoint's metadata has; each takes a few dozen bytes.
const MOST_VALUES: usize = 20_000_000;

/// Why a pickle cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PickleError {
    /// It ends before its last instruction.
    #[error("ends too early")]
    Short,
    /// It asks for what is not there, such as a value from an empty stack.
    #[error("makes no sense at byte {0}")]
    Senseless(usize),
    /// It holds an instruction that is not known.
    #[error("has the unknown instruction {code:#04x} at byte {at}")]
    Unknown {
        /// The instruction.
        code: u8,
        /// Where it is.
        at: usize,
    },
    /// It holds more values than are read.
    #[error("holds too many values")]
    TooLarge,
}

/// Reads a pickle. What is behind its end is not looked at.
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    loop {
        let code = machine.byte()?;
        if code == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle {
                values: machine.values,
                root,
            });
        }
        machine.run(code)?;
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl<'a> Machine<'a> {
    fn run(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' | b'1' | b'2' => self.shuffle(code),
            b'N' | 0x88 | 0x89 | b'I' | b'L' | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'F' | b'G' => {
                self.number(code)
            }
            b'S' | b'V' | b'T' | b'U' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => {
                self.text(code)
            }
            b']' | b')' | 0x8f => self.push(Value::Sequence(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b'a' | b'e' | 0x90 | b's' | b'u' => self.add(code),
            b'l' | b't' | 0x91 => {
                let all = self.since_mark()?;
                self.push(Value::Sequence(all))
            }
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(code - 0x84));
                let all = self.stack.split_off(from.ok_or(self.senseless())?);
                self.push(Value::Sequence(all))
            }
            b'd' => {
                let all = self.since_mark()?;
                self.push(Value::Dict(in_pairs(&all)))
            }
            b'c' | 0x93 | b'R' | 0x81 | 0x92 | b'i' | b'o' | b'b' => self.object(code),
            b'P' => {
                self.line()?;
                self.push(Value::Other)
            }
            b'Q' => {
                self.pop()?;
                self.push(Value::Other)
            }
            b'g' | b'h' | b'j' | b'p' | b'q' | b'r' | 0x94 => self.remember(code),
            _ => Err(PickleError::Unknown {
                code,
                at: self.at - 1,
            }),
        }
    }

    fn shuffle(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            b'0' => self.pop().map(drop),
            b'1' => self.since_mark().map(drop),
            _ => {
                let top = self.top()?;
                self.stack.push(top);
                Ok(())
            }
        }
    }

    fn number(&mut self, code: u8) -> Result<(), PickleError> {
        let value = match code {
            b'N' => Value::Other,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'I' | b'L' => match self.line()? {
                b"00" => Value::Bool(false),
                b"01" => Value::Bool(true),
                line => decimal(line).map_or(Value::Other, Value::Int),
            },
            b'J' => Value::Int(self.little(4)?.cast_signed() << 32 >> 32),
            b'K' => Value::Int(self.little(1)?.cast_signed()),
            b'M' => Value::Int(self.little(2)?.cast_signed()),
            0x8a | 0x8b => {
                let length = self.little(if code == 0x8a { 1 } else { 4 })?;
                let bytes = self.take(length)?;
                long(bytes).map_or(Value::Other, Value::Int)
            }
            b'F' => {
                self.line()?;
                Value::Other
            }
            _ => {
                self.take(8)?;
                Value::Other
            }
        };
        self.push(value)
    }

    fn text(&mut self, code: u8) -> Result<(), PickleError> {
        let bytes = match code {
            b'S' | b'V' => self.line()?,
            _ => {
                let width = match code {
                    b'U' | 0x8c | b'C' => 1,
                    b'T' | b'X' | b'B' => 4,
                    _ => 8,
                };
                let length = self.little(width)?;
                self.take(length)?
            }
        };
        let is_text = !matches!(code, b'B' | b'C' | 0x8e | 0x96);
        let value = match std::str::from_utf8(bytes) {
            Ok(text) if is_text && code == b'S' => {
                Value::Text(text.trim_matches(['\'', '"']).to_owned())
            }
            Ok(text) if is_text => Value::Text(text.to_owned()),
            _ => Value::Other,
        };
        self.push(value)
    }

    fn add(&mut self, code: u8) -> Result<(), PickleError> {
        let new = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.since_mark()?,
        };
        let target = self.top()?;
        match self.values.get_mut(target.0 as usize) {
            Some(Value::Sequence(all)) => all.extend(new),
            Some(Value::Dict(pairs) | Value::Object { items: pairs, .. })
                if matches!(code, b's' | b'u') =>
            {
                pairs.extend(in_pairs(&new));
            }
            _ => {}
        }
        Ok(())
    }

    fn object(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            b'c' => {
                self.line()?;
                self.line()?;
                self.push(Value::Global)
            }
            0x93 => {
                self.pop()?;
                self.pop()?;
                self.push(Value::Global)
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                if let Some(Value::Object { state: held, .. }) =
                    self.values.get_mut(target.0 as usize)
                {
                    *held = Some(state);
                }
                Ok(())
            }
            b'i' => {
                self.line()?;
                self.line()?;
                self.since_mark()?;
                self.push(Value::Other)
            }
            b'o' => {
                self.since_mark()?;
                self.push(Value::Other)
            }
            _ => {
                if code == 0x92 {
                    self.pop()?;
                }
                self.pop()?;
                self.pop()?;
                self.push(Value::Object {
                    state: None,
                    items: Vec::new(),
                })
            }
        }
    }

    fn remember(&mut self, code: u8) -> Result<(), PickleError> {
        let place = match code {
            b'g' | b'p' => decimal(self.line()?).and_then(|number| u64::try_from(number).ok()),
            b'h' | b'q' => Some(self.little(1)?),
            b'j' | b'r' => Some(self.little(4)?),
            _ => Some(self.memo.len() as u64),
        };
        let place = place.and_then(|place| usize::try_from(place).ok());
        let place = place.ok_or(self.senseless())?;
        if matches!(code, b'g' | b'h' | b'j') {
            let known = self.memo.get(place).copied().flatten();
            self.stack.push(known.ok_or(self.senseless())?);
            return Ok(());
        }
        // Places are given out one after the other: a far one would only cost memory.
        if place > self.values.len().saturating_add(self.memo.len()) {
            return Err(self.senseless());
        }
        let top = self.top()?;
        if place >= self.memo.len() {
            self.memo.resize(place + 1, None);
        }
        if let Some(held) = self.memo.get_mut(place) {
            *held = Some(top);
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= MOST_VALUES {
            return Err(PickleError::TooLarge);
        }
        let id = u32::try_from(self.values.len()).map_err(|_| PickleError::TooLarge)?;
        self.values.push(value);
        self.stack.push(Id(id));
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        self.stack.pop().ok_or(self.senseless())
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack.last().copied().ok_or(self.senseless())
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or(self.senseless())?;
        if mark > self.stack.len() {
            return Err(self.senseless());
        }
        Ok(self.stack.split_off(mark))
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        let byte = self.bytes.get(self.at).ok_or(PickleError::Short)?;
        self.at += 1;
        Ok(*byte)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], PickleError> {
        let length = usize::try_from(length).map_err(|_| PickleError::Short)?;
        let end = self.at.checked_add(length).ok_or(PickleError::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(PickleError::Short)?;
        self.at = end;
        Ok(taken)
    }

    /// An unsigned number of `width` bytes, at most 8.
    fn little(&mut self, width: u64) -> Result<u64, PickleError> {
        let bytes = self.take(width)?;
        let number = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Ok(bytes.iter().rev().fold(0, number))
    }

    fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = self.bytes.get(self.at..).ok_or(PickleError::Short)?;
        let length = rest.iter().position(|&byte| byte == b'\n');
        let length = length.ok_or(PickleError::Short)?;
        self.at += length + 1;
        rest.get(..length).ok_or(PickleError::Short)
    }

    fn senseless(&self) -> PickleError {
        PickleError::Senseless(self.at)
    }
}

fn in_pairs(all: &[Id]) -> Vec<(Id, Id)> {
    let pairs = all.chunks_exact(2);
    pairs
        .filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)))
        .collect()
}

fn decimal(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line)
        .ok()?
        .trim_end_matches('L')
        .parse()
        .ok()
}

/// A signed number in two's complement, least byte first.
fn long(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 8 {
        return None;
    }
    let negative = bytes.last().is_some_and(|&last| last & 0x80 != 0);
    let mut whole = [if negative { 0xff } else { 0 }; 8];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(whole))
}
