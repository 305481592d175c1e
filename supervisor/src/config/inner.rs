// SPDX-License-Identifier: Apache-2.0
//! Launchers inside the wrapped command that have a restart loop of their own.
//!
//! Two loops that both restart the same workers fight: the inner one restarts half a job that the outer one is
//! stopping. So at most one of them is ever armed.

mod meeting;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::error::ConfigError;
use super::nodes;
use super::option::Key;
use super::values::{Origin, Value, Values};
use crate::settings::InnerLauncher;
use crate::torchrun;

/// Recognises a launcher in `argv` and sees to it that one restart loop at most is armed: where the launcher's own is
/// asked for, ours is switched off, unless ours was asked for as explicitly.
pub(crate) fn disarm_one_loop(
    argv: &[OsString],
    values: &mut Values,
    notes: &mut Vec<String>,
) -> Result<Option<InnerLauncher>, ConfigError> {
    let Some((launcher, arguments)) = recognise(argv) else {
        return Ok(None);
    };
    if let Some(workers) = values
        .text(Key::NprocPerNode)
        .filter(|workers| workers.trim() != "1")
    {
        notes.push(format!(
            "{launcher} starts workers itself, and `--nproc-per-node {workers}` starts it more than once: give the \
             number to {launcher} alone, or use `steadfast torchrun`"
        ));
    }
    if nodes::meets_others(values)? {
        meeting::check(launcher, arguments, values, notes)?;
    }
    let Some((spelled, count)) = own_restarts(launcher, arguments) else {
        return Ok(Some(launcher));
    };
    let ours = values
        .text(Key::MaxRestarts)
        .and_then(|text| text.trim().parse::<u32>().ok());
    if ours == Some(0) {
        return Ok(Some(launcher));
    }
    if values.is_explicit(Key::MaxRestarts) {
        return Err(ConfigError::TwoRestartLoops {
            outer: values.given(Key::MaxRestarts),
            inner: spelled,
            launcher: launcher.to_string(),
        });
    }
    notes.push(format!(
        "{launcher} restarts its workers itself, {count} times at most (`{spelled}`): steadfast will not restart the \
         job; leave that option out to have steadfast do it"
    ));
    values.set(
        Key::MaxRestarts,
        Value {
            text: "0".to_owned(),
            origin: Origin::Default,
        },
    );
    Ok(Some(launcher))
}

/// The launcher that `argv` starts, and the arguments that it gets.
fn recognise(argv: &[OsString]) -> Option<(InnerLauncher, &[OsString])> {
    let argv = without_env(argv);
    let (program, arguments) = argv.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    match name {
        "torchrun" => Some((InnerLauncher::Torchrun, arguments)),
        "ft_launcher" => Some((InnerLauncher::FtLauncher, arguments)),
        "accelerate" => match arguments.split_first() {
            Some((word, rest)) if word == "launch" => Some((InnerLauncher::Accelerate, rest)),
            _ => None,
        },
        name if name.starts_with("python") => {
            let at = arguments.iter().position(|argument| argument == "-m")?;
            // Only the interpreter's own flags may come before `-m`; after a script it is the script's.
            if !arguments[..at]
                .iter()
                .all(|argument| argument.to_string_lossy().starts_with('-'))
            {
                return None;
            }
            let launcher = match arguments.get(at + 1)?.to_str()? {
                "torch.distributed.run" | "torch.distributed.elastic.run" => {
                    InnerLauncher::Torchrun
                }
                "torch.distributed.launch" => InnerLauncher::TorchDistributedLaunch,
                "accelerate.commands.launch" => InnerLauncher::Accelerate,
                _ => return None,
            };
            Some((launcher, &arguments[at + 2..]))
        }
        _ => None,
    }
}

/// What comes after `env NAME=VALUE ...`.
fn without_env(argv: &[OsString]) -> &[OsString] {
    match argv.split_first() {
        Some((program, rest)) if Path::new(program).file_name() == Some(OsStr::new("env")) => {
            let start = rest
                .iter()
                .position(|word| !word.to_string_lossy().contains('='))
                .unwrap_or(rest.len());
            &rest[start..]
        }
        _ => argv,
    }
}

/// The launcher's own restart count and how it is written, if it is above 0.
fn own_restarts(launcher: InnerLauncher, arguments: &[OsString]) -> Option<(String, u32)> {
    let found = match launcher {
        InnerLauncher::Torchrun => torchrun::max_restarts(arguments).or_else(|| scan(arguments)),
        _ => scan(arguments),
    };
    found.filter(|(_, count)| *count > 0)
}

/// Looks for the flag in arguments whose grammar is not known here, up to what looks like the script.
fn scan(arguments: &[OsString]) -> Option<(String, u32)> {
    let texts: Vec<String> = arguments
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .take_while(|argument| Path::new(argument).extension() != Some(OsStr::new("py")))
        .collect();
    let mut found = None;
    for (at, text) in texts.iter().enumerate() {
        let (flag, inline) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (text.as_str(), None),
        };
        if !matches!(flag, "--max-restarts" | "--max_restarts") {
            continue;
        }
        let value = inline.or_else(|| texts.get(at + 1).map(String::as_str));
        if let Some(count) = value.and_then(|value| value.parse().ok()) {
            found = Some((format!("{flag} {count}"), count));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognised(line: &str) -> Option<(InnerLauncher, Option<u32>)> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (launcher, arguments) = recognise(&argv)?;
        Some((
            launcher,
            own_restarts(launcher, arguments).map(|(_, count)| count),
        ))
    }

    #[test]
    fn launchers_and_their_restarts_are_seen() {
        use InnerLauncher::{Accelerate, FtLauncher, TorchDistributedLaunch, Torchrun};
        for (line, expected) in [
            (
                "torchrun --max-restarts 3 train.py",
                Some((Torchrun, Some(3))),
            ),
            (
                "/opt/bin/torchrun --max-rest=2 train.py",
                Some((Torchrun, Some(2))),
            ),
            ("torchrun train.py --max-restarts 3", Some((Torchrun, None))),
            ("torchrun --max_restarts=0 train.py", Some((Torchrun, None))),
            (
                "env A=1 B=2 torchrun --max_restarts=4 train.py",
                Some((Torchrun, Some(4))),
            ),
            (
                "python3 -u -m torch.distributed.run --max-restarts=1 x.py",
                Some((Torchrun, Some(1))),
            ),
            (
                "python -m torch.distributed.launch --use-env x.py",
                Some((TorchDistributedLaunch, None)),
            ),
            (
                "ft_launcher --ft-x 1 --max-restarts 5 t.py --max-restarts 9",
                Some((FtLauncher, Some(5))),
            ),
            (
                "accelerate launch --max_restarts 2 t.py",
                Some((Accelerate, Some(2))),
            ),
            ("accelerate config", None),
            ("python train.py -m torch.distributed.run", None),
            ("python train.py", None),
        ] {
            assert_eq!(recognised(line), expected, "{line}");
        }
    }
}
