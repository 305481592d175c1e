// SPDX-License-Identifier: Apache-2.0
//! The journal: one JSON line for each thing that happened to a job.
//!
//! A thread of its own writes it, so that a disk that is full or does not answer holds up nothing. What could not be
//! written is counted and said in the next line that can. A line that a crash has cut is tolerated by readers and never
//! glued to the next one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::clock;

/// Lines that may wait for the disk.
const QUEUE: usize = 4096;

/// What every line of a job on this node starts with.
#[derive(Debug, Clone)]
pub(crate) struct JournalIdentity {
    /// Name of the job.
    pub(crate) job: String,
    /// Name of this node.
    pub(crate) node: String,
}

/// Writes the journal of a job.
#[derive(Debug)]
pub(crate) struct Journal {
    identity: JournalIdentity,
    sender: Option<SyncSender<Line>>,
    done: Receiver<()>,
    dropped: u64,
}

#[derive(Debug)]
struct Line {
    text: String,
    must_last: bool,
}

impl Journal {
    /// Opens the journal at `path` in the background, making its directory if need be. `report` is called, on the
    /// writer's thread, when the file cannot be written: once for each new kind of error.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub(crate) fn open(
        path: PathBuf,
        identity: JournalIdentity,
        report: impl Fn(String) + Send + 'static,
    ) -> io::Result<Journal> {
        let (sender, lines) = sync_channel(QUEUE);
        let (done_sender, done) = sync_channel(1);
        std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || {
                write_lines(&path, &lines, &report);
                // Nobody may be waiting any more.
                let _nobody_waits = done_sender.send(());
            })?;
        Ok(Journal {
            identity,
            sender: Some(sender),
            done,
            dropped: 0,
        })
    }

    /// Adds a line. `fields` must be a JSON object; its fields follow the ones that every line has.
    pub(crate) fn record(&mut self, generation: u64, kind: &str, fields: Value) {
        self.write(generation, kind, fields, false);
    }

    /// Adds a line that is on disk (if the disk lets it be) before later lines are written.
    pub(crate) fn record_incident(&mut self, generation: u64, kind: &str, fields: Value) {
        self.write(generation, kind, fields, true);
    }

    /// Waits until everything is written, or until the time is over.
    pub(crate) fn close(&mut self, within: Duration) {
        self.sender = None;
        // A disk that does not answer must not keep the job from ending.
        let _in_time_or_not = self.done.recv_timeout(within);
    }

    fn write(&mut self, generation: u64, kind: &str, fields: Value, must_last: bool) {
        let Some(sender) = &self.sender else { return };
        if self.dropped > 0 {
            let text = line(
                &self.identity,
                generation,
                "journal.dropped",
                json!({ "lines": self.dropped }),
            );
            if sender
                .try_send(Line {
                    text,
                    must_last: false,
                })
                .is_ok()
            {
                self.dropped = 0;
            }
        }
        let text = line(&self.identity, generation, kind, fields);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            sender.try_send(Line { text, must_last })
        {
            self.dropped += 1;
        }
    }
}

fn line(identity: &JournalIdentity, generation: u64, kind: &str, fields: Value) -> String {
    let mut object = Map::new();
    object.insert("ts".to_owned(), jiff::Timestamp::now().to_string().into());
    object.insert("mono_ns".to_owned(), clock::monotonic_ns().into());
    object.insert("job".to_owned(), identity.job.clone().into());
    object.insert("node".to_owned(), identity.node.clone().into());
    object.insert("generation".to_owned(), generation.into());
    object.insert("kind".to_owned(), kind.into());
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    let mut text = Value::Object(object).to_string();
    text.push('\n');
    text
}

