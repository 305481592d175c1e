// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast hostlist`.

use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt as _;

use super::compress::compress;
use super::error::HostListError;
use super::{HostList, MAX_HOSTS};
use crate::exit_code::ExitCode;

/// The most bytes that are read from standard input: room for [`MAX_HOSTS`] names of 64 bytes.
const MAX_INPUT: usize = MAX_HOSTS * 64;

/// Exit code when the input cannot be read or the answer cannot be written.
const FAILED: u8 = 1;

/// What `steadfast hostlist` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The lists, at least one; `-` stands for the one on standard input.
    pub(crate) lists: Vec<OsString>,
    /// How the hosts are to be written.
    pub(crate) form: Form,
}

/// How hosts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each on its line.
    Lines,
    /// An array of strings in JSON.
    Json,
    /// A host list.
    HostList,
}

/// Why there is no answer, or not the whole of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    List(#[from] HostListError),
    #[error("cannot read the host list from standard input: {0}")]
    Read(io::Error),
    #[error("the host list on standard input is longer than {MAX_INPUT} bytes")]
    LongInput,
    #[error("cannot write the hosts to standard output: {0}")]
    Write(io::Error),
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    match answer(request, io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => ExitCode::Success as u8,
        Err(error) => {
            // There is nowhere left to say that standard error cannot be written.
            drop(io::stderr().write_all(error.render().as_bytes()));
            error.code()
        }
    }
}

/// Reads every list before anything is written.
pub(super) fn answer(
    request: &Request,
    mut input: impl Read,
    output: impl Write,
) -> Result<(), CommandError> {
    let mut room = MAX_HOSTS;
    let mut lists = Vec::new();
    for word in &request.lists {
        let list = if word == "-" {
            HostList::parse(&read(&mut input)?, room)?
        } else {
            HostList::parse(word.as_bytes(), room)?
        };
        room -= list.len();
        lists.push(list);
    }
    let mut output = BufWriter::new(output);
    let hosts = lists.iter().flat_map(HostList::hosts);
    match write(request.form, hosts, &mut output).and_then(|()| output.flush()) {
        // A reader that went away (`| head`) is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(CommandError::Write),
    }
}

fn read(input: &mut impl Read) -> Result<Vec<u8>, CommandError> {
    let mut list = Vec::new();
    input
        .take(MAX_INPUT as u64 + 1)
        .read_to_end(&mut list)
        .map_err(CommandError::Read)?;
    if list.len() > MAX_INPUT {
        return Err(CommandError::LongInput);
    }
    Ok(list)
}

fn write(
    form: Form,
    mut hosts: impl Iterator<Item = String>,
    output: &mut impl Write,
) -> io::Result<()> {
    match form {
        Form::Lines => hosts.try_for_each(|host| writeln!(output, "{host}")),
        Form::Json => {
            for (index, host) in hosts.enumerate() {
                output.write_all(if index == 0 { b"[" } else { b"," })?;
                serde_json::to_writer(&mut *output, &host)?;
            }
            output.write_all(b"]\n")
        }
        Form::HostList => writeln!(output, "{}", compress(hosts)),
    }
}

impl CommandError {
    /// The message and the hint, as they go to standard error.
    pub(super) fn render(&self) -> String {
        let hint = match self {
            Self::List(error) => error.hint(),
            _ => None,
        };
        match hint {
            Some(hint) => format!("error: {self}\n\nhint: {hint}\n"),
            None => format!("error: {self}\n"),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::List(_) | Self::LongInput => ExitCode::Configuration as u8,
            Self::Read(_) | Self::Write(_) => FAILED,
        }
    }
}
