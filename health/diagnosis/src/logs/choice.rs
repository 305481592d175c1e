// SPDX-License-Identifier: Apache-2.0
//! The strongest of the earliest.

use super::Candidate;

/// Within that many seconds of the first, what says more goes before what came earlier: clocks and buffers are no better.
const WINDOW_S: f64 = 3.0;

/// The cause, if there is any candidate.
pub(super) fn choose(mut candidates: Vec<Candidate>) -> Option<Candidate> {
    if candidates.iter().any(|candidate| !candidate.is_thin()) {
        candidates.retain(|candidate| !candidate.is_thin());
    }
    let earliest = |is_timed: bool| {
        let timed = candidates
            .iter()
            .filter(|candidate| candidate.is_timed || !is_timed);
        let dated = timed
            .filter_map(|candidate| candidate.at)
            .filter(|at| at.is_dated);
        dated.map(|at| at.seconds).reduce(f64::min)
    };
    // What only has the time of an earlier line happened then at the earliest.
    if let Some(first) = earliest(true).or_else(|| earliest(false)) {
        let late = |candidate: &Candidate| {
            candidate
                .at
                .is_some_and(|at| at.is_dated && at.seconds > first + WINDOW_S)
        };
        candidates.retain(|candidate| !late(candidate));
    }
    candidates.into_iter().reduce(|best, other| {
        let earlier = match (best.at, other.at) {
            (Some(best), Some(other)) => other.since(best).is_some_and(|later| later < 0.0),
            _ => false,
        };
        let better = other.strength > best.strength || (other.strength == best.strength && earlier);
        if better { other } else { best }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Class;
    use crate::clock::Moment;

    fn candidate(strength: u8, at: Option<f64>) -> Candidate {
        Candidate {
            at: at.map(|seconds| Moment {
                seconds,
                is_dated: true,
            }),
            ..Candidate::new("x", Class::Unknown, strength, "x")
        }
    }

    #[test]
    fn the_strongest_of_the_earliest_is_chosen() {
        let chosen = |list: &[(u8, Option<f64>)]| {
            let list = list.iter().map(|&(strength, at)| candidate(strength, at));
            choose(list.collect()).map(|chosen| chosen.strength)
        };
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[(90, Some(100.0)), (70, Some(10.0))]), Some(70));
        assert_eq!(chosen(&[(90, Some(11.0)), (70, Some(10.0))]), Some(90));
        assert_eq!(chosen(&[(90, Some(11.0)), (50, Some(1.0))]), Some(90));
        assert_eq!(chosen(&[(80, None), (70, Some(10.0))]), Some(80));
    }
}
