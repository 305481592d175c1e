// SPDX-License-Identifier: Apache-2.0
//! What the keeper tells.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::json;
use steadfast_core::{
    Generation as CoreGeneration, Instant as CoreInstant, LocalRank, MemberEvent,
};
use steadfast_proto::v1::Finding;
use tokio::time::Instant;

use super::Agent;
use super::self_check::StopReport;
use crate::agent::generation::Worker;
use crate::agent::jury::Heard;
use crate::agent::link::Arrival;
use crate::agent::resume::{spawn_failure, worker_exit};
use crate::agent::{AgentError, exits};
use crate::clock;
use crate::keeper::protocol::{ExitRecord, Notice, Request, Unkillable};
use crate::output::{Stream, StreamKind, StreamPipes, stream_log};

/// How long the last output of a generation is waited for, once nothing of it runs.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// Most streams that are named in one message.
const NAMED_STREAMS: usize = 4;

impl Agent {
    pub(super) async fn on_notice(&mut self, arrival: Arrival) -> Result<(), AgentError> {
        match arrival.notice {
            Notice::Welcome(_) => {}
            Notice::Companion(view) => {
                if let Some(etcd) = &self.managed_etcd {
                    etcd.observe(view);
                }
            }
            Notice::Attached(view) => {
                let worker = (view.generation, view.rank, view.local_rank);
                self.dying.watch(&self.settings, &view);
                self.pages.watch(view.generation, view.local_rank);
                self.node.watch_worker(&view);
                self.generation.attach(view);
                self.attach_output(worker, arrival.descriptors)?;
            }
            Notice::Started {
                generation,
                refused,
            } => self.on_started(generation, refused).await?,
            Notice::Exited(record) => self.on_exited(record).await?,
            Notice::Stopped {
                generation,
                unkillable,
            } => self.on_stopped(generation, unkillable).await?,
            Notice::Fenced { generation, at_ns } => self.on_fenced(generation, at_ns).await?,
            Notice::Interrupt { signal, insists } => {
                let name = exits::signal_name(signal);
                self.journal.record_incident(
                    self.generation.number,
                    "job.interrupted",
                    json!({ "signal": name, "insists": insists }),
                );
                self.say(&if insists {
                    format!("{name} again: killing the workers now")
                } else {
                    format!("{name}: stopping the job")
                });
                self.tell(MemberEvent::Interrupt {
                    signal,
                    count: if insists { 2 } else { 1 },
                })
                .await?;
            }
            Notice::TimeUp => self.on_time_up().await?,
            Notice::Forwarded { signal } => {
                let fields = json!({ "signal": exits::signal_name(signal) });
                self.journal
                    .record(self.generation.number, "signal.forwarded", fields);
            }
            Notice::Resumed => {
                self.journal
                    .record(self.generation.number, "job.resumed", json!({}));
            }
        }
        Ok(())
    }

    pub(super) fn attach_output(
        &mut self,
        (generation, rank, local_rank): (u64, u32, u32),
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), AgentError> {
        let restart_count = u32::try_from(generation.saturating_sub(1)).unwrap_or(u32::MAX);
        let mut descriptors = descriptors.into_iter();
        for kind in [StreamKind::Stdout, StreamKind::Stderr] {
            let (Some(worker), Some(spool_read), Some(spool_write)) =
                (descriptors.next(), descriptors.next(), descriptors.next())
            else {
                return Ok(());
            };
            let stream = Stream {
                generation,
                restart_count,
                rank,
                local_rank,
                kind,
            };
            let pipes = StreamPipes {
                worker,
                spool_read,
                spool_write,
            };
            self.outputs
                .attach(stream, pipes)
                .map_err(AgentError::Output)?;
        }
        Ok(())
    }

    pub(super) async fn on_started(
        &mut self,
        generation: u64,
        refused: Option<String>,
    ) -> Result<(), AgentError> {
        if let Some(reason) = refused {
            // The core asks again when the keeper says that the older generation is stopped.
            self.say(&format!(
                "the keeper did not start generation {generation}: {reason}"
            ));
            return Ok(());
        }
        self.journal.record(
            generation,
            "generation.started",
            json!({ "workers": self.generation.status() }),
        );
        self.tell_late_faults().await?;
        self.tell(MemberEvent::Started {
            generation: CoreGeneration(generation),
            failures: Vec::new(),
        })
        .await
    }

