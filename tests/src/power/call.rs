// SPDX-License-Identifier: Apache-2.0
//! Lines of `strace -f -y -ttt -v`, as far as they change files.

use std::collections::BTreeMap;

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which thread did it.
    pub thread: u32,
    /// When, in nanoseconds since 1970.
    pub time_ns: i64,
    /// What.
    pub action: Action,
}

/// What can be done to files, by absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A file is opened for writing: made if it is not there.
    Open {
        /// Which one.
        path: String,
        /// Whether it is emptied.
        empty: bool,
    },
    /// Bytes are written.
    Write {
        /// To which file.
        path: String,
        /// Where in it; `None`: behind what was written before.
        at: Option<u64>,
        /// What.
        bytes: Vec<u8>,
    },
    /// A file gets a length.
    SetLength {
        /// Which one.
        path: String,
        /// In bytes.
        length: u64,
    },
    /// Flushing begins: what comes later is not covered.
    FlushBegins {
        /// What is flushed.
        path: String,
    },
    /// The flushing that this thread has begun has ended well.
    FlushEnds,
    /// Something gets another name.
    Rename {
        /// The name that it had.
        from: String,
        /// The name that it gets.
        to: String,
    },
    /// Something gets a second name.
    Link {
        /// The name that it has.
        from: String,
        /// The name that it gets.
        to: String,
    },
    /// A name is taken away.
    Remove {
        /// Which one.
        path: String,
    },
    /// A directory is made.
    MakeDirectory {
        /// Which one.
        path: String,
    },
    /// Somebody sees when a file was changed.
    SeeTime {
        /// Which one.
        path: String,
        /// In nanoseconds since 1970.
        modified_ns: i64,
    },
}

/// Everything that was done with success.
pub(super) fn steps(log: &str) -> Vec<Step> {
    let mut begun: BTreeMap<u32, String> = BTreeMap::new();
    let mut steps = Vec::new();
    for line in log.lines() {
        let Some((thread, time_ns, rest)) = head(line) else {
            continue;
        };
        let mut note = |action| {
            steps.push(Step {
                thread,
                time_ns,
                action,
            });
        };
        if let Some(beginning) = rest.strip_suffix(" <unfinished ...>") {
            if let Some(path) = flushed(beginning) {
                note(Action::FlushBegins { path });
            }
            begun.insert(thread, beginning.to_owned());
        } else if rest.starts_with("<... ") {
            let end = rest.split_once(" resumed>").map_or("", |(_, end)| end);
            let beginning = begun.remove(&thread).unwrap_or_default();
            if let Some(action) =
                Call::parse(&format!("{beginning}{end}")).and_then(|call| call.action())
            {
                note(action);
            }
        } else if let Some(call) = Call::parse(rest) {
            if let Some(path) = flushed(rest) {
                note(Action::FlushBegins { path });
            }
            if let Some(action) = call.action() {
                note(action);
            }
        }
    }
    steps
}

/// `PID SECONDS.MICROS REST`.
fn head(line: &str) -> Option<(u32, i64, &str)> {
    let (thread, line) = line.split_once(' ')?;
    let (time, rest) = line.trim_start().split_once(' ')?;
    let micros: i64 = time.replace('.', "").parse().ok()?;
    Some((thread.parse().ok()?, micros * 1000, rest))
}

/// What is flushed by the call that begins like this.
fn flushed(text: &str) -> Option<String> {
    let arguments = text
        .strip_prefix("fsync(")
        .or_else(|| text.strip_prefix("fdatasync("))?;
    of_descriptor(arguments)
}

/// A system call that has ended well.
#[derive(Debug)]
struct Call<'a> {
    name: &'a str,
    arguments: Vec<&'a str>,
    result: &'a str,
}

