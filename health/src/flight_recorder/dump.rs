// SPDX-License-Identifier: Apache-2.0
//! What a rank has recorded.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::pickle::{self, PickleError};
use super::value::{Arena, Id, Value};

/// A dump is no larger: two thousand operations with their stacks take a few megabytes.
const LARGEST: u64 = 64 * 1024 * 1024;
/// Frames of an operation that are kept.
const FRAMES: usize = 32;

/// What one rank has recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Dump {
    /// The rank, by the end of the file's name.
    pub rank: u32,
    /// Version of the form, such as `2.10`.
    pub version: String,
    /// The process groups that it knows, by name.
    pub groups: BTreeMap<String, Group>,
    /// The last operations of each group, by the group's number.
    pub last: BTreeMap<i64, LastOperations>,
    /// The operations that are still in its memory, oldest first.
    pub entries: Vec<Entry>,
}

/// A process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What the program calls it.
    pub description: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
}

/// How far a group is; -1 for not at all, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastOperations {
    /// The last that the program has asked for.
    pub enqueued: i64,
    /// The last that has begun.
    pub started: i64,
    /// The last that is done.
    pub completed: i64,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Counts the operations of the process.
    pub record: i64,
    /// The group's number.
    pub group_id: i64,
    /// Its name and what the program calls it.
    pub group: (String, String),
    /// Counts the collective operations of the group.
    pub sequence: i64,
    /// What it is, such as `nccl:all_reduce`.
    pub name: String,
    /// `scheduled`, `started` or `completed`.
    pub state: String,
    /// Whether the recorder has seen the end of it.
    pub retired: bool,
    /// Whether it is between two ranks only.
    pub is_p2p: bool,
    /// Shapes that go in and come out, as text.
    pub sizes: (String, String),
    /// Types that go in and come out, as text.
    pub types: (String, String),
    /// Where the program asked for it, innermost first.
    pub frames: Vec<String>,
}

/// Why a file is no dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[source] std::io::Error),
    /// It is larger than any dump.
    #[error("it is larger than any flight-recorder dump")]
    TooLarge,
    /// It is no pickle of plain data.
    #[error("it is no flight-recorder dump: {0}")]
    Pickle(PickleError),
    /// It is no JSON.
    #[error("it is no flight-recorder dump: {0}")]
    Json(serde_json::Error),
    /// It is something else.
    #[error("it is no flight-recorder dump: it has no version")]
    Other,
    /// It is not known whose it is.
    #[error("its name does not end in the number of a rank")]
    NoRank,
}

impl Dump {
    /// Reads a dump from a file, whose name ends in the rank (before `.json`).
    ///
    /// # Errors
    ///
    /// [`DumpError`].
    pub fn read(path: &Path) -> Result<Dump, DumpError> {
        let rank = rank_of(path).ok_or(DumpError::NoRank)?;
        let file = std::fs::File::open(path).map_err(DumpError::Io)?;
        let mut bytes = Vec::new();
        file.take(LARGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(DumpError::Io)?;
        if bytes.len() as u64 > LARGEST {
            return Err(DumpError::TooLarge);
        }
        Dump::parse(rank, &bytes)
    }

    /// Reads a dump, a pickle or JSON.
    ///
    /// # Errors
    ///
    /// [`DumpError`].
    pub fn parse(rank: u32, bytes: &[u8]) -> Result<Dump, DumpError> {
        let (arena, top) = if bytes.trim_ascii_start().first() == Some(&b'{') {
            let json = serde_json::from_slice(bytes).map_err(DumpError::Json)?;
            let mut arena = Arena::default();
            let top = arena.add_json(&json);
            (arena, top)
        } else {
            pickle::decode(bytes).map_err(DumpError::Pickle)?
        };
        Reader { arena: &arena }
            .dump(rank, top)
            .ok_or(DumpError::Other)
    }
}

/// The number at the end of a file's name.
pub(super) fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".json").unwrap_or(name);
    let name = name.strip_suffix(".pickle").unwrap_or(name);
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok()
}

struct Reader<'a> {
    arena: &'a Arena,
}

