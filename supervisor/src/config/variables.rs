// SPDX-License-Identifier: Apache-2.0
//! Environment variables that look like ours and are not.

use super::host::Host;
use super::option::OptionSpec;
use super::suggest::nearest;
use super::table::OPTIONS;

const PREFIX: &str = "STEADFAST_";

/// Variables that are ours without being options: the configuration file, a password, the secret of managed etcds, and what workers are given, which a
/// supervisor inside a worker finds in its environment.
const OTHERS: [&str; 13] = [
    "CONFIG",
    "COORD_PASSWORD",
    "TOKEN",
    "TOKEN_FILE",
    "JOB_ID",
    "GENERATION",
    "NODE",
    "RESUME_STEP",
    "RESUME_PATH",
    "CONTROL",
    "PAGES",
    "HOOK_DEBUG",
    "ERROR_FILE_OWNER",
];

/// One note for each variable that is nearly the name of an option. Others are left alone: they may be of a newer
/// version, or the training program's own.
pub(crate) fn mistyped(host: &Host) -> Vec<String> {
    let known: Vec<String> = OPTIONS.iter().map(OptionSpec::environment).collect();
    let known: Vec<&str> = known
        .iter()
        .filter_map(|name| name.strip_prefix(PREFIX))
        .collect();
    host.environment
        .keys()
        .filter_map(|name| name.strip_prefix(PREFIX))
        .filter(|name| !known.contains(name) && !OTHERS.contains(name))
        .filter_map(|name| {
            let meant = nearest(name, known.iter().copied())?;
            Some(format!("`{PREFIX}{name}` is not an option and has no effect: did you mean `{PREFIX}{meant}`?"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slips_are_told() {
        let host = Host::for_test("/".as_ref())
            .with("STEADFAST_MAX_RESTART", "3")
            .with("STEADFAST_TEE", "3")
            .with("STEADFAST_NODE", "a")
            .with("STEADFAST_LEARNING_RATE", "1");
        insta::assert_snapshot!(mistyped(&host).join("\n"), @"`STEADFAST_MAX_RESTART` is not an option and has no effect: did you mean `STEADFAST_MAX_RESTARTS`?");
    }
}