fn write_lines(path: &Path, lines: &Receiver<Line>, report: &impl Fn(String)) {
    let mut target = Target {
        path,
        file: None,
        last_error: None,
    };
    let mut lost = 0_u64;
    while let Ok(line) = lines.recv() {
        let result = target.write(line.text.as_bytes(), line.must_last);
        match result {
            Ok(()) => {}
            Err(error) => {
                lost += 1;
                let kind = error.kind();
                if target.last_error != Some(kind) {
                    target.last_error = Some(kind);
                    report(format!(
                        "the journal {} cannot be written: {error}; the job goes on",
                        path.display()
                    ));
                }
            }
        }
    }
    if lost > 0 {
        report(format!(
            "{lost} lines of the journal {} could not be written",
            path.display()
        ));
    }
}

struct Target<'a> {
    path: &'a Path,
    file: Option<File>,
    last_error: Option<io::ErrorKind>,
}

impl Target<'_> {
    fn write(&mut self, text: &[u8], must_last: bool) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(open_after_whole_line(self.path)?);
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let before = file.stream_position()?;
        if let Err(error) = file.write_all(text) {
            // Half a line is worse than none. If even that fails, the next open repairs it.
            let repaired = file
                .set_len(before)
                .and_then(|()| file.seek(SeekFrom::Start(before)));
            if repaired.is_err() {
                self.file = None;
            }
            return Err(error);
        }
        if must_last { file.sync_data() } else { Ok(()) }
    }
}

/// Opens for appending; a last line that was cut is ended first.
fn open_after_whole_line(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    if length > 0 {
        let mut last = [0_u8];
        file.seek(SeekFrom::Start(length - 1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> JournalIdentity {
        JournalIdentity {
            job: "job".to_owned(),
            node: "node".to_owned(),
        }
    }

    fn write_one(path: &Path, kind: &str) {
        let mut journal =
            Journal::open(path.to_owned(), identity(), |error| panic!("{error}")).unwrap();
        journal.record_incident(3, kind, json!({ "rank": 1 }));
        journal.close(Duration::from_secs(30));
    }

    #[test]
    fn every_line_names_job_node_generation_and_kind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deeper/journal.jsonl");
        write_one(&path, "worker.exited");
        let text = fs::read_to_string(&path).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["job"], "job");
        assert_eq!(value["generation"], 3);
        assert_eq!(value["kind"], "worker.exited");
        assert_eq!(value["rank"], 1);
        assert!(
            value["ts"]
                .as_str()
                .unwrap()
                .parse::<jiff::Timestamp>()
                .is_ok()
        );
    }

    #[test]
    fn a_line_that_was_cut_is_not_glued_to_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        fs::write(&path, "{\"kind\":\"cut").unwrap();
        write_one(&path, "after");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "{\"kind\":\"cut");
        assert!(serde_json::from_str::<Value>(lines[1]).is_ok());
    }

    #[test]
    fn a_full_disk_is_reported_once_and_holds_up_nothing() {
        let (sender, reports) = std::sync::mpsc::channel();
        let report = move |text| sender.send(text).unwrap();
        let mut journal = Journal::open("/dev/full".into(), identity(), report).unwrap();
        for _ in 0..10 {
            journal.record(1, "test", json!({}));
        }
        journal.close(Duration::from_secs(30));
        let reports: Vec<String> = reports.iter().collect();
        assert_eq!(reports.len(), 2, "{reports:?}");
        assert!(reports[0].contains("/dev/full") && reports[0].contains("No space left"));
        assert!(reports[1].contains("10 lines"));
    }

    #[test]
    fn a_writer_that_is_stuck_holds_up_nobody_and_what_is_dropped_is_counted() {
        let (entered_sender, entered) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let report = move |_| {
            entered_sender.send(()).unwrap();
            // Stuck as in a write that does not return, until the test lets go.
            assert!(released.recv().is_err());
        };
        let mut journal = Journal::open("/dev/full".into(), identity(), report).unwrap();
        journal.record(1, "first", json!({}));
        entered.recv().unwrap();
        for _ in 0..QUEUE + 10 {
            journal.record(1, "test", json!({}));
        }
        assert_eq!(journal.dropped, 10);
        drop(release);
    }
}
