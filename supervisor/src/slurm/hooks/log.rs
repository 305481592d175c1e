// SPDX-License-Identifier: Apache-2.0
//! What the hooks say: a file of their own, since Slurm keeps what a hook prints only when it fails.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::clock;
use crate::console_line;

/// Where one run of a hook writes.
#[derive(Clone, Debug)]
pub(crate) struct HookLog {
    file: Option<std::path::PathBuf>,
    who: String,
}

impl HookLog {
    /// `who` is the hook and what it is about, such as `n1 epilog job 71`.
    pub(crate) fn new(file: &Path, who: String) -> HookLog {
        let directory = file.parent().map(fs::create_dir_all);
        let usable = !matches!(directory, Some(Err(_))) && !file.as_os_str().is_empty();
        HookLog {
            file: usable.then(|| file.to_owned()),
            who,
        }
    }

    /// Says one thing, in the file and to whoever listens to standard error.
    pub(crate) fn say(&self, text: &str) {
        console_line::say(&format!("{}: {text}", self.who));
        let Some(file) = &self.file else { return };
        let time = jiff::Timestamp::from_millisecond(clock::wall_ms()).unwrap_or_default();
        let text = text.replace(['\n', '\r'], " ");
        let line = format!("{time:.0} {}: {text}\n", self.who);
        // One write, so that hooks that run at once do not mix their lines. Standard error has it as well.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            console_line::say(&format!("cannot write to {}: {error}", file.display()));
        }
    }

    /// Says what would only repeat itself in the file.
    pub(crate) fn whisper(&self, text: &str) {
        console_line::say(&format!("{}: {text}", self.who));
    }

    /// Says an error with all that led to it.
    pub(crate) fn say_error(&self, what: &str, error: &dyn std::error::Error) {
        let mut text = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        self.say(&text);
    }
}
