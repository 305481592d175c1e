// SPDX-License-Identifier: Apache-2.0
//! Whatever is in the files, there is an answer.

use proptest::prelude::*;
use steadfast_diagnosis::{Evidence, EvidenceFile, Rules, diagnose};

/// Pieces of real lines, to be torn and put together.
const PIECES: [&str; 30] = [
    "[rank3]:",
    "[rank",
    "\u{1b}[31",
    "NVRM: Xid (PCI:0000:5e:00): 31, pid=",
    "srun: error: n1: tasks 0-4294967295: Killed",
    "[PG ID 0 PG GUID 0(default_pg) Rank 7] ",
    "WorkNCCL(SeqNum=18446744073709551615, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1)",
    "Watchdog caught collective operation timeout: ",
    "last enqueued work: -1, last completed work: ",
    "Missing ranks: [1, 2, 99999999999]",
    "Connection closed by remote peer n1<51011>",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 4523)",
    "2025-02-30 25:61:61,5 ",
    "Jan 40 13:04:04 n1 kernel: ",
    "message repeated 99999999999999999999 times: [ x]",
    "step 18446744073709551615 loss nan",
    "CUDA out of memory. Tried to allocate",
    "\r",
    "\0",
    "é",
    " ",
    "node-a:1:2 [0] NCCL WARN ",
    "0: ",
    "[1,",
    "(Worker pid=1, ip=",
    "RuntimeError: ",
    "Killed process 1 (x)",
    "NET/IB : Got completion from peer 10.0.0.1<1> with error 12",
    "[[rank]]\nrank = 0\nprogress_age_s = 1e300\nseq_enqueued = 1\n",
];

const NAMES: [&str; 9] = [
    "rank-0.log",
    "rank-1.log",
    "all.log",
    "launcher.log",
    "kmsg.n1.txt",
    "context.toml",
    "state.toml",
    "steps.csv",
    "df.txt",
];

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => proptest::sample::select(&PIECES[..]).prop_map(str::to_owned),
        1 => "\\PC{0,12}",
        2 => Just("\n".to_owned()),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 150,
        ..ProptestConfig::default()
    })]

    #[test]
    fn there_is_an_answer(files in proptest::collection::vec((proptest::sample::select(&NAMES[..]), text()), 0..5)) {
        let files = files.into_iter().map(|(name, text)| EvidenceFile {
            name: name.to_owned(),
            text,
            skipped_lines: u32::MAX,
        });
        let answer = diagnose(&Evidence::new(files.collect()), Rules::built_in());
        prop_assert!((0.0..=1.0).contains(&answer.confidence));
        prop_assert!(!answer.to_string().is_empty());
        let json = answer.json();
        prop_assert!(json["next_step"].is_string());
    }
}
