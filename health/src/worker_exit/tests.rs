// SPDX-License-Identifier: Apache-2.0
use FaultClass::{GpuHardware, GpuMemory, Hang, HostMemory, Killed, Network, Program, Storage};
use FaultRole::{Cause, Consequence};
use Repeatability::{Certain, MayDiffer};

use super::*;

fn look(exit: Exit, stderr: &[&str]) -> Finding {
    let stderr: Vec<String> = stderr.iter().map(|line| (*line).to_owned()).collect();
    diagnose(&WorkerExit {
        exit,
        error: None,
        error_file: "",
        stderr: &stderr,
        pid: 42,
    })
}

type Verdict = (FaultClass, FaultRole, Repeatability);

fn verdict(finding: &Finding) -> Verdict {
    (finding.class(), finding.role(), finding.repeatability())
}

const HEADER: &str = "Traceback (most recent call last):";
const FRAME: &str = "  File \"train.py\", line 3, in main";

const ENDS: &[(Exit, &[&str], Verdict)] = &[
    (
        Exit::Code(1),
        &[HEADER, FRAME, "ValueError: bad batch"],
        (Program, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[HEADER, FRAME, "ModuleNotFoundError: No module named 'x'"],
        (Program, Cause, Certain),
    ),
    (
        Exit::Code(1),
        &[FRAME, "    f(", "SyntaxError: '(' was never closed"],
        (Program, Cause, Certain),
    ),
    (
        Exit::Code(1),
        &["python: No module named train"],
        (Program, Cause, Certain),
    ),
    (
        Exit::Code(2),
        &["python3: can't open file '/a/b.py': [Errno 2] No such file"],
        (Program, Cause, Certain),
    ),
    (
        Exit::Code(2),
        &[
            "usage: train.py [-h]",
            "train.py: error: unrecognized arguments: --x",
        ],
        (Program, Cause, Certain),
    ),
    (
        Exit::Code(127),
        &["sh: 1: nope: not found"],
        (Program, Cause, Certain),
    ),
    (Exit::Code(126), &[], (Program, Cause, Certain)),
    (Exit::Code(3), &["gave up"], (Program, Cause, MayDiffer)),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ],
        (GpuMemory, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[HEADER, FRAME, "MemoryError"],
        (HostMemory, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[HEADER, FRAME, "OSError: [Errno 28] No space left on device"],
        (Storage, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 192 vs 86",
        ],
        (Storage, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed",
        ],
        (Storage, Cause, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "ConnectionResetError: [Errno 104] Connection reset by peer",
        ],
        (Network, Consequence, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "RuntimeError: [../gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:100",
        ],
        (Network, Consequence, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            HEADER,
            FRAME,
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: A call failed",
        ],
        (Network, Consequence, MayDiffer),
    ),
    (
        Exit::Code(1),
        &[
            "NCCL WARN Cuda failure 'out of memory'",
            HEADER,
            FRAME,
            "torch.distributed.DistBackendError: NCCL error in: x",
        ],
        (GpuMemory, Cause, MayDiffer),
    ),
    (
        Exit::Signal(6),
        &["[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"],
        (Hang, Consequence, MayDiffer),
    ),
    (
        Exit::Signal(6),
        &[
            "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
        ],
        (GpuHardware, Cause, MayDiffer),
    ),
    (
        Exit::Signal(9),
        &["step 3", "Connection reset by peer"],
        (Killed, Cause, MayDiffer),
    ),
    (
        Exit::Signal(9),
        &["slurmstepd: error: Detected 1 oom_kill event in StepId=1.0"],
        (HostMemory, Cause, MayDiffer),
    ),
    (Exit::Code(137), &["step 3"], (Killed, Cause, MayDiffer)),
    (Exit::Signal(15), &[], (Killed, Cause, MayDiffer)),
    (Exit::Signal(11), &["step 3"], (Program, Cause, MayDiffer)),
    (Exit::Signal(7), &[], (Program, Cause, MayDiffer)),
];

#[test]
fn well_known_ends_are_told_apart() {
    for (exit, stderr, expected) in ENDS {
        assert_eq!(
            verdict(&look(*exit, stderr)),
            *expected,
            "{exit:?} {stderr:?}"
        );
    }
}

#[test]
fn the_summary_says_what_happened_and_where() {
    let stderr = [
        "Traceback (most recent call last):",
        "  File \"/u/train.py\", line 3, in main",
        "ValueError: bad batch 7",
    ];
    let finding = look(Exit::Code(1), &stderr);
    assert_eq!(
        finding.summary,
        "exited with code 1: ValueError: bad batch 7 (/u/train.py:3 in main)"
    );
    assert_eq!(
        finding.fingerprint,
        "ValueError: bad batch <N> at train.py:3 main"
    );
    assert_eq!(
        (finding.exit_code, finding.signal, finding.pid),
        (Some(1), None, 42)
    );
    let killed = look(Exit::Signal(9), &["step 3 loss 0.5"]);
    assert_eq!(killed.fingerprint, "signal 9");
    assert_eq!(
        killed.summary,
        "was killed by SIGKILL: somebody killed it, or the kernel did for lack of memory"
    );
    assert_eq!(
        look(Exit::Code(3), &["gave up at step 12", ""]).fingerprint,
        "exit 3: gave up at step <N>"
    );
    assert_eq!(look(Exit::Code(3), &[]).summary, "exited with code 3");
}

#[test]
fn the_error_file_goes_before_standard_error() {
    let error = crate::parse_error_file(
        br#"{"message":{"message":"ValueError: bad batch","extraInfo":{"timestamp":"1796042610","py_callstack":
        "Traceback (most recent call last):\n  File \"t.py\", line 9, in step\n    x\nValueError: bad batch\n"}}}"#,
    );
    let stderr = [
        "Traceback (most recent call last):",
        "  File \"x.py\", line 1, in y",
        "ImportError: no",
    ]
    .map(str::to_owned);
    let finding = diagnose(&WorkerExit {
        exit: Exit::Code(1),
        error: Some(&error),
        error_file: "/logs/error.json",
        stderr: &stderr,
        pid: 1,
    });
    assert_eq!(finding.repeatability(), MayDiffer);
    assert_eq!(finding.fingerprint, "ValueError: bad batch at t.py:9 step");
    assert_eq!(
        (finding.wall_ms, finding.error_file.as_str()),
        (1_796_042_610_000, "/logs/error.json")
    );
    assert!(finding.evidence[0].contains("line 9"));
}

