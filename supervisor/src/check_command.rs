// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast check`: makes the checks of a node, and says what they have found.

mod child;
mod destination;
mod guard;
mod inquiry;
mod lock;
mod outside;
mod work;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_checks::{
    Node, PastFaults, Plan, Report, Settings, SettingsError, UnknownCheck, show,
};

pub(crate) use self::guard::Silence;
pub(crate) use self::inquiry::{ConfigFile, Given, Inquiry};
pub(crate) use self::work::run as do_work;

use self::destination::Destination;
use self::outside::Processes;
use crate::clock;
use crate::exit_code::ExitCode;
use crate::fault_book::FaultBook;

/// Exit code when the report cannot be written.
const FAILED: u8 = 1;

/// What `steadfast check` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What is to be done.
    pub(crate) subject: Subject,
    /// How the answer is written.
    pub(crate) form: Form,
    /// Where the answer goes; absent for standard output.
    pub(crate) output: Option<PathBuf>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Explain all checks.
    List,
    /// Make them.
    Node(Box<Inquiry>),
}

/// How the answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text {
        /// With evidence and times.
        verbose: bool,
        /// Colour is not wanted, whoever reads it.
        plain: bool,
    },
    /// One JSON object.
    Json,
    /// Metrics.
    Prometheus,
    /// One line, and exit codes from 0 to 3.
    Nagios,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A check that does not exist was named.
    #[error(transparent)]
    Unknown(#[from] UnknownCheck),
    /// The process that makes the checks says one of these two.
    #[error("{0}")]
    Refused(String),
    /// That process has no answer. This is a failure of our own: it must keep no jobs away.
    #[error(transparent)]
    Silent(#[from] Silence),
    /// The answer cannot be put into its form.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The answer cannot be written.
    #[error("cannot write to {to}: {reason}")]
    Write {
        /// Where.
        to: String,
        /// Why.
        reason: std::io::Error,
    },
}

/// Exit code of a plugin of Nagios that knows nothing.
const NAGIOS_UNKNOWN: u8 = 3;

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    let error = match answer(request) {
        Ok(code) => return code,
        Err(error) => error,
    };
    // There is nowhere left to say that standard error cannot be written.
    drop(writeln!(std::io::stderr(), "error: {error}"));
    match error {
        CheckError::Silent(silence) if request.form == Form::Nagios => {
            drop(writeln!(std::io::stdout(), "STEADFAST UNKNOWN - {silence}"));
            NAGIOS_UNKNOWN
        }
        CheckError::Silent(_) => ExitCode::Success as u8,
        CheckError::Settings(_) | CheckError::Unknown(_) | CheckError::Refused(_) => {
            ExitCode::Configuration as u8
        }
        CheckError::Json(_) | CheckError::Write { .. } => FAILED,
    }
}

fn answer(request: &Request) -> Result<u8, CheckError> {
    let destination = Destination::new(request.output.as_deref());
    let inquiry = match &request.subject {
        Subject::Node(inquiry) => inquiry,
        Subject::List => {
            let text = match request.form {
                Form::Json => show::list_json()?,
                _ => show::list(),
            };
            destination.write(&text)?;
            return Ok(ExitCode::Success as u8);
        }
    };
    let report = check(inquiry)?;
    let text = match request.form {
        Form::Text { verbose, plain } => {
            let colour = !plain && request.output.is_none() && std::io::stdout().is_terminal();
            show::text(&report, colour, verbose)
        }
        Form::Json => show::json(&report)?,
        Form::Prometheus => show::prometheus(&report, wall_clock()),
        Form::Nagios => show::nagios(&report),
    };
    destination.write(&text)?;
    Ok(match request.form {
        Form::Nagios => show::nagios_exit_code(&report),
        _ if report.is_fit() => ExitCode::Success as u8,
        _ => ExitCode::Node as u8,
    })
}

/// Makes the checks, in a process of their own. Returns soon after the limit of the profile at the latest, whatever hangs, and
/// leaves nothing open behind that was open here.
///
/// # Errors
///
/// When the configuration is wrong, when a check is named that there is not, and when the process has no answer
/// ([`CheckError::Silent`]), which must keep no jobs away.
pub(crate) fn check(inquiry: &Inquiry) -> Result<Report, CheckError> {
    guard::check(inquiry)
}

/// The same in this very process.
fn check_here(inquiry: &Inquiry) -> Result<Report, CheckError> {
    let settings = match &inquiry.config {
        ConfigFile::Named(file) => Settings::read(file)?,
        ConfigFile::IfThere(file) => Settings::read_if_there(file)?,
    };
    let processes = Processes::new(inquiry.profile).map_err(Silence::NotStarted)?;
    let mut node = Node::here(&inquiry.node, Arc::new(processes));
    node.root.clone_from(&inquiry.root);
    node.state.clone_from(&inquiry.state);
    node.nvml.clone_from(&inquiry.nvml);
    node.gpus.clone_from(&inquiry.gpus);
    node.past_faults = past_faults(&FaultBook::read(&inquiry.gpu_faults));
    let plan = Plan::new(inquiry.profile, settings, node);
    Ok(plan.only(&inquiry.only)?.skip(&inquiry.skip)?.run())
}

fn past_faults(book: &FaultBook) -> BTreeMap<String, PastFaults> {
    let now_ms = clock::wall_ms();
    book.all()
        .map(|(uuid, score)| {
            let faults = PastFaults {
                hundredths: score.weight_at(now_ms) / 10,
                last: format!("{} on {}", score.last, score.node),
            };
            (uuid.to_owned(), faults)
        })
        .collect()
}

fn wall_clock() -> Duration {
    Duration::from_millis(u64::try_from(clock::wall_ms()).unwrap_or(0))
}
