// SPDX-License-Identifier: Apache-2.0
use std::path::Path;

use super::*;
use crate::output::layout::ConsoleStyle;

#[test]
fn files_lie_where_torchrun_puts_them() {
    let stream = Stream {
        restart_count: 2,
        kind: StreamKind::Stderr,
        ..stdout_of(3)
    };
    assert_eq!(
        stream_log(Path::new("/d/id_x"), stream),
        Path::new("/d/id_x/attempt_2/3/stderr.log")
    );
    assert_eq!(
        error_file(Path::new("/d/id_x"), 2, 3),
        Path::new("/d/id_x/attempt_2/3/error.json")
    );
    assert_eq!(
        worker_dir(Path::new("/d"), 0, 1),
        Path::new("/d/attempt_0/1")
    );
}

#[test]
fn each_stream_goes_where_it_is_told() {
    let table = [
        (
            Mode::Torchrun,
            2,
            Std::None,
            Std::None,
            false,
            Some(ConsoleStyle::Plain),
        ),
        (
            Mode::Torchrun,
            1,
            Std::None,
            Std::None,
            false,
            Some(ConsoleStyle::Raw),
        ),
        (Mode::Torchrun, 1, Std::Out, Std::None, true, None),
        (
            Mode::Torchrun,
            1,
            Std::None,
            Std::Both,
            true,
            Some(ConsoleStyle::Prefixed),
        ),
        (
            Mode::Torchrun,
            1,
            Std::Out,
            Std::Out,
            true,
            Some(ConsoleStyle::Prefixed),
        ),
        (
            Mode::Torchrun,
            1,
            Std::Err,
            Std::Err,
            false,
            Some(ConsoleStyle::Raw),
        ),
        (
            Mode::Run,
            1,
            Std::Both,
            Std::Both,
            true,
            Some(ConsoleStyle::Plain),
        ),
        (
            Mode::Run,
            2,
            Std::Both,
            Std::Both,
            true,
            Some(ConsoleStyle::Prefixed),
        ),
        (
            Mode::Run,
            2,
            Std::None,
            Std::None,
            false,
            Some(ConsoleStyle::Prefixed),
        ),
        (Mode::Run, 2, Std::Both, Std::None, true, None),
    ];
    for (mode, workers, redirects, tee, file, console) in table {
        let mut job = Job::new(mode, workers);
        job.settings.log.redirects = PerRank::all(redirects);
        job.settings.log.tee = PerRank::all(tee);
        let found = Destination::of(&job.settings, stdout_of(0));
        assert_eq!(
            found,
            Destination { file, console },
            "{mode:?} {workers} {redirects:?} {tee:?}"
        );
    }
}

#[test]
fn prefixes_follow_the_template() {
    let mut job = Job::new(Mode::Torchrun, 2);
    let prefix = |job: &Job| {
        Prefixes::new(&job.settings).of(Stream {
            rank: 9,
            ..stdout_of(1)
        })
    };
    assert_eq!(prefix(&job), "[default1]:");
    job.settings.log.prefix_template =
        Some("${hostname}/$rank.${local_rank} ${role_name} $$1 $other ${x".to_owned());
    assert_eq!(prefix(&job), "node1/9.1 default $1 $other ${x");
    job.settings.log.prefix_template = None;
    job.settings.mode = Mode::Run;
    assert_eq!(prefix(&job), "[9] ");
}
