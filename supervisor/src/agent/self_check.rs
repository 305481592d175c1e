// SPDX-License-Identifier: Apache-2.0
//! Looks at this node: the checks of the profile `job`, made by a process of their own. A look is taken when the agent
//! begins, while workers are stopped that may be started again, and from time to time while none of ours run. What it shows
//! goes to the decision core, which alone decides what becomes of the node.
//!
//! A look that shows nothing, for whatever reason, says nothing against the node.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_checks::{Report, Status};
use steadfast_proto::v1::{FaultClass, Finding};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::check_command::{self, CheckError, Inquiry};
use crate::clock;
use crate::fault_book::FaultBook;
use crate::settings::SelfChecks;

/// Looks at the node.
#[derive(Debug)]
pub(super) struct SelfCheck {
    settings: Option<SelfChecks>,
    sender: mpsc::UnboundedSender<Looked>,
    ended: mpsc::UnboundedReceiver<Looked>,
    /// A look is under way.
    looking: bool,
    /// It began before something that only another one can show.
    again: bool,
    next_at_ns: u64,
    /// Until when it is waited for with the report that the workers are stopped.
    wait_until: Option<Instant>,
    /// What the last one has shown, in words, and when.
    last: Option<(String, u64)>,
}

/// What comes of looks.
#[derive(Debug)]
pub(super) enum FromSelfCheck {
    /// One has ended.
    Looked(Looked),
    /// It takes too long to be waited for any longer.
    Late,
}

/// What a look has shown.
#[derive(Debug)]
pub(super) struct Looked {
    /// What makes the node unfit.
    pub(super) faults: Vec<Finding>,
    /// What is remembered of the node's GPUs.
    pub(super) book: FaultBook,
    /// For the journal.
    pub(super) fields: Value,
    /// For people.
    words: String,
}

impl SelfCheck {
    pub(super) fn new(settings: Option<SelfChecks>) -> Self {
        let (sender, ended) = mpsc::unbounded_channel();
        Self {
            settings,
            sender,
            ended,
            looking: false,
            again: false,
            next_at_ns: 0,
            wait_until: None,
            last: None,
        }
    }

    /// Takes a look if one is due. While workers run, only the very first is.
    pub(super) fn look_if_due(&mut self, workers_run: bool, gpus: Option<Vec<String>>) {
        let first = self.last.is_none();
        let due = clock::monotonic_ns() >= self.next_at_ns && (first || !workers_run);
        if due && !self.looking {
            self.look(gpus);
        }
    }

    /// Takes a look because workers are about to be stopped. It is waited for until a certain time.
    pub(super) fn look_now(&mut self, gpus: Option<Vec<String>>) {
        let Some(settings) = &self.settings else {
            return;
        };
        self.wait_until = Some(Instant::now() + settings.wait);
        if self.looking {
            self.again = true;
        } else {
            self.look(gpus);
        }
    }

    /// Whether a look is under way for which the report that the workers are stopped waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.looking && self.wait_until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits for what comes of looks; for ever where nobody looks.
    pub(super) async fn next(&mut self) -> FromSelfCheck {
        let wait_until = self.wait_until.filter(|_| self.looking);
        let late = async {
            match wait_until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(looked) = self.ended.recv() => FromSelfCheck::Looked(looked),
            () = late => FromSelfCheck::Late,
        }
    }

    /// A look has ended: `gpus` are for the next one if there must be one at once.
    pub(super) fn note_end(&mut self, looked: &Looked, gpus: Option<Vec<String>>) {
        let now = clock::monotonic_ns();
        self.looking = false;
        self.last = Some((looked.words.clone(), now));
        if let Some(settings) = &self.settings {
            let every = u64::try_from(settings.every.as_nanos()).unwrap_or(u64::MAX);
            self.next_at_ns = now.saturating_add(every);
        }
        if std::mem::take(&mut self.again) {
            self.look(gpus);
        } else {
            self.wait_until = None;
        }
    }

    /// Nobody waits for it any longer. What it shows counts nevertheless.
    pub(super) fn note_late(&mut self) {
        self.wait_until = None;
    }

    /// For `steadfast status`.
    pub(super) fn status(&self) -> Vec<String> {
        let last = self.last.iter();
        last.map(|(words, at_ns)| {
            let ago = Duration::from_nanos(clock::monotonic_ns().saturating_sub(*at_ns));
            format!("self-check, {} s ago: {words}", ago.as_secs())
        })
        .collect()
    }

    fn look(&mut self, gpus: Option<Vec<String>>) {
        let Some(settings) = &self.settings else {
            return;
        };
        let mut inquiry = settings.inquiry.clone();
        inquiry.gpus = gpus;
        let sender = self.sender.clone();
        // The process that makes the checks is killed with the thread that has started it.
        let started = thread::Builder::new()
            .name("self-check".to_owned())
            .spawn(move || {
                // An agent that ends does not want to know.
                let _unheard = sender.send(Looked {
                    book: FaultBook::read(&inquiry.gpu_faults),
                    ..look(&inquiry)
                });
            });
        match started {
            Ok(_) => self.looking = true,
            Err(error) => {
                let _own_receiver_lives = self.sender.send(not_looked(&error.to_string()));
            }
        }
    }
}

fn look(inquiry: &Inquiry) -> Looked {
    match check_command::check(inquiry) {
        Ok(report) => of_report(&report),
        Err(CheckError::Refused(why)) => not_looked(&why),
        Err(error) => not_looked(&error.to_string()),
    }
}

fn not_looked(why: &str) -> Looked {
    Looked {
        faults: Vec::new(),
        book: FaultBook::default(),
        fields: json!({ "failed": why }),
        words: format!("it could not be made, which counts against nobody: {why}"),
    }
}

fn of_report(report: &Report) -> Looked {
    let faults: Vec<Finding> = report
        .with(Status::Fail)
        .flat_map(|result| {
            let failed = result.problems.iter();
            let failed = failed.filter(|problem| problem.status == Status::Fail);
            failed.map(|problem| Finding {
                class: class_of(&result.name).into(),
                fingerprint: format!("check:{}", result.name),
                summary: format!("{}: {}", result.name, problem.text),
                evidence: problem.next_step.iter().cloned().collect(),
                monotonic_ns: clock::monotonic_ns(),
                wall_ms: clock::wall_ms(),
                ..Finding::default()
            })
        })
        .collect();
    let texts: Vec<&str> = faults.iter().map(|fault| fault.summary.as_str()).collect();
    let made = report.results.len();
    let unsure = report.with(Status::Unknown).count() + report.with(Status::Broken).count();
    let words = match texts.as_slice() {
        [] => format!("nothing is wrong ({made} checks, {unsure} of them could not tell)"),
        _ => texts.join("; "),
    };
    Looked {
        fields: json!({
            "faults": texts,
            "checks": made,
            "could_not_tell": unsure,
            "seconds": report.took.as_secs_f64(),
        }),
        faults,
        book: FaultBook::default(),
        words,
    }
}

fn class_of(check: &str) -> FaultClass {
    match check {
        "gpu-nvlink" | "gpu-fabric" | "infiniband" | "infiniband-counters" => FaultClass::Link,
        "ethernet" => FaultClass::Network,
        "mounts" | "disk-space" => FaultClass::Storage,
        gpu if gpu.starts_with("gpu-") => FaultClass::GpuHardware,
        _ => FaultClass::Unknown,
    }
}
