// SPDX-License-Identifier: Apache-2.0
//! Carrying out what is decided about the node.

use super::Run;
use super::decision::{Decision, Found, Leave};
use super::memory::{LockedMemory, MemoryError};
use crate::slurm::controller::ControllerError;

/// What a hook may do to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Powers {
    /// Drain it.
    Drain,
    /// Resume it.
    Resume,
    /// Both.
    Both,
}

/// Why a decision could not be made or carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum VerdictError {
    /// Nobody else may decide at the same time.
    #[error("cannot decide about the node")]
    Memory(#[from] MemoryError),
    /// The controller was not told.
    #[error("the controller was not told")]
    Controller(#[from] ControllerError),
}

impl Powers {
    fn drains(self) -> bool {
        self != Self::Resume
    }

    fn resumes(self) -> bool {
        self != Self::Drain
    }
}

/// Decides, and does it. What a hook has no power for is left to the next run of one that has.
pub(super) fn carry_out(
    run: &Run,
    memory: &LockedMemory,
    found: &Found,
    powers: Powers,
) -> Result<Decision, VerdictError> {
    let name = &run.surroundings.node;
    let controller = run.controller()?;
    let node = controller.node(name)?;
    let (decision, next) = memory.read().decide(&node, found);
    match &decision {
        Decision::Drain { reason } if powers.drains() => {
            controller.drain(name, reason)?;
            run.log.say(&format!("the node is drained: {reason}"));
        }
        Decision::Resume if powers.resumes() => {
            controller.resume(name)?;
            run.log
                .say("the node is well again: it is taken into service");
        }
        Decision::Drain { .. } | Decision::Resume => return Ok(decision),
        Decision::Leave(Leave::Well | Leave::Drained) => {}
        Decision::Leave(why) => run.log.whisper(&why.to_string()),
    }
    // Only now: what the controller was not told is decided anew.
    memory.write(&next)?;
    Ok(decision)
}