impl Reader<'_> {
    fn dump(&self, rank: u32, top: Id) -> Option<Dump> {
        let version = self.text(top, "version");
        if version.is_empty() {
            return None;
        }
        let section = |key| self.arena.field(top, key);
        let pairs = |key| section(key).map_or(&[][..], |id| self.arena.pairs(id));
        let groups = pairs("pg_config").iter().map(|&(name, group)| {
            let name = self.arena.text(name).unwrap_or_default().to_owned();
            let ranks = self.text(group, "ranks");
            let group = Group {
                description: self.text(group, "desc"),
                ranks: numbers(&ranks),
            };
            (name, group)
        });
        let last = pairs("pg_status").iter().filter_map(|&(id, status)| {
            let number = |key| self.number(status, key).unwrap_or(-1);
            let last = LastOperations {
                enqueued: number("last_enqueued_collective"),
                started: number("last_started_collective"),
                completed: number("last_completed_collective"),
            };
            Some((self.arena.number(id)?, last))
        });
        let entries = section("entries").map_or(&[][..], |id| self.arena.items(id));
        Some(Dump {
            rank,
            version,
            groups: groups.collect(),
            last: last.collect(),
            entries: entries.iter().map(|&entry| self.entry(entry)).collect(),
        })
    }

    fn entry(&self, id: Id) -> Entry {
        let is = |key| {
            self.arena
                .field(id, key)
                .is_some_and(|field| self.arena.is_true(field))
        };
        let number = |key| self.number(id, key).unwrap_or(-1);
        let group = self.arena.field(id, "process_group");
        let group = group.map_or(&[][..], |group| self.arena.items(group));
        let part = |index: usize| {
            let id = group.get(index);
            id.and_then(|&id| self.arena.text(id))
                .unwrap_or_default()
                .to_owned()
        };
        let shown = |key| {
            let mut text = String::new();
            if let Some(field) = self.arena.field(id, key) {
                self.show(field, 3, &mut text);
            }
            text
        };
        let frames = self.arena.field(id, "frames");
        let frames = frames.map_or(&[][..], |frames| self.arena.items(frames));
        Entry {
            record: number("record_id"),
            group_id: number("pg_id"),
            group: (part(0), part(1)),
            sequence: number("collective_seq_id"),
            name: self.text(id, "profiling_name"),
            state: self.text(id, "state"),
            retired: is("retired"),
            is_p2p: is("is_p2p"),
            sizes: (shown("input_sizes"), shown("output_sizes")),
            types: (shown("input_dtypes"), shown("output_dtypes")),
            frames: frames
                .iter()
                .take(FRAMES)
                .map(|&frame| {
                    format!(
                        "{} ({}:{})",
                        self.text(frame, "name"),
                        self.text(frame, "filename"),
                        self.number(frame, "line").unwrap_or(0)
                    )
                })
                .collect(),
        }
    }

    fn text(&self, dict: Id, key: &str) -> String {
        let id = self.arena.field(dict, key);
        id.and_then(|id| self.arena.text(id))
            .unwrap_or_default()
            .to_owned()
    }

    fn number(&self, dict: Id, key: &str) -> Option<i64> {
        self.arena.number(self.arena.field(dict, key)?)
    }

    /// Shapes and types as text; deeper than they are nested, or longer than they can be, nothing is shown.
    fn show(&self, id: Id, depth: u32, text: &mut String) {
        const LONGEST: usize = 4096;
        match self.arena.get(id) {
            Some(Value::Int(number)) => text.push_str(&number.to_string()),
            Some(Value::Text(word)) => text.extend(word.chars().take(64)),
            Some(Value::Sequence(items)) if depth > 0 => {
                text.push('[');
                for (index, &item) in items.iter().enumerate() {
                    if text.len() > LONGEST {
                        text.push_str("...");
                        break;
                    }
                    if index > 0 {
                        text.push_str(", ");
                    }
                    self.show(item, depth - 1, text);
                }
                text.push(']');
            }
            _ => {}
        }
    }
}

/// Ranks are written as text: `[0, 1]`.
fn numbers(text: &str) -> Vec<u32> {
    let words = text.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}
