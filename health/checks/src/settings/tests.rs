// SPDX-License-Identifier: Apache-2.0
//! What may stand in a configuration file, and what is said about the rest.

use std::path::Path;
use std::time::Duration;

use super::{Setting, Settings, Severity};
use crate::profile::Profile;

fn parse(text: &str) -> Result<Settings, String> {
    Settings::parse(Path::new("checks.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn thresholds_of_every_form_are_read() {
    let settings = parse(
        r#"
        [check.gpu-count]
        expected = 8
        severity = "warn"
        deadline = "3s"
        profiles = ["prolog", "full"]

        [check.disk-space]
        paths = "/scratch"
        fail_free = "2GiB"
        warn_percent = "off"

        [check.mounts]
        write = true
        enabled = false

        [command.lustre]
        run = ["check_lustre", "-q"]
        deadline = 5
        "#,
    )
    .unwrap();
    let gpus = &settings.checks["gpu-count"];
    assert_eq!(gpus.values["expected"], Setting::Number(8));
    assert_eq!(gpus.common.severity, Some(Severity::Warn));
    assert_eq!(gpus.common.deadline, Some(Duration::from_secs(3)));
    let profiles = [Profile::Prolog, Profile::Full];
    assert_eq!(gpus.common.profiles.as_deref(), Some(&profiles[..]));
    let disk = &settings.checks["disk-space"].values;
    assert_eq!(disk["paths"], Setting::Words(vec!["/scratch".to_owned()]));
    assert_eq!(disk["fail_free"], Setting::Number(2 << 30));
    assert_eq!(disk["warn_percent"], Setting::Off);
    assert_eq!(settings.checks["mounts"].common.enabled, Some(false));
    assert_eq!(settings.commands[0].words, ["check_lustre", "-q"]);
    assert_eq!(
        settings.commands[0].common.deadline,
        Some(Duration::from_secs(5))
    );
}

#[test]
fn whatever_is_wrong_is_named_with_its_line() {
    for (text, said) in [
        (
            "[check.gpu-cuont]",
            "checks.toml:1: `check.gpu-cuont` is unknown; did you mean `gpu-count`?",
        ),
        (
            "[checks.gpu-count]",
            "checks.toml:1: `checks` is unknown; did you mean `check`?",
        ),
        (
            "\n[check.gpu-count]\nexpcted = 8",
            "checks.toml:3: `check.gpu-count.expcted` is unknown; did you mean `expected`?",
        ),
        (
            "[check.gpu-count]\nexpected = \"eight\"",
            "checks.toml:2: `check.gpu-count.expected` takes a whole number, or \"off\"",
        ),
        (
            "[check.gpu-count]\nexpected = -1",
            "checks.toml:2: `check.gpu-count.expected` takes a whole number, or \"off\"",
        ),
        (
            "[check.disk-space]\nwarn_percent = 101",
            "checks.toml:2: `check.disk-space.warn_percent` takes a number from 0 to 100, or \"off\"",
        ),
        (
            "[check.disk-space]\nfail_free = \"2 litres\"",
            "checks.toml:2: `check.disk-space.fail_free` takes a size such as \"500MiB\", or \"off\"",
        ),
        (
            "[check.mounts]\nwrite = 1",
            "checks.toml:2: `check.mounts.write` takes true or false",
        ),
        (
            "[check.mounts]\nprofiles = [\"prolog\",\n\"heath\"]",
            "checks.toml:3: `check.mounts.profiles` cannot be `heath`; did you mean `health`?",
        ),
        (
            "[check.mounts]\nseverity = \"bad\"",
            "checks.toml:2: `check.mounts.severity` cannot be `bad`; there are warn, fail",
        ),
        (
            "[check.mounts]\ndeadline = \"6m\"",
            "checks.toml:2: `check.mounts.deadline` takes more than nothing, and at most 5m",
        ),
        (
            "[check.mounts]\ndeadline = [1]",
            "checks.toml:2: `check.mounts.deadline` takes a duration such as \"1m30s\"",
        ),
        (
            "[command.mounts]\nrun = [\"a\"]",
            "checks.toml:1: `command.mounts` has the name of a check that is built in",
        ),
        (
            "[command.own]\nenabled = true",
            "checks.toml:1: `command.own` has no `run`, such as `run = [\"/usr/lib/nagios/plugins/check_load\", \"-w\", \"99\"]`",
        ),
        (
            "[command.own]\nrunn = [\"a\"]",
            "checks.toml:2: `command.own.runn` is unknown; did you mean `run`?",
        ),
        (
            "[command.own]\nrun = [1]",
            "checks.toml:2: `command.own.run` takes a list of texts",
        ),
        (
            "check = 5",
            "checks.toml:1: `check` is no table; write `[check.NAME]` or `[command.NAME]`, and its keys below",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err(), said, "{text}");
    }
    let error = parse("[check.gpu-count\nexpected = 8").unwrap_err();
    assert!(error.starts_with("checks.toml:1: "), "{error}");
}

#[test]
fn a_file_that_need_not_be_there_is_no_error_and_another_one_is() {
    let absent = Path::new("/nonexistent/checks.toml");
    assert_eq!(
        Settings::read_if_there(absent).unwrap(),
        Settings::default()
    );
    let error = Settings::read(absent).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read /nonexistent/checks.toml: "),
        "{error}"
    );
}