    pub(super) async fn on_exited(&mut self, record: ExitRecord) -> Result<(), AgentError> {
        self.dying.forget(record.generation, record.local_rank);
        let news = self.generation.ended(&record);
        if news {
            self.journal.record_incident(
                record.generation,
                "worker.exited",
                exits::journal_fields(&record),
            );
            self.announce_failure(&record);
        }
        self.tell(exit_event(&record, None)).await?;
        self.look_at_saving().await?;
        self.ask(
            &Request::Acknowledge {
                sequence: record.sequence,
            },
            Vec::new(),
        )
    }

    /// The first failure of a generation is told at once; why it happened follows when everything is known.
    fn announce_failure(&mut self, record: &ExitRecord) {
        if record.exit.is_success() || record.while_stopping || self.generation.failure_told {
            return;
        }
        self.generation.failure_told = true;
        self.say(&exits::first_words(record, self.generation.step));
    }

    async fn on_fenced(&mut self, generation: u64, at_ns: u64) -> Result<(), AgentError> {
        let ago = Duration::from_nanos(clock::monotonic_ns().saturating_sub(at_ns));
        self.journal.record_incident(
            generation,
            "generation.fenced",
            json!({ "seconds_ago": ago.as_secs_f64() }),
        );
        // Their deaths are no failures of the program.
        self.generation.failure_told |= generation == self.generation.number;
        if !self.generation.is_done() {
            self.say(&format!(
                "generation {generation}: this node could not renew its lease in time, and no step showed that the others \
                 still work with it: its workers were killed, because the job may go on without them. Look at the network \
                 to the coordination store, and at what held this node up"
            ));
        }
        self.tell(MemberEvent::Fenced {
            generation: CoreGeneration(generation),
            at: CoreInstant::from_nanos(at_ns),
        })
        .await
    }

    /// Nothing of the generation runs any more: now its last words are complete.
    pub(super) async fn on_stopped(
        &mut self,
        generation: u64,
        unkillable: Vec<Unkillable>,
    ) -> Result<(), AgentError> {
        if generation == self.generation.number {
            let drained = self
                .outputs
                .drained(generation, Instant::now() + LAST_OUTPUT)
                .await;
            // Steps among them count for the restart budget.
            self.pages.look().await;
            while let Ok(event) = self.page_events.try_recv() {
                self.on_page(event).await?;
            }
            while let Ok(event) = self.output_events.try_recv() {
                self.on_output(event).await?;
            }
            self.report_unwritten(&drained.unfinished);
            self.explain_exits(generation).await?;
            let fields = json!({
                "unkillable": unkillable,
                "output_not_finished": drained.unfinished.len(),
            });
            self.journal
                .record_incident(generation, "generation.stopped", fields);
            self.generation.stopped = true;
            self.nvml.ask_for_holders();
            self.report_unkillable(&unkillable);
            self.ask(&Request::Release { generation }, Vec::new())?;
        }
        if self.ending.is_some() {
            return self.finish().await;
        }
        self.tell_checkpoints().await?;
        self.report_when_looked(StopReport {
            generation,
            unkillable,
        })
        .await
    }

    pub(super) async fn explain_exits(&mut self, generation: u64) -> Result<(), AgentError> {
        // What the kernel said of it may still wait behind the notice that brought us here.
        while let Ok(event) = self.kernel_log.try_recv() {
            self.on_kernel_log(event).await?;
        }
        let records: Vec<ExitRecord> = self
            .generation
            .workers
            .values()
            .filter_map(Worker::exit_record)
            .collect();
        for record in records.iter().filter(|record| !record.exit.is_success()) {
            let mut tail = self.outputs.tail(generation, record.local_rank);
            if tail.stderr.is_empty() && self.welcome.incarnation > 1 {
                let stderr = stream_of(record, StreamKind::Stderr);
                let log = stream_log(&self.settings.log.run_dir, stderr);
                tail.stderr = exits::last_lines(log).await;
            }
            let mut finding = exits::explain(&self.settings, record, &tail);
            self.node
                .explain(&mut finding, record, self.generation.started_ns(record));
            self.tell(exit_event(record, Some(finding))).await?;
        }
        self.tell_what_was_said(generation).await
    }

