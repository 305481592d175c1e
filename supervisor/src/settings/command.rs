// SPDX-License-Identifier: Apache-2.0
//! What a worker runs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The program of the workers and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerCommand {
    /// Absolute path of the program; it was there and executable when the settings were made.
    pub(crate) program: PathBuf,
    /// The whole argument vector, `argv[0]` (the program as it was written) included.
    pub(crate) argv: Vec<OsString>,
    /// Whether `${local_rank}` in an argument stands for the worker's local rank, as it does under torchrun.
    pub(crate) substitute_local_rank: bool,
}

/// A launcher that the wrapped command starts and that has a restart loop of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InnerLauncher {
    /// `torchrun` or `python -m torch.distributed.run`.
    Torchrun,
    /// `python -m torch.distributed.launch`.
    TorchDistributedLaunch,
    /// `ft_launcher`.
    FtLauncher,
    /// `accelerate launch`.
    Accelerate,
}

impl WorkerCommand {
    /// The argument vector of the worker with this local rank.
    pub(crate) fn argv_for(&self, local_rank: u32) -> Vec<OsString> {
        if !self.substitute_local_rank {
            return self.argv.clone();
        }
        let rank = local_rank.to_string();
        let mut argv = self.argv.clone();
        for argument in argv.iter_mut().skip(1) {
            *argument = substitute(argument, rank.as_bytes());
        }
        argv
    }
}

impl fmt::Display for InnerLauncher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::TorchDistributedLaunch => "torch.distributed.launch",
            Self::FtLauncher => "ft_launcher",
            Self::Accelerate => "accelerate launch",
        })
    }
}

/// Does what Python's `Template.safe_substitute` does for torchrun: `${local_rank}` and `$local_rank` become the
/// rank, `$$` becomes `$`, and everything else stays.
fn substitute(argument: &OsStr, rank: &[u8]) -> OsString {
    let mut rest = argument.as_bytes();
    let mut result = Vec::with_capacity(rest.len());
    while let Some(at) = memchr::memchr(b'$', rest) {
        result.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let name = rest[1..]
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        let (taken, value): (usize, &[u8]) = if rest.starts_with(b"$$") {
            (2, b"$")
        } else if rest.starts_with(b"${local_rank}") {
            (b"${local_rank}".len(), rank)
        } else if &rest[1..=name] == b"local_rank" {
            (1 + name, rank)
        } else {
            (1, b"$")
        };
        result.extend_from_slice(value);
        rest = &rest[taken..];
    }
    result.extend_from_slice(rest);
    OsString::from_vec(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_rank_is_put_in_as_torchrun_does() {
        for (argument, expected) in [
            ("--gpu=${local_rank}", "--gpu=12"),
            ("${local_rank}:${local_rank}", "12:12"),
            ("$local_rank/x", "12/x"),
            ("$local_ranks", "$local_ranks"),
            ("$$local_rank $5 ${other} $", "$local_rank $5 ${other} $"),
            ("plain", "plain"),
        ] {
            assert_eq!(
                substitute(argument.as_ref(), b"12"),
                OsString::from(expected),
                "{argument}"
            );
        }
    }

    #[test]
    fn only_torchrun_mode_substitutes() {
        let mut command = WorkerCommand {
            program: "/bin/echo".into(),
            argv: vec!["${local_rank}".into(), "${local_rank}".into()],
            substitute_local_rank: false,
        };
        assert_eq!(command.argv_for(3), command.argv);
        command.substitute_local_rank = true;
        assert_eq!(command.argv_for(3), ["${local_rank}", "3"]);
    }
}