#[test]
fn an_exit_that_the_program_chose_says_less_than_what_it_printed() {
    let error = crate::parse_error_file(
        br#"{"message":{"message":"SystemExit: 1","extraInfo":{"timestamp":"1796042610","timestamp_ms":1796042610750,
        "py_callstack":"Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\nSystemExit: 1\n"}}}"#,
    );
    assert_eq!(error.raised_ms, Some(1_796_042_610_750));
    let end = |lines: &[&str]| {
        let stderr: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        diagnose(&WorkerExit {
            exit: Exit::Code(1),
            error: Some(&error),
            error_file: "",
            stderr: &stderr,
            pid: 1,
        })
    };
    let lost = end(&["rank 2: ConnectionResetError: [Errno 104] Connection reset by peer"]);
    assert_eq!(lost.role(), Consequence);
    assert_eq!(lost.wall_ms, 0, "its end says when");
    let plain = end(&[]);
    assert_eq!(verdict(&plain), (Program, Cause, MayDiffer));
    assert!(plain.summary.contains("SystemExit: 1"), "{}", plain.summary);
}

#[test]
fn a_garbled_error_file_is_told_and_standard_error_counts() {
    let error = crate::parse_error_file(b"{\"mess");
    let stderr = [
        "Traceback (most recent call last):",
        "  File \"x.py\", line 1, in y",
        "KeyError: 'a'",
    ]
    .map(str::to_owned);
    let worker = WorkerExit {
        exit: Exit::Code(1),
        error: Some(&error),
        error_file: "e",
        stderr: &stderr,
        pid: 1,
    };
    let finding = diagnose(&worker);
    assert!(finding.fingerprint.starts_with("KeyError"));
    assert!(
        finding
            .evidence
            .iter()
            .any(|piece| piece.contains("not valid JSON"))
    );
}

#[test]
fn evidence_is_bounded() {
    let stderr = vec!["\u{e9}".repeat(100_000); 200];
    let worker = WorkerExit {
        exit: Exit::Code(1),
        error: None,
        error_file: "",
        stderr: &stderr,
        pid: 1,
    };
    let finding = diagnose(&worker);
    assert!(finding.evidence.iter().map(String::len).sum::<usize>() <= 3 * EVIDENCE_BYTES);
    assert!(finding.summary.len() < 1000);
}