impl<'a> Call<'a> {
    fn parse(text: &'a str) -> Option<Call<'a>> {
        let (name, rest) = text.split_once('(')?;
        let (arguments, behind) = arguments(rest);
        let result = behind.trim_start().strip_prefix("= ")?;
        (!result.starts_with(['-', '?'])).then_some(Call {
            name,
            arguments,
            result,
        })
    }

    fn action(&self) -> Option<Action> {
        match self.name {
            "openat" | "creat" => self.open(),
            "write" | "writev" | "pwrite64" => self.write(),
            "ftruncate" => Some(Action::SetLength {
                path: self.descriptor(0)?,
                length: self.arguments.get(1)?.parse().ok()?,
            }),
            "fsync" | "fdatasync" => Some(Action::FlushEnds),
            "rename" => self.pair(0, 1, |from, to| Action::Rename { from, to }),
            "renameat" | "renameat2" => {
                let (from, to) = (self.at(0)?, self.at(2)?);
                Some(Action::Rename { from, to })
            }
            "link" => self.pair(0, 1, |from, to| Action::Link { from, to }),
            "linkat" => {
                let (from, to) = (self.at(0)?, self.at(2)?);
                Some(Action::Link { from, to })
            }
            "unlink" | "rmdir" => Some(Action::Remove {
                path: self.path(0)?,
            }),
            "unlinkat" => Some(Action::Remove { path: self.at(0)? }),
            "mkdir" => Some(Action::MakeDirectory {
                path: self.path(0)?,
            }),
            "mkdirat" => Some(Action::MakeDirectory { path: self.at(0)? }),
            "statx" | "newfstatat" | "fstat" | "stat" => self.see_time(),
            _ => None,
        }
    }

    fn open(&self) -> Option<Action> {
        let (path, flags) = match self.name {
            "creat" => (self.path(0)?, "O_WRONLY|O_TRUNC"),
            _ => (self.at(0)?, *self.arguments.get(2)?),
        };
        let writes = flags.contains("O_WRONLY") || flags.contains("O_RDWR");
        let empty = flags.contains("O_TRUNC");
        writes.then_some(Action::Open { path, empty })
    }

    fn write(&self) -> Option<Action> {
        let mut bytes: Vec<u8> = strings(self.arguments.get(1)?);
        bytes.truncate(self.result.split(' ').next()?.parse().ok()?);
        let at = match self.name {
            "pwrite64" => Some(self.arguments.get(3)?.parse().ok()?),
            _ => None,
        };
        let path = self.descriptor(0)?;
        Some(Action::Write { path, at, bytes })
    }

    fn see_time(&self) -> Option<Action> {
        let path = match self.name {
            "fstat" => self.descriptor(0)?,
            "stat" => self.path(0)?,
            _ => {
                let name = unescape(self.arguments.get(1)?);
                if name.is_empty() {
                    self.descriptor(0)?
                } else {
                    self.at(0)?
                }
            }
        };
        let buffer = self
            .arguments
            .iter()
            .find(|argument| argument.starts_with('{'))?;
        // statx has a pair, the older calls have two fields.
        let number = |name: &str| -> Option<i64> {
            let (_, behind) = buffer.split_once(name)?;
            let end = behind.find(|letter: char| !letter.is_ascii_digit())?;
            behind[..end].parse().ok()
        };
        let (seconds, nanoseconds) = match buffer.split_once("stx_mtime={") {
            Some((_, time)) => {
                let field = |name: &str| -> Option<i64> {
                    let behind = time.split_once(name)?.1;
                    behind.split([',', '}']).next()?.parse().ok()
                };
                (field("tv_sec=")?, field("tv_nsec=")?)
            }
            None => (number("st_mtime=")?, number("st_mtime_nsec=")?),
        };
        let modified_ns = seconds * 1_000_000_000 + nanoseconds;
        Some(Action::SeeTime { path, modified_ns })
    }

    fn pair(&self, from: usize, to: usize, action: fn(String, String) -> Action) -> Option<Action> {
        Some(action(self.path(from)?, self.path(to)?))
    }

    /// The path that is the argument `index` by itself; only absolute ones are known.
    fn path(&self, index: usize) -> Option<String> {
        let path = unescape(self.arguments.get(index)?);
        path.starts_with('/').then_some(path)
    }

    /// The path that the arguments `index` (a directory) and the next (a path in it) name.
    fn at(&self, index: usize) -> Option<String> {
        let path = unescape(self.arguments.get(index + 1)?);
        if path.starts_with('/') {
            return Some(path);
        }
        let directory = self.descriptor(index)?;
        Some(format!("{directory}/{path}"))
    }

    fn descriptor(&self, index: usize) -> Option<String> {
        of_descriptor(self.arguments.get(index)?)
    }
}

/// `5</path>`, or `AT_FDCWD</path>`.
fn of_descriptor(argument: &str) -> Option<String> {
    let (_, path) = argument.split_once('<')?;
    let (path, _) = path.rsplit_once('>')?;
    Some(path.to_owned())
}

/// Splits the arguments of a call, and what comes behind the bracket at their end.
fn arguments(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut quoted, mut escaped, mut begin) = (0_u32, false, false, 0);
    let mut found = Vec::new();
    for (at, letter) in text.char_indices() {
        if quoted {
            quoted = escaped || letter != '"';
            escaped = letter == '\\' && !escaped;
            continue;
        }
        match letter {
            '"' => quoted = true,
            '{' | '[' | '(' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ')' if depth > 0 => depth -= 1,
            ')' => {
                found.push(text[begin..at].trim());
                return (found, &text[at + 1..]);
            }
            ',' if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    (found, "")
}

/// All strings in an argument, one behind the other.
fn strings(argument: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = argument.bytes().peekable();
    let mut quoted = false;
    while let Some(letter) = letters.next() {
        match letter {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                let next = letters.next().unwrap_or(b'\\');
                let plain = match next {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    b'0'..=b'7' => {
                        let mut value = u32::from(next - b'0');
                        for _ in 0..2 {
                            let Some(digit) = letters.next_if(|byte| (b'0'..=b'7').contains(byte))
                            else {
                                break;
                            };
                            value = value * 8 + u32::from(digit - b'0');
                        }
                        u8::try_from(value).unwrap()
                    }
                    other => other,
                };
                bytes.push(plain);
            }
            _ if quoted => bytes.push(letter),
            _ => {}
        }
    }
    bytes
}

fn unescape(argument: &str) -> String {
    String::from_utf8_lossy(&strings(argument)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(log: &str) -> Vec<Action> {
        steps(log).into_iter().map(|step| step.action).collect()
    }

    #[test]
    fn calls_are_read_with_what_was_written_and_where() {
        let log = r#"
7 1764561600.000001 openat(AT_FDCWD</w>, "a.tmp", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</w/a.tmp>
7 1764561600.000002 write(3</w/a.tmp>, "\0\1ab\"\\\n\1777", 9) = 8
7 1764561600.000003 renameat2(AT_FDCWD</w>, "a.tmp", AT_FDCWD</w>, "a, b", 0) = 0
7 1764561600.000004 unlink("/w/none") = -1 ENOENT (No such file or directory)
7 1764561600.000005 unlinkat(4</w/old>, "x", AT_REMOVEDIR) = 0
7 1764561600.000006 statx(AT_FDCWD</w>, "/w/a", 0, STATX_ALL, {stx_mask=STATX_ALL, stx_mtime={tv_sec=5, tv_nsec=7}}) = 0
"#;
        let expected = [
            Action::Open {
                path: "/w/a.tmp".to_owned(),
                empty: true,
            },
            Action::Write {
                path: "/w/a.tmp".to_owned(),
                at: None,
                bytes: b"\0\x01ab\"\\\n\x7f".to_vec(),
            },
            Action::Rename {
                from: "/w/a.tmp".to_owned(),
                to: "/w/a, b".to_owned(),
            },
            Action::Remove {
                path: "/w/old/x".to_owned(),
            },
            Action::SeeTime {
                path: "/w/a".to_owned(),
                modified_ns: 5_000_000_007,
            },
        ];
        assert_eq!(actions(log), expected);
    }

    #[test]
    fn a_call_counts_when_it_ends_and_what_is_flushed_when_it_begins() {
        let log = r#"
7 1764561600.000001 fsync(3</w/a> <unfinished ...>
8 1764561600.000002 write(4</w/a>, "x", 1 <unfinished ...>
7 1764561600.000003 <... fsync resumed>) = 0
8 1764561600.000004 <... write resumed>) = 1
"#;
        let path = || "/w/a".to_owned();
        let expected = [
            Action::FlushBegins { path: path() },
            Action::FlushEnds,
            Action::Write {
                path: path(),
                at: None,
                bytes: b"x".to_vec(),
            },
        ];
        assert_eq!(actions(log), expected);
    }
}
