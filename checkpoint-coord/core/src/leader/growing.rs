// SPDX-License-Identifier: Apache-2.0
//! Taking more nodes into a job that runs.

use std::collections::BTreeSet;

use super::{Leader, TERMINATE};
use crate::{Generation, Grow, Instant, JobSpec, NodeName, Plan, PlanPhase, Request, RequestKind};

/// Since when there are nodes that could be taken in.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// In which generation, and the step of the newest checkpoint at that time.
    since: Option<(Generation, Option<u64>)>,
}

impl Leader {
    /// Why the running generation is to end so that a larger one can begin, if it is.
    pub(super) fn reason_to_grow(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
    ) -> Option<PlanPhase> {
        let size = u32::try_from(plan.members.len()).unwrap_or(u32::MAX);
        if spec.grow == Grow::Never || size >= spec.max_nodes {
            return None;
        }
        self.note_arrivals(now);
        let ledger = self.ledger();
        let usable = self.usable(&ledger);
        let planned: BTreeSet<&NodeName> = plan.members.iter().map(|place| &place.node).collect();
        let newcomers: Vec<_> = usable
            .keys()
            .filter(|node| !planned.contains(*node))
            .filter(|node| self.is_fit(now, usable[*node], &plan.members))
            .map(|node| self.quarantined_until(node, &ledger).filter(|at| *at > now))
            .collect();
        let kept_out = newcomers.iter().flatten().min().copied();
        let ready = newcomers.iter().filter(|until| until.is_none()).count();
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        if let Some(at) = kept_out {
            self.wake(at);
        }
        let larger = spec.size_with(size.saturating_add(ready))?;
        if larger <= size {
            self.growing.since = None;
            return None;
        }
        let newest = self.newest_checkpoint(plan);
        let known = match self.growing.since {
            Some((generation, known)) if generation == plan.generation => known,
            _ => newest,
        };
        self.growing.since = Some((plan.generation, known));
        // Where a checkpoint can be asked for, none need be waited for.
        let waits = spec.grow == Grow::AtCheckpoint && self.save_means(plan).is_none();
        if waits && newest <= known {
            return None;
        }
        let save_ms = match spec.grow {
            Grow::Immediately => 0,
            _ => u64::try_from(self.settings.save_timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let reason = format!("{larger} nodes can be used instead of {size}");
        Some(PlanPhase::Drain {
            signal: TERMINATE,
            why: reason.clone(),
            request: Some(Request {
                generation: plan.generation,
                kind: RequestKind::Restart,
                save_ms,
                reason,
            }),
        })
    }

    /// Step of the newest checkpoint that the generation has made.
    fn newest_checkpoint(&self, plan: &Plan) -> Option<u64> {
        let members = plan.members.iter();
        members
            .filter_map(|place| Some(&self.view.member(&place.node)?.value))
            .filter(|record| record.generation == plan.generation)
            .filter_map(|record| record.checkpoint)
            .max()
    }
}
