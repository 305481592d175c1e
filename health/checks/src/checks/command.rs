// SPDX-License-Identifier: Apache-2.0
//! Programs of the site's own, which answer in the manner of Nagios.

use std::time::Instant;

use crate::outcome::{Outcome, Status};
use crate::outside::{How, Outside, Work, in_time_for};

const NEXT: &str = "see what the command looks at";
/// Lines of output that are kept.
const MOST_LINES: usize = 20;

/// Runs the program. Its exit code decides: 0 is well, 1 a warning, 2 a failure, 3 unknown; with all others, and when it is
/// too slow, the check itself is broken.
pub(crate) fn look(outside: &dyn Outside, words: &[String], until: Instant) -> Outcome {
    let work = Work::Command {
        words: words.to_vec(),
    };
    let ended = outside.run(&work, in_time_for(until));
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    // What stands behind the bar is for machines.
    let first = output.lines().next().unwrap_or_default();
    let first = first.split('|').next().unwrap_or_default().trim();
    let said = if first.is_empty() {
        "it said nothing"
    } else {
        first
    };
    let mut outcome = Outcome::default();
    match &ended.how {
        How::Exited(0) => said.clone_into(&mut outcome.fine),
        How::Exited(1) => outcome.warn(said, NEXT),
        How::Exited(2) => outcome.fail(said, NEXT),
        How::Exited(3) => outcome.unsure(said),
        How::Exited(code) => {
            let text = format!("it ended with code {code}, which is none of 0 to 3");
            outcome.add(Status::Broken, text, None);
        }
        How::Killed(signal) => {
            outcome.add(
                Status::Broken,
                format!("it was ended by signal {signal}"),
                None,
            );
        }
        How::TimedOut { .. } => {
            outcome.add(
                Status::Broken,
                "it did not end in time, and was killed",
                None,
            );
        }
        How::NotStarted(why) => {
            outcome.add(
                Status::Broken,
                format!("it could not be started: {why}"),
                None,
            );
        }
        How::Earlier { .. } => {
            outcome.add(Status::Broken, "an earlier one has not ended", None);
        }
    }
    for line in output
        .lines()
        .skip(1)
        .chain(errors.lines())
        .take(MOST_LINES)
    {
        outcome.evidence(line);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::outside::{Ended, How};
    use crate::testing::Made;

    fn ended(how: How, stdout: &str) -> Ended {
        Ended {
            how,
            stdout: stdout.into(),
            stderr: b"a hint\n".to_vec(),
        }
    }

    #[test]
    fn the_exit_code_decides_and_everything_else_is_broken() {
        let hangs = How::TimedOut {
            pid: 1,
            state: 'S',
            waits_in: None,
        };
        for (how, status, said) in [
            (How::Exited(0), Status::Ok, "OK - all well"),
            (How::Exited(1), Status::Warn, "OK - all well"),
            (How::Exited(2), Status::Fail, "OK - all well"),
            (How::Exited(3), Status::Unknown, "OK - all well"),
            (How::Exited(127), Status::Broken, "code 127"),
            (How::Killed(11), Status::Broken, "signal 11"),
            (hangs, Status::Broken, "in time"),
            (
                How::NotStarted("no such file".to_owned()),
                Status::Broken,
                "no such file",
            ),
        ] {
            let made = Made::empty()
                .command(ended(how, "OK - all well | load=3\nmore\n"))
                .settings("[command.own]\nrun = \"check_own\"");
            let result = made.expect("own", status, said);
            assert_eq!(result.evidence, ["more", "a hint"]);
        }
    }

    #[test]
    fn one_that_says_nothing_is_told_by_its_code() {
        let made = Made::empty()
            .command(ended(How::Exited(2), ""))
            .settings("[command.own]\nrun = \"check_own\"");
        made.expect("own", Status::Fail, "it said nothing");
    }
}
