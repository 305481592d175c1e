// SPDX-License-Identifier: Apache-2.0
//! Talking to Slurm's controller, through `scontrol`.
//!
//! Words go to it as arguments, never through a shell, and each call has a deadline.

mod job;
mod node;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use steadfast_process::exit::Exit;
use steadfast_process::spawn::find_program;

pub(crate) use self::job::{JobState, JobView};
pub(crate) use self::node::{NodeView, REASON_PREFIX};
use crate::program_call::{CallError, ProgramCall};

/// Where `scontrol` is looked for when there is no `PATH`, as in the programs that slurmd starts.
const USUAL_PLACES: &str =
    "/usr/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin:/opt/slurm/current/bin:/bin";
/// The longest reason that is handed over, in bytes.
const LONGEST_REASON: usize = 250;

/// How `scontrol` is run.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
    patience: Duration,
}

/// Why the controller could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControllerError {
    /// There is no such program.
    #[error("`{}` was not found in {}", program.display(), places.display())]
    NoProgram {
        /// What was looked for.
        program: OsString,
        /// Where.
        places: OsString,
    },
    /// The program gave no answer.
    #[error("`{command}` failed")]
    Call {
        /// What was run.
        command: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The controller does not want it.
    #[error("`{command}` was refused: {answer}")]
    Refused {
        /// What was run.
        command: String,
        /// What it said.
        answer: String,
    },
    /// The answer cannot be understood.
    #[error("`{command}` answered something else than expected: {answer}")]
    Answer {
        /// What was run.
        command: String,
        /// The beginning of what it said.
        answer: String,
    },
}

impl Controller {
    /// Finds `scontrol`: `program` is a name or a path, `environment` is what slurmd or a user has given this process.
    pub(crate) fn find(
        program: &OsStr,
        environment: Vec<(OsString, OsString)>,
        patience: Duration,
    ) -> Result<Controller, ControllerError> {
        let path = environment
            .iter()
            .find(|(name, value)| name == "PATH" && !value.is_empty());
        let places = path.map_or_else(|| USUAL_PLACES.into(), |(_, value)| value.clone());
        let found = find_program(program, &places).map_err(|_| ControllerError::NoProgram {
            program: program.to_owned(),
            places: places.clone(),
        })?;
        Ok(Controller {
            program: found,
            environment,
            patience,
        })
    }

    /// How a node is.
    pub(crate) fn node(&self, name: &str) -> Result<NodeView, ControllerError> {
        let arguments = ["show", "node", name];
        let answer = self.call(&arguments)?;
        NodeView::parse(&answer).ok_or_else(|| strange(&arguments, &answer))
    }

    /// Takes a node out of service once its jobs have ended. `reason` is one sentence; the prefix is put before it.
    pub(crate) fn drain(&self, node: &str, reason: &str) -> Result<(), ControllerError> {
        let node = format!("NodeName={node}");
        let reason = format!("Reason={REASON_PREFIX}{}", one_line(reason));
        self.call(&["update", &node, "State=DRAIN", &reason])
            .map(drop)
    }

    /// Takes a node into service again.
    pub(crate) fn resume(&self, node: &str) -> Result<(), ControllerError> {
        let node = format!("NodeName={node}");
        self.call(&["update", &node, "State=RESUME"]).map(drop)
    }

    /// How a job is; `None` when the controller does not know it (any more).
    pub(crate) fn job(&self, id: &str) -> Result<Option<JobView>, ControllerError> {
        let arguments = ["show", "job", id];
        match self.call(&arguments) {
            Ok(answer) => JobView::parse(&answer)
                .map(Some)
                .ok_or_else(|| strange(&arguments, &answer)),
            Err(ControllerError::Refused { answer, .. }) if answer.contains("Invalid job id") => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a job and puts it back into the queue.
    pub(crate) fn requeue(&self, id: &str) -> Result<(), ControllerError> {
        self.call(&["requeue", id]).map(drop)
    }

    /// Lets a job that waits for its time start as soon as there is room.
    pub(crate) fn start_now(&self, id: &str) -> Result<(), ControllerError> {
        let job = format!("JobId={id}");
        self.call(&["update", &job, "StartTime=now"]).map(drop)
    }

    fn call(&self, arguments: &[&str]) -> Result<String, ControllerError> {
        let words: Vec<OsString> = arguments.iter().map(Into::into).collect();
        let command = || shown(arguments);
        let answer = ProgramCall {
            program: &self.program,
            arguments: &words,
            environment: &self.environment,
            patience: self.patience,
        }
        .run()
        .map_err(|source| ControllerError::Call {
            command: command(),
            source,
        })?;
        match answer.exit {
            Exit::Code(0) => Ok(answer.output),
            exit => Err(ControllerError::Refused {
                command: command(),
                answer: if answer.output.trim().is_empty() {
                    format!("it ended with {}", exit.shell_code())
                } else {
                    one_line(&answer.output)
                },
            }),
        }
    }
}

/// What was run, for people.
fn shown(arguments: &[&str]) -> String {
    format!("scontrol {}", arguments.join(" "))
}

fn strange(arguments: &[&str], answer: &str) -> ControllerError {
    ControllerError::Answer {
        command: shown(arguments),
        answer: one_line(answer),
    }
}

/// The text without what would end a line or a word too early, cut to what fits into a reason.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LONGEST_REASON));
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        let length = line.len() + word.len() + 1;
        if word.is_empty() {
            continue;
        }
        if length > LONGEST_REASON {
            line.push_str(" ...");
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        // A quote at either end would be taken off by scontrol.
        line.extend(word.chars().map(|c| if c == '"' { '\'' } else { c }));
    }
    line
}

#[cfg(test)]
mod tests;
