// SPDX-License-Identifier: Apache-2.0
//! From time to time: a sick node is drained, and one that was drained here is resumed when it is well again.
//!
//! Slurm ignores how this program ends. The controller is asked only where there is something to change: on a node that is
//! sick, or that was drained here, or of which nothing is known yet since the machine started.

use steadfast_checks::Profile;

use super::decision::{Found, Memory};
use super::memory::LockedMemory;
use super::verdict::{Powers, carry_out};
use super::{Run, Told, look};

pub(super) fn run(run: &Run) -> Told {
    let mut found = Found::default();
    if let Some(faults) = look::kernel_log(run, &mut found) {
        faults.problems(None, &mut found);
    }
    look::checks(run, Profile::Health, None, &mut found);
    let powers = match (run.site.health.drain, run.site.health.resume) {
        (true, true) => Powers::Both,
        (true, false) => Powers::Drain,
        (false, true) => Powers::Resume,
        (false, false) => {
            say_all(run, &found);
            return Told::Fine;
        }
    };
    let memory = match LockedMemory::lock(&run.site.state_dir, &run.surroundings.node) {
        Ok(memory) => memory,
        Err(error) => {
            run.log.say_error("nothing is decided", &error);
            return Told::Fine;
        }
    };
    let remembered = memory.read();
    look::still_stuck(&remembered, &mut found);
    say_all(run, &found);
    let is_known = memory.unchanged_for().is_some();
    if is_known && found.problems.is_empty() && remembered == Memory::default() {
        return Told::Fine;
    }
    if let Err(error) = carry_out(run, &memory, &found, powers) {
        run.log.say_error("nothing is changed", &error);
    }
    Told::Fine
}

fn say_all(run: &Run, found: &Found) {
    for problem in found.problems.values() {
        run.log.whisper(&problem.text);
    }
    for why in found.unknown.values() {
        run.log.whisper(why);
    }
}
