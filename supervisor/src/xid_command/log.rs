// SPDX-License-Identifier: Apache-2.0
//! Reads a kernel log and tells what is in it: as events in JSON, or as incidents in text.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use serde_json::{Map, Value};
use steadfast_health::kernel_log::{Event, KernelLog, Stamp};
use steadfast_health::xid::{Assessment, Driver, Grouping, Judge, assess, rank_in_incident};

use super::lines::Lines;
use super::report::Incident;
use super::{CommandError, written};

/// A log that is being read.
pub(super) struct Log {
    driver: Option<Driver>,
    judge: Judge,
    json: bool,
    reader: KernelLog,
    grouping: Grouping,
    /// When the last line was logged that said so.
    now: Duration,
    /// How many lines there were, and incidents; only for text.
    lines: u64,
    told: u64,
    /// Incidents that may still grow; only for text.
    open: BTreeMap<u64, Incident>,
}

impl Log {
    pub(super) fn new(driver: Option<Driver>, judge: Judge, json: bool) -> Self {
        Self {
            driver,
            judge,
            json,
            reader: KernelLog::new(),
            grouping: Grouping::new(),
            now: Duration::ZERO,
            lines: 0,
            told: 0,
            open: BTreeMap::new(),
        }
    }

    /// Reads to the end. `silent` waits for more input, and says whether none came for so long that what has happened
    /// must be told.
    pub(super) fn read(
        &mut self,
        mut input: impl BufRead,
        mut silent: impl FnMut() -> bool,
        output: &mut impl Write,
    ) -> Result<(), CommandError> {
        let mut lines = Lines::default();
        let mut answer = Vec::new();
        loop {
            if !self.open.is_empty() && silent() {
                let closed = self.grouping.close_all();
                self.tell(&closed, &mut answer);
            } else {
                let bytes = match input.fill_buf() {
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(CommandError::Read(error)),
                };
                if bytes.is_empty() {
                    lines.finish(|line| self.line(line, &mut answer));
                    let closed = self.grouping.close_all();
                    self.tell(&closed, &mut answer);
                    if !self.json && self.told == 0 {
                        let nothing = format!("no incident in {} lines\n", self.lines);
                        answer.extend_from_slice(nothing.as_bytes());
                    }
                    return written(output.write_all(&answer));
                }
                let length = bytes.len();
                lines.push(bytes, |line| self.line(line, &mut answer));
                input.consume(length);
            }
            if !answer.is_empty() {
                let result = output.write_all(&answer).and_then(|()| output.flush());
                if result.as_ref().is_err_and(is_broken_pipe) {
                    return Ok(());
                }
                written(result)?;
                answer.clear();
            }
        }
    }

    fn line(&mut self, line: &[u8], answer: &mut Vec<u8>) {
        self.lines += 1;
        let Some(event) = self.reader.push(line) else {
            return;
        };
        match event.header.stamp {
            Some(Stamp::SinceBoot(time) | Stamp::Wall(time)) => self.now = time,
            None => {}
        }
        let mut found = assess(&event, self.driver);
        found.action = self.judge.judge(self.now, &event, found.action);
        let placed = self.grouping.place(&event);
        if self.json {
            let object = object(&event, &found, placed.incident);
            answer.extend_from_slice(object.to_string().as_bytes());
            answer.push(b'\n');
            return;
        }
        self.tell(&placed.closed, answer);
        if let Some(id) = placed.incident {
            self.open.entry(id).or_default().add(event, found);
        }
    }

    fn tell(&mut self, closed: &[u64], answer: &mut Vec<u8>) {
        for id in closed {
            if let Some(incident) = self.open.remove(id) {
                self.told += 1;
                answer.extend_from_slice(incident.render(*id).as_bytes());
            }
        }
    }
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

fn object(event: &Event, found: &Assessment, incident: Option<u64>) -> Value {
    let mut object: Map<String, Value> = event
        .fields()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    if let Some(name) = found.name {
        set("code_name", name.into());
    }
    set("rating", found.severity.name().into());
    set("cause", found.cause.name().into());
    set("action", found.action.name().into());
    set("meaning", found.meaning.into());
    set("message", event.message.as_str().into());
    if let Some(incident) = incident {
        set("incident", incident.into());
        set("rank", rank_in_incident(event).into());
    }
    object
        .entry("severity")
        .or_insert_with(|| found.severity.name().into());
    Value::Object(object)
}
