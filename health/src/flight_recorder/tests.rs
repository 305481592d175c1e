// SPDX-License-Identifier: Apache-2.0

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::dump::rank_of;
use super::*;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/flight_recorder")
        .join(name)
}

fn read(name: &str) -> Dump {
    Dump::read(&path(name)).unwrap()
}

#[test]
fn the_rank_is_at_the_end_of_the_name() {
    assert_eq!(rank_of(Path::new("/x/nccl_trace_rank_17")), Some(17));
    assert_eq!(rank_of(Path::new("/x/fr_gloo_rank_1.json")), Some(1));
    assert_eq!(rank_of(Path::new("/x/rank_")), None);
}

#[test]
fn a_pickle_and_the_json_of_the_same_rank_say_the_same() {
    for rank in [0, 1] {
        let pickle = read(&format!("fr_gloo_rank_{rank}"));
        let mut json = read(&format!("fr_gloo_rank_{rank}.json"));
        assert_eq!((pickle.rank, pickle.version.as_str()), (rank, "2.10"));
        assert!(pickle.entries.iter().all(|entry| !entry.frames.is_empty()));
        for (json, pickle) in json.entries.iter_mut().zip(&pickle.entries) {
            json.frames.clone_from(&pickle.frames);
        }
        // JSON has no frames, and was written a moment later: the last operation of rank 0 had been given up by then.
        let known = if rank == 0 { 3 } else { pickle.entries.len() };
        assert_eq!(pickle.entries[..known], json.entries[..known]);
        assert_eq!(
            (pickle.entries.len(), &pickle.groups),
            (json.entries.len(), &json.groups)
        );
    }
    let dump = read("fr_gloo_rank_0");
    assert_eq!(dump.entries.len(), 4);
    assert_eq!(dump.groups[""].ranks, [0, 1]);
    assert_eq!(dump.last[&0].enqueued, 3);
    let last = &dump.entries[3];
    assert_eq!((last.name.as_str(), last.sequence), ("gloo:all_reduce", 3));
    assert_eq!(last.sizes.0, "[[7]]");
    assert!(
        last.frames[0].starts_with("all_reduce (/"),
        "{:?}",
        last.frames
    );
    let empty = read("nccl_rank_0");
    assert!(empty.entries.is_empty() && empty.groups.is_empty());
}

#[test]
fn the_rank_that_did_not_join_is_named() {
    let problems = compare(&[read("fr_gloo_rank_0"), read("fr_gloo_rank_1")]);
    let problem = &problems[0];
    assert_eq!(
        (problem.kind, problem.sequence),
        (ProblemKind::NotJoined, 3),
        "{problems:#?}"
    );
    assert_eq!(problem.ranks, [1]);
    assert_eq!(
        problem.to_string(),
        "group 0 (default_pg), operation 3: ranks 1 have not joined gloo:all_reduce, in which 1 others are"
    );
    assert_eq!(problems.len(), 1, "the other group is well: {problems:#?}");
}

#[test]
fn a_rank_without_a_dump_is_said_to_have_none() {
    let problems = compare(&[read("fr_gloo_rank_0")]);
    assert!(
        problems
            .iter()
            .any(|problem| { problem.kind == ProblemKind::NoDump && problem.ranks == [1] }),
        "{problems:#?}"
    );
    assert_eq!(compare(&[read("nccl_rank_0")]), []);
    assert_eq!(compare(&[]), []);
}

/// Three ranks with the operations of rank 0, as `change` makes them.
fn three(change: impl Fn(u32, &mut Dump)) -> Vec<Problem> {
    let mut dumps = Vec::new();
    for rank in 0..3 {
        let mut dump = read("fr_gloo_rank_0");
        dump.rank = rank;
        dump.groups.clear();
        for entry in &mut dump.entries {
            entry.retired = true;
        }
        change(rank, &mut dump);
        dumps.push(dump);
    }
    compare(&dumps)
}

#[test]
fn who_differs_is_in_the_minority_whichever_rank_it_is() {
    assert_eq!(three(|_, _| {}), []);
    for odd in 0..3 {
        let change = |kind: ProblemKind| {
            let problems = three(|rank, dump| {
                let last = dump.entries.last_mut().unwrap();
                match kind {
                    ProblemKind::OtherOperation if rank == odd => {
                        last.name = "gloo:barrier".to_owned();
                    }
                    ProblemKind::OtherShape if rank == odd => last.sizes.0 = "[[8]]".to_owned(),
                    ProblemKind::OtherType if rank == odd => last.types.0 = "[Half]".to_owned(),
                    ProblemKind::NotJoined if rank == odd => drop(dump.entries.pop()),
                    _ => {}
                }
            });
            assert_eq!(
                (problems[0].kind, problems[0].ranks.as_slice()),
                (kind, &[odd][..])
            );
        };
        change(ProblemKind::OtherOperation);
        change(ProblemKind::OtherShape);
        change(ProblemKind::OtherType);
        change(ProblemKind::NotJoined);
    }
    let problems = three(|_, dump| dump.entries.last_mut().unwrap().retired = false);
    assert_eq!(
        (problems[0].kind, problems[0].ranks.len()),
        (ProblemKind::Stuck, 3)
    );
}

#[track_caller]
fn refused(bytes: &[u8], words: &str) {
    let error = Dump::parse(0, bytes).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn what_is_not_plain_data_is_refused() {
    // os.system("true"), as a pickle of protocol 0 says it.
    refused(b"cos\nsystem\n(S'true'\ntR.", "opcode 0x63");
    refused(b"\x80\x02}.", "it has no version");
    refused(b"\x80\x02", "cut off");
    refused(b"", "cut off");
    refused(b"{\"version\": 3", "EOF");
    refused(b"\x80\x02h\x07.", "damaged");
    refused(b"\x80\x02]r\xff\xff\xff\xff.", "strange number");
    // Lists in lists, far deeper than any stack, and one that holds itself.
    let mut deep = vec![b']'; 3_000_000];
    deep.extend(vec![b'a'; 2_999_999]);
    deep.push(b'.');
    refused(&deep, "it has no version");
    refused(b"]q\x00h\x00a.", "it has no version");
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(Dump::parse(0, &bytes));
    }

    /// Bytes of a real dump, changed here and there and cut.
    #[test]
    fn a_damaged_dump_does_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        end: prop::sample::Index,
    ) {
        let mut bytes = std::fs::read(path("fr_gloo_rank_0")).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        if let Ok(dump) = Dump::parse(0, &bytes) {
            compare(&[dump, read("fr_gloo_rank_1")]);
        }
    }
}
