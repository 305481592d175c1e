// SPDX-License-Identifier: Apache-2.0
//! Before each task, as the job's user: variables for the task, in the form that slurmstepd reads
//! (`export NAME=value`, the value up to the end of the line).

use std::io::Write;

use super::{Run, Told};
use crate::config::Host;
use crate::slurm::hooks::site::TaskProlog;

/// PyTorch's flight recorder under its old and its new names, and that it is written when a collective takes too long.
const FLIGHT_RECORDER: [(&str, &str); 3] = [
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
    ("TORCH_FR_BUFFER_SIZE", "2000"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
];

pub(super) fn run(run: &Run) -> Told {
    let text = lines(&run.host, &run.site.task_prolog);
    // A task without these variables is better than none.
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        run.log.say_error("no variables are given", &error);
    }
    Told::Fine
}

/// What the job sets itself stays as it is.
fn lines(host: &Host, settings: &TaskProlog) -> String {
    let own = FLIGHT_RECORDER.iter().filter(|_| settings.flight_recorder);
    let own = own.map(|(name, value)| (*name, *value));
    let sites = settings.export.iter();
    let sites = sites.map(|(name, value)| (name.as_str(), value.as_str()));
    let mut text = String::new();
    for (name, value) in sites
        .clone()
        .chain(own.filter(|(name, _)| !settings.export.contains_key(*name)))
    {
        if !host.environment.contains_key(name) {
            let value = value.replace(['\n', '\r'], " ");
            text.push_str("export ");
            text.push_str(name);
            text.push('=');
            text.push_str(&value);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_job_sets_stays_and_values_are_one_line() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::for_test(root.path()).with("TORCH_FR_BUFFER_SIZE", "7");
        let settings = TaskProlog {
            flight_recorder: true,
            export: [
                (
                    "NCCL_DEBUG".to_owned(),
                    "WARN\nexport LD_PRELOAD=x".to_owned(),
                ),
                ("TORCH_NCCL_DUMP_ON_TIMEOUT".to_owned(), "0".to_owned()),
            ]
            .into(),
        };
        assert_eq!(
            lines(&host, &settings),
            "export NCCL_DEBUG=WARN export LD_PRELOAD=x\nexport TORCH_NCCL_DUMP_ON_TIMEOUT=0\n\
             export TORCH_NCCL_TRACE_BUFFER_SIZE=2000\n"
        );
        let off = TaskProlog {
            flight_recorder: false,
            ..TaskProlog::default()
        };
        assert_eq!(lines(&host, &off), "");
    }
}
