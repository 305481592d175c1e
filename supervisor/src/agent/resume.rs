// SPDX-License-Identifier: Apache-2.0
//! What a new agent tells the decision core first: what the keeper really has.

use steadfast_core::{
    Generation, Instant, KeeperStop, LocalRank, MemberEvent, SpawnFailure, WorkerExit,
    WorkerObservation, WorkerState,
};
use steadfast_process::exit::Exit;

use crate::keeper::protocol::{Welcome, WorkerView};

/// How the core names the end of a process.
pub(super) fn worker_exit(exit: Exit) -> WorkerExit {
    match exit {
        Exit::Code(code) => WorkerExit::Code(code),
        Exit::Signal { signal, .. } => WorkerExit::Signal(signal),
    }
}

/// The first event for the member.
pub(super) fn resume(welcome: &Welcome, next_port: u16) -> MemberEvent {
    let generation = welcome
        .workers
        .first()
        .map_or(0, |worker| worker.generation);
    let began = welcome.stop_began_ns.filter(|_| generation > 0);
    MemberEvent::Resume {
        workers: welcome.workers.iter().map(observation).collect(),
        stopping: began.map(|began| KeeperStop {
            generation: Generation(generation),
            began: Instant::from_nanos(began),
        }),
        next_port,
    }
}

fn observation(worker: &WorkerView) -> WorkerObservation {
    let local_rank = LocalRank(worker.local_rank);
    let state = match (worker.exit, &worker.spawn_error) {
        (None, _) => WorkerState::Alive,
        (Some(exit), Some(message)) => {
            WorkerState::SpawnFailed(spawn_failure(local_rank, message, exit))
        }
        (Some(exit), None) => WorkerState::Exited {
            exit: worker_exit(exit),
            at: Instant::from_nanos(worker.ended_ns.unwrap_or(worker.started_ns)),
            finding: None,
        },
    };
    WorkerObservation {
        generation: Generation(worker.generation),
        local_rank,
        state,
    }
}

/// A worker whose program never ran. The program was there when the job was checked, so it may come back, but nothing
/// that we do brings it.
pub(super) fn spawn_failure(local_rank: LocalRank, message: &str, exit: Exit) -> SpawnFailure {
    let certain =
        message.starts_with("could not execute") || message.starts_with("could not enter");
    SpawnFailure {
        local_rank,
        message: message.to_owned(),
        certain,
        exit_code: Some(exit.shell_code()),
    }
}
