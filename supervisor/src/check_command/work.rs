// SPDX-License-Identifier: Apache-2.0
//! The side of the processes that do work for checks: the same binary again.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use steadfast_checks::{Work, probe_mount};
use steadfast_health::nvml::{SnapshotLine, snapshot};

use super::guard;
use crate::cli::CHECK_WORK;

/// Exit code for a line that is not understood.
const MISUSED: u8 = 64;

const WHOLE: &str = "whole";
const NVML: &str = "nvml";
const MOUNT: &str = "mount";
const WRITE: &str = "write";
const READ: &str = "read";

/// What stands on the command line for this work, after the program's name; none for a command, which is not ours.
pub(super) fn arguments(work: &Work) -> Vec<OsString> {
    let own = |words: [&str; 2]| words.map(OsString::from).to_vec();
    match work {
        Work::Nvml { library, .. } => {
            let mut words = own([CHECK_WORK, NVML]);
            words.extend(library.iter().map(|path| path.clone().into_os_string()));
            words
        }
        Work::Mount { path, write } => {
            let mut words = own([CHECK_WORK, MOUNT]);
            words.push(if *write { WRITE } else { READ }.into());
            words.push(path.clone().into_os_string());
            words
        }
        Work::Command { .. } => Vec::new(),
    }
}

/// What stands on the command line of a process that makes all checks.
pub(super) fn whole() -> Vec<OsString> {
    ["steadfast", CHECK_WORK, WHOLE]
        .map(OsString::from)
        .to_vec()
}

/// Does the work that the arguments name, and says on standard output what came of it.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    // For `ps` and `top`.
    let _only_a_name = nix::sys::prctl::set_name(c"steadfast-check");
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    match (words.first().copied(), arguments) {
        (Some(WHOLE), [_]) => return guard::inside(),
        (Some(NVML), [_, library @ ..]) => {
            let library = library.first().map(PathBuf::from);
            snapshot(library.as_deref(), &tell);
        }
        (Some(MOUNT), [_, mode, path]) => {
            let answer = probe_mount(Path::new(path), mode == WRITE);
            if let Ok(text) = serde_json::to_vec(&answer) {
                say(&text);
            }
        }
        _ => return MISUSED,
    }
    0
}

fn tell(line: &SnapshotLine) {
    if let Ok(mut text) = serde_json::to_vec(line) {
        text.push(b'\n');
        say(&text);
    }
}

/// In one piece: several threads speak.
fn say(text: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    // Whoever asked may be gone. Then this process ends by itself when its calls have returned, and not in their midst: a
    // driver can take that badly.
    let _unheard = stdout.write_all(text).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_on_the_line_is_what_is_done() {
        let work = Work::Mount {
            path: "/nonexistent".into(),
            write: true,
        };
        assert_eq!(
            arguments(&work),
            ["__check", "mount", "write", "/nonexistent"]
        );
        let work = Work::Nvml {
            library: Some("/lib/x.so".into()),
            lock: None,
        };
        assert_eq!(arguments(&work), ["__check", "nvml", "/lib/x.so"]);
    }

    #[test]
    fn a_line_that_is_not_understood_is_refused() {
        for words in [&[][..], &["sing"], &["mount"], &["mount", "read"]] {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            assert_eq!(run(&words), MISUSED, "{words:?}");
        }
    }
}
