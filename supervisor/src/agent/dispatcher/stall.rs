// SPDX-License-Identifier: Apache-2.0
//! A training that does not move: looks at the workers, names the one to blame, and tells the core.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use steadfast_coord::Hint;
use steadfast_core::{
    Activity, Generation, Instant, MemberEvent, NodeName, Plan, RankSigns, StallState,
};
use steadfast_health::nccl_ras;
use steadfast_health::progress_page::PagePhase;
use tokio::sync::oneshot;

use super::Agent;
use crate::agent::AgentError;
use crate::agent::launch;
use crate::agent::stall::{Enquiry, Findings, Looked, Scene, Scope, StallOrder};
use crate::clock;
use crate::evidence::{self, Bundle, LOOK_WITHIN, NodeSubject, Seen, Subject};
use crate::peers::{Movement, PeerEvent};
use crate::redact;
use crate::settings::KernelLogSource;

/// Lines of each stream that are kept as evidence.
const LAST_LINES: usize = 50;
/// How much longer the answer of another node is waited for than a look takes.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl Agent {
    /// Whether something is to be done about a stall.
    pub(super) async fn look_for_stall(&mut self) -> Result<(), AgentError> {
        let now = now();
        if self.peering.is_some() {
            self.show_digest();
        }
        let scene = self.scene(now);
        match self.stall.tick(&scene, now) {
            Some(StallOrder::Look { number }) => self.look_at_ranks(number, &scene, now),
            Some(StallOrder::Over { fields, was_told }) => {
                if was_told {
                    self.say("the training moves again");
                }
                self.journal.record(scene.generation, "stall.ended", fields);
            }
            None => {}
        }
        self.conclude_enquiry(now).await
    }

    /// How it stands, for `status`.
    pub(super) fn stall_status(&self) -> Option<String> {
        let now = now();
        self.stall.status(&self.scene(now), now)
    }

    /// Whether this node's part of the training gets on.
    pub(super) fn movement(&self, now: Instant) -> Movement {
        if !self.generation.is_active() {
            return Movement::Unseen;
        }
        match self.generation.stall.judge(now) {
            StallState::NoSignal => Movement::Unseen,
            StallState::Moving { .. } => Movement::Moving,
            StallState::Stalled(stall) => Movement::Overdue {
                since: stall.since,
                bound: stall.bound,
                typical: stall.typical,
            },
        }
    }

    /// The training that this agent judges.
    fn scene(&self, now: Instant) -> Scene {
        let own = &self.generation;
        let alone = |scope| Scene {
            generation: own.number,
            is_active: own.is_active(),
            has_stepped: own.step.is_some(),
            state: own.stall.judge(now),
            scope,
        };
        let Some((plan, leads)) = self.shared_plan() else {
            return alone(Scope::Node);
        };
        let Some(peering) = &self.peering else {
            return alone(Scope::Node);
        };
        if !leads {
            let is_led = peering.has_leader() && plan.generation.0 == own.number;
            return alone(if is_led { Scope::Led } else { Scope::Node });
        }
        let generation = plan.generation.0;
        let takes_part = plan.member(&self.here()).is_some();
        let runs_here = own.number == generation && own.is_active();
        let others = self.others(&plan);
        let others = others.iter().filter(|node| !peering.is_silent(node));
        let own_state = runs_here.then(|| own.stall.judge(now));
        Scene {
            generation,
            is_active: plan.is_run() && (runs_here || !takes_part),
            has_stepped: own.step.is_some() || self.council.has_stepped(generation),
            state: self.council.judge(generation, own_state, others, now),
            scope: Scope::Job,
        }
    }

    /// The plan in force, if others have a part in it, and whether this node leads.
    fn shared_plan(&self) -> Option<(std::sync::Arc<Plan>, bool)> {
        let view = self.view.borrow();
        let plan = view.plan.as_ref().filter(|plan| {
            let here = &self.settings.node;
            plan.members.iter().any(|member| member.node.0 != *here)
        })?;
        Some((std::sync::Arc::clone(plan), view.leader_state.is_some()))
    }

    fn here(&self) -> NodeName {
        NodeName(self.settings.node.clone())
    }

    fn others(&self, plan: &Plan) -> Vec<NodeName> {
        let nodes = plan.members.iter().map(|member| &member.node);
        nodes
            .filter(|node| node.0 != self.settings.node)
            .cloned()
            .collect()
    }

    /// Has all ranks looked at that are judged here: this node's, and those of other nodes by their own agents.
    fn look_at_ranks(&mut self, number: u64, scene: &Scene, now: Instant) {
        self.enquiry = None;
        let shared = self.shared_plan().filter(|_| scene.scope == Scope::Job);
        if let (Some((plan, _)), Some(peering)) = (shared, &self.peering) {
            let within = LOOK_WITHIN + ON_ITS_WAY;
            let others = self.others(&plan);
            let asked = peering.ask(plan.generation, &others, LOOK_WITHIN + ON_ITS_WAY / 2);
            let awaits_own = self.generation.number == scene.generation;
            self.enquiry = Some(Enquiry::new(number, now + within, awaits_own, asked));
        }
        self.look_at_workers(number);
    }

    /// In a thread of its own: whatever touches a process that hangs may hang as well.
    fn look_at_workers(&self, number: u64) {
        let (node, subjects) = (self.node_subject(), self.subjects());
        let sender = self.stall.sender();
        in_background(move || {
            let seen = look(node, &subjects);
            // The agent is about to end.
            drop(sender.send(Looked { number, seen }));
        });
    }

    /// The node that leads wants to know what is seen here. What it gets is kept here, too, before anything is stopped.
    pub(super) fn give_evidence(
        &mut self,
        generation: Generation,
        max_bytes: u64,
        answer: oneshot::Sender<Result<Vec<u8>, String>>,
    ) {
        let own = &self.generation;
        if generation.0 != own.number || !own.is_active() {
            let state = if own.is_active() {
                "runs"
            } else {
                "has stopped"
            };
            let words = format!("this node {state} generation {}", own.number);
            // Whoever has asked may be gone.
            drop(answer.send(Err(words)));
            return;
        }
        let (node, subjects) = (self.node_subject(), self.subjects());
        let directory = self.incidents(generation.0, "for-leader");
        let mut incident = self.incident_fields(generation.0);
        incident["asked_by"] = json!("the node that leads");
        let fields = json!({ "evidence": directory });
        self.journal
            .record_incident(generation.0, "stall.evidence_given", fields);
        in_background(move || {
            let seen = look(node, &subjects);
            drop(answer.send(evidence::pack(&seen, max_bytes)));
            let bundle = Bundle {
                incident,
                nodes: vec![seen.node],
                ranks: seen.ranks,
            };
            keep(&directory, &bundle);
        });
    }

    /// What another agent says may be about the training, or an answer that is waited for.
    pub(super) async fn on_peer_news(&mut self, event: PeerEvent) -> Result<(), AgentError> {
        match event {
            PeerEvent::Digest { node, digest, .. } => self.council.note(&node, &digest),
            PeerEvent::Evidence { node, id, outcome } => {
                let shared = self.shared_plan();
                if let (Some(enquiry), Some((plan, _))) = (&mut self.enquiry, shared) {
                    let answer = match &outcome {
                        Ok(bundle) => Ok(bundle.data.as_slice()),
                        Err(failure) => Err(failure.to_string()),
                    };
                    enquiry.take((id, &node), &plan, answer);
                }
            }
            PeerEvent::Silent { node, .. } | PeerEvent::Closed { node, .. } => {
                if let Some(enquiry) = &mut self.enquiry {
                    enquiry.lose(&node);
                }
            }
            PeerEvent::Connected { .. } | PeerEvent::Refused { .. } => {}
        }
        self.conclude_enquiry(now()).await
    }

    /// When all nodes have answered, or are waited for no longer, the verdict is found.
    async fn conclude_enquiry(&mut self, now: Instant) -> Result<(), AgentError> {
        let done = self.enquiry.take_if(|enquiry| enquiry.is_complete(now));
        let (Some(enquiry), Some((plan, _))) = (done, self.shared_plan()) else {
            return Ok(());
        };
        let number = enquiry.number;
        let peering = self.peering.as_ref();
        let is_silent = |node: &NodeName| peering.is_some_and(|peering| peering.is_silent(node));
        self.judge(number, enquiry.conclude(&plan, is_silent)).await
    }

    fn node_subject(&self) -> NodeSubject {
        NodeSubject {
            node: self.settings.node.clone(),
            health: [self.node.status(), self.nvml.status()].concat(),
            kernel_log: match &self.settings.kernel_log {
                KernelLogSource::Auto => Some(PathBuf::from("/dev/kmsg")),
                KernelLogSource::Path(path) => Some(path.clone()),
                KernelLogSource::Off => None,
            },
            nccl: nccl_address(),
        }
    }

    /// The workers that still run.
    fn subjects(&self) -> Vec<Subject> {
        let generation = &self.generation;
        let living = generation
            .workers
            .values()
            .filter(|worker| worker.view.exit.is_none());
        living
            .map(|worker| {
                let view = &worker.view;
                let tail = self.outputs.tail(generation.number, view.local_rank);
                let last = |lines: Vec<String>| {
                    let skipped = lines.len().saturating_sub(LAST_LINES);
                    lines.into_iter().skip(skipped)
                };
                let lines = last(tail.stdout).chain(last(tail.stderr));
                Subject {
                    node: NodeName(self.settings.node.clone()),
                    rank: view.rank,
                    local_rank: view.local_rank,
                    pid: view.pid,
                    trains: worker.trains,
                    pages: self.hook.pages_of(generation.number, view.local_rank),
                    step: worker.step,
                    activity: worker.phase.map(activity),
                    last_lines: lines.map(|line| redact::line(&line)).collect(),
                }
            })
            .collect()
    }

    /// This node's own ranks have been looked at.
    pub(super) async fn on_looked(&mut self, looked: Looked) -> Result<(), AgentError> {
        match &mut self.enquiry {
            Some(enquiry) if enquiry.number == looked.number => {
                enquiry.take_own(looked.seen);
                self.conclude_enquiry(now()).await
            }
            _ => {
                let found = self.filled_up(looked.seen);
                self.judge(looked.number, found).await
            }
        }
    }

    /// Nobody was asked, or not in time: of the ranks of other nodes that are judged here, nothing is known.
    fn filled_up(&self, seen: Seen) -> Findings {
        let now = now();
        let (true, Some((plan, _))) = (self.scene(now).scope == Scope::Job, self.shared_plan())
        else {
            return Findings {
                nodes: vec![seen.node],
                ranks: seen.ranks,
                missing: Vec::new(),
            };
        };
        let mut enquiry = Enquiry::new(0, now, true, Vec::new());
        enquiry.take_own(seen);
        enquiry.conclude(&plan, |_| false)
    }

    /// All ranks have been looked at that can be: names the one to blame, keeps the evidence, and tells the core.
    async fn judge(&mut self, number: u64, found: Findings) -> Result<(), AgentError> {
        let now = now();
        let scene = self.scene(now);
        let mut found = found;
        found.heed_nccl();
        let signs: Vec<RankSigns> = found.ranks.iter().map(|seen| seen.signs.clone()).collect();
        let run_dir = &self.settings.log.run_dir;
        let outcome = self.stall.looked(number, &signs, &scene, (now, run_dir));
        let Some(outcome) = outcome else {
            return Ok(());
        };
        let mut fields = outcome.fields;
        fields["nodes_without_answer"] = found
            .missing
            .iter()
            .map(|missing| json!({ "node": missing.node, "why": missing.why }))
            .collect();
        let mut incident = self.incident_fields(scene.generation);
        for (name, value) in fields.as_object().into_iter().flatten() {
            incident[name] = value.clone();
        }
        let directory = outcome.directory;
        fields["evidence"] = json!(directory);
        self.journal
            .record_incident(scene.generation, "stall.judged", fields);
        let bundle = Bundle {
            incident,
            nodes: found.nodes,
            ranks: found.ranks,
        };
        // What was seen is in memory, so the workers need not be kept for a slow disk.
        in_background(move || keep(&directory, &bundle));
        if let Some(text) = outcome.say {
            self.say(&format!("generation {}: {text}", scene.generation));
        }
        match outcome.finding {
            Some(finding) if scene.scope == Scope::Job => {
                // A session that has ended has decided already.
                let _has_ended = self.hints.send(Hint::Verdict(Box::new(finding))).await;
            }
            Some(finding) => {
                self.generation.failure_told = true;
                self.tell(MemberEvent::Finding(finding)).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// The directory for what is kept of an incident.
    fn incidents(&self, generation: u64, name: &str) -> PathBuf {
        let run_dir = &self.settings.log.run_dir;
        run_dir.join(format!("incidents/generation-{generation}-{name}"))
    }

    /// What the index of every incident says.
    fn incident_fields(&self, generation: u64) -> serde_json::Value {
        json!({
            "kind": "stall",
            "job": self.settings.job,
            "node": self.settings.node,
            "generation": generation,
            "wall_ms": clock::wall_ms(),
        })
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_ns())
}

/// Where NCCL answers in the workers, unless it was told not to: they have this agent's environment.
fn nccl_address() -> Option<String> {
    let variable = |name: &str| launch::own_environment(name)?.into_string().ok();
    if variable("NCCL_RAS_ENABLE").as_deref() == Some("0") {
        return None;
    }
    let address = variable("NCCL_RAS_ADDR").filter(|address| !address.is_empty());
    Some(address.unwrap_or_else(|| nccl_ras::DEFAULT_ADDRESS.to_owned()))
}

/// Looks at the workers and, meanwhile, at the node.
fn look(node: NodeSubject, subjects: &[Subject]) -> Seen {
    let (node, ranks) = evidence::look_at_node(node, || evidence::look_at_all(subjects));
    Seen { node, ranks }
}

/// Does something that may hang.
fn in_background(work: impl FnOnce() + Send + 'static) {
    // Without a thread nothing is seen, and the stall is looked at no more.
    let _nothing_seen = std::thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(work);
}

/// Writes the evidence. What cannot be written is in the journal still, in short.
fn keep(directory: &std::path::Path, bundle: &Bundle) {
    if let Err(error) = evidence::write_bundle(directory, bundle) {
        tracing::warn!(directory = %directory.display(), %error, "Failed to keep the evidence of a stall.");
    }
}

/// A phase in the core's words.
pub(in crate::agent) fn activity(phase: PagePhase) -> Activity {
    match phase {
        PagePhase::Init => Activity::Init,
        PagePhase::Train => Activity::Train,
        PagePhase::Checkpoint => Activity::Checkpoint,
        PagePhase::Eval => Activity::Eval,
        PagePhase::Load => Activity::Load,
        PagePhase::Compile => Activity::Compile,
        PagePhase::Other(_) => Activity::Other,
    }
}