    /// Keeps what the workers have said that run and are about to be stopped: what they say then is no reason for it.
    pub(super) fn hear_workers(&mut self, generation: u64) {
        if generation != self.generation.number
            || self
                .heard
                .iter()
                .any(|heard| heard.generation == generation)
        {
            return;
        }
        self.jury.get_ready();
        let living = self.generation.workers.values();
        let living = living.filter(|worker| worker.view.exit.is_none());
        self.heard = living
            .map(|worker| Heard {
                generation,
                rank: worker.view.rank,
                local_rank: worker.view.local_rank,
                pid: u32::try_from(worker.view.pid).unwrap_or(0),
                wall_ms: clock::wall_ms(),
                tail: self.outputs.tail(generation, worker.view.local_rank),
            })
            .collect();
    }

    /// A worker that did not fail by itself may have told what was wrong.
    async fn tell_what_was_said(&mut self, generation: u64) -> Result<(), AgentError> {
        for heard in std::mem::take(&mut self.heard) {
            if heard.generation != generation {
                continue;
            }
            if let Some(finding) = self.jury.said(&heard) {
                let fields = json!({ "rank": heard.rank, "summary": finding.summary });
                self.journal.record(generation, "worker.said", fields);
                self.tell(MemberEvent::Finding(finding)).await?;
            }
        }
        Ok(())
    }

    /// Output that is held up is waited for no longer, but it is not forgotten without a word.
    fn report_unwritten(&self, streams: &[Stream]) {
        let names: Vec<String> = streams
            .iter()
            .take(NAMED_STREAMS)
            .map(|stream| format!("rank {} ({})", stream.rank, stream.kind.name()))
            .collect();
        if !names.is_empty() {
            let others = match streams.len().saturating_sub(NAMED_STREAMS) {
                0 => String::new(),
                more => format!(" and {more} others"),
            };
            self.say(&format!(
                "the last output of {}{others} is not written yet: a log disk or the console is slow, or a process \
                 that cannot be killed holds it open. What is not written when the job ends is lost",
                names.join(", ")
            ));
        }
    }

    pub(super) fn report_unkillable(&mut self, unkillable: &[Unkillable]) {
        for process in unkillable {
            if let Some(worker) = process
                .local_rank
                .and_then(|rank| self.generation.workers.get_mut(&rank))
            {
                worker.unkillable = true;
            }
            let place = process.waits_in.as_deref().unwrap_or("the kernel");
            self.say(&format!(
                "pid {} ({}) cannot be killed: it sleeps uninterruptibly (state {}) in {place}, as on storage or a \
                 driver that does not answer. It runs no more of its program, but holds what it holds until that answers",
                process.pid, process.name, process.state
            ));
        }
    }
}

fn stream_of(record: &ExitRecord, kind: StreamKind) -> Stream {
    let restart_count = u32::try_from(record.generation.saturating_sub(1)).unwrap_or(u32::MAX);
    Stream {
        generation: record.generation,
        restart_count,
        rank: record.rank,
        local_rank: record.local_rank,
        kind,
    }
}

fn exit_event(record: &ExitRecord, finding: Option<Finding>) -> MemberEvent {
    let generation = CoreGeneration(record.generation);
    let local_rank = LocalRank(record.local_rank);
    match &record.spawn_error {
        Some(message) => MemberEvent::Started {
            generation,
            failures: vec![spawn_failure(local_rank, message, record.exit)],
        },
        None => MemberEvent::WorkerExited {
            generation,
            local_rank,
            exit: worker_exit(record.exit),
            at: CoreInstant::from_nanos(record.at_ns),
            finding,
        },
    }
}
