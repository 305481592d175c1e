// SPDX-License-Identifier: Apache-2.0
//! Directories of checkpoints: damaged and hostile files, saves that go on, moving aside, trackers, rules, manifests.

#![expect(clippy::expect_used, reason = "this is test code")]

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use steadfast_checkpoints::{
    Catalogue, Change, Depth, Layout, Manifest, Problem, Rule, Selection, aside, check,
    differences, find, tracker,
};

/// Written by PyTorch.
const SMALL: &[u8] = include_bytes!("data/small.ckpt");

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a directory");
    fs::write(path, bytes).expect("it can be written");
}

fn set_time(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).expect("it is there");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
        .expect("times can be set");
}

/// A pickle of protocol 2: `Metadata` with one piece of `length` bytes in `file`.
fn metadata(file: &str, length: u8) -> Vec<u8> {
    let text = |text: &str| {
        let length = u32::try_from(text.len()).expect("short");
        [b"X".as_slice(), &length.to_le_bytes(), text.as_bytes()].concat()
    };
    [
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}".as_slice(),
        &text("storage_data"),
        b"}(",
        &text("layer.weight"),
        b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81}(",
        &text("relative_path"),
        &text(file),
        &text("offset"),
        b"K\x00",
        &text("length"),
        &[b'K', length],
        b"ubusb.",
    ]
    .concat()
}

#[test]
fn a_file_of_another_program_s_format_is_not_taken_for_a_torn_one_of_torch() {
    let root = directory();
    for (name, bytes, is_whole) in [
        ("step-1.ckpt", &b"my own format, and no archive"[..], true),
        ("step-2.ckpt", SMALL, true),
        ("step-3.ckpt", &SMALL[..SMALL.len() / 2], false),
        ("step-4.ckpt", &[0; 64][..], false),
    ] {
        write(&root.path().join(name), bytes);
        let found = find(root.path(), &Selection::Auto).expect("readable");
        let of_it = found
            .iter()
            .find(|found| found.path.ends_with(name))
            .expect("it is a checkpoint");
        let problems = check(of_it, &Selection::Auto).problems;
        assert_eq!(problems.is_empty(), is_whole, "{name}: {problems:?}");
    }
}

#[test]
fn a_save_into_the_same_directory_again_is_torn_although_all_is_there() {
    let root = directory();
    let step = root.path().join("step-5");
    let shard = step.join("__0_0.distcp");
    write(&shard, b"data");
    write(&step.join(".metadata"), &metadata("__0_0.distcp", 4));
    set_time(&shard, 1000);
    set_time(&step.join(".metadata"), 1001);
    let found = find(root.path(), &Selection::Auto).expect("readable");
    assert_eq!(found[0].layout, Layout::Dcp);
    assert_eq!(check(&found[0], &Selection::Auto).problems, []);
    set_time(&shard, 2000);
    let problems = check(&found[0], &Selection::Auto).problems;
    assert!(
        matches!(&problems[..], [Problem::Unfinished(_)]),
        "{problems:?}"
    );
    set_time(&shard, 1000);
    write(&step.join(".metadata"), &metadata("__1_0.distcp", 4));
    let problems = check(&found[0], &Selection::Auto).problems;
    assert!(matches!(&problems[..], [Problem::Missing { file, .. }] if file == "__1_0.distcp"));
}

#[test]
fn what_is_being_written_or_stands_for_another_is_no_checkpoint() {
    let root = directory();
    write(&root.path().join("ckpt_7.pt"), SMALL);
    write(&root.path().join("ckpt_8.pt.tmp"), SMALL);
    write(&root.path().join("notes.txt"), b"hello");
    write(
        &root.path().join("9.orbax-checkpoint-tmp-17/default/x"),
        b"data",
    );
    std::os::unix::fs::symlink("ckpt_7.pt", root.path().join("ckpt_99.pt")).expect("a link");
    let mut catalogue = Catalogue::new(root.path().to_owned(), Selection::Auto);
    let all = catalogue.look().expect("readable");
    let seen: Vec<_> = all
        .iter()
        .map(|known| (known.found.name.as_str(), known.is_whole()))
        .collect();
    assert_eq!(
        seen,
        [("ckpt_7.pt", true), ("9.orbax-checkpoint-tmp-17", false)]
    );
    let nowhere = Catalogue::new(root.path().join("nowhere"), Selection::Auto)
        .look()
        .map(|all| all.len());
    assert_eq!(nowhere.expect("it has none"), 0);
}

#[test]
fn the_newest_whole_one_is_chosen_and_torn_ones_can_be_moved_aside() {
    let root = directory();
    write(&root.path().join("ckpt_5.pt"), SMALL);
    write(&root.path().join("ckpt_7.pt"), SMALL);
    write(&root.path().join("ckpt_9.pt"), &SMALL[..SMALL.len() - 1]);
    let mut catalogue = Catalogue::new(root.path().to_owned(), Selection::Auto);
    let all = catalogue.look().expect("readable");
    assert!(all.iter().all(|known| !known.settled));
    let torn = all[2].found.clone();
    assert!(
        catalogue
            .look()
            .expect("readable")
            .iter()
            .all(|known| known.settled)
    );
    let step = |at_most| Some(catalogue.newest_whole(4, at_most)?.found.step);
    assert_eq!(
        (step(None), step(Some(6)), step(Some(4))),
        (Some(7), Some(5), None)
    );
    let moved = aside::move_aside(&torn, "t")
        .expect("it can be")
        .expect("it is there");
    assert_eq!(
        moved.file_name().expect("a name"),
        ".steadfast-torn-ckpt_9.pt-t"
    );
    assert!(moved.exists() && !torn.path.exists());
    assert_eq!(aside::move_aside(&torn, "t").expect("another did it"), None);
    assert_eq!(catalogue.look().expect("readable").len(), 2);
    // One that is torn again does not get the name of the first.
    write(&torn.path, b"x");
    let again = aside::move_aside(&torn, "t")
        .expect("it can be")
        .expect("it is there");
    assert!(moved.exists() && again != moved);
}

#[test]
fn trackers_are_corrected_and_a_copy_is_kept() {
    let root = directory();
    write(
        &root
            .path()
            .join("iter_0000010/mp_rank_00/model_optim_rng.pt"),
        SMALL,
    );
    write(
        &root.path().join("latest_checkpointed_iteration.txt"),
        b"20\n",
    );
    let found = find(root.path(), &Selection::Auto)
        .expect("readable")
        .remove(0);
    assert!(check(&found, &Selection::Auto).is_whole());
    let stray = tracker::stray(&found)
        .expect("readable")
        .expect("it says 20");
    assert_eq!(
        (stray.says.as_deref(), stray.should_say.as_str()),
        (Some("20"), "10")
    );
    let kept = tracker::correct(&stray, "t")
        .expect("writable")
        .expect("a copy");
    assert_eq!(fs::read(kept).expect("readable"), b"20\n");
    assert_eq!(tracker::stray(&found).expect("readable"), None);
    fs::remove_file(&stray.path).expect("removable");
    let stray = tracker::stray(&found)
        .expect("readable")
        .expect("it is gone");
    assert_eq!(stray.says, None);
    assert_eq!(tracker::correct(&stray, "t").expect("writable"), None);
}

#[test]
fn a_rule_says_what_belongs_to_a_checkpoint() {
    let rule = Rule::parse(
        r#"
        name = 'state-(?<step>\d+)'
        files = ["optimizer/*.bin"]
        ranks = "rank_{rank}.pt"
        marker = "DONE"
        same_size = true
        "#,
    )
    .expect("a rule");
    let selection = Selection::Rule(rule);
    let root = directory();
    let step = root.path().join("state-30");
    for name in ["optimizer/a.bin", "rank_0.pt", "rank_1.pt", "DONE"] {
        write(&step.join(name), SMALL);
    }
    write(&root.path().join("state-x/DONE"), b"1");
    let found = find(root.path(), &selection).expect("readable");
    assert_eq!(found.len(), 1);
    let checked = check(&found[0], &selection);
    assert_eq!((checked.problems.len(), checked.world_size), (0, Some(2)));
    assert!(checked.fits(2) && !checked.fits(3));
    for name in ["optimizer/a.bin", "rank_0.pt", "DONE"] {
        fs::remove_file(step.join(name)).expect("removable");
        let problems = check(&found[0], &selection).problems;
        assert!(
            matches!(&problems[..], [Problem::Missing { .. }]),
            "{name}: {problems:?}"
        );
        write(&step.join(name), SMALL);
    }
    for wrong in [
        "",
        "name = 'x'",
        "name = '('",
        "name = '(a)'\nranks = 'r'",
        "name = '(a)'\nx = 1",
    ] {
        assert!(Rule::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_manifest_outlives_the_process_and_goes_with_its_checkpoint() {
    let root = directory();
    write(&root.path().join("checkpoint-4/model.bin"), SMALL);
    write(&root.path().join("checkpoint-4/vocab.dat"), b"0123456789");
    let rule = || Selection::Rule(Rule::parse(r"name = 'checkpoint-(\d+)'").expect("a rule"));
    let found = find(root.path(), &rule()).expect("readable").remove(0);
    let whole = check(&found, &rule());
    assert_eq!(Manifest::read(&found).expect("none is there"), None);
    let manifest = Manifest::of(&found, &whole, Depth::Full).expect("readable");
    manifest.write(&found).expect("writable");
    assert_eq!(Manifest::read(&found).expect("readable"), Some(manifest));
    // The rule does not know this file; the manifest does.
    write(&found.path.join("vocab.dat"), b"01234");
    let mut catalogue = Catalogue::new(root.path().to_owned(), rule());
    let problems = catalogue.look().expect("readable")[0]
        .checked
        .problems
        .clone();
    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["vocab.dat has 5 bytes of at least 10"]);
    // Another checkpoint in its place is judged by itself.
    fs::remove_dir_all(&found.path).expect("removable");
    write(&found.path.join("model.bin"), SMALL);
    set_time(&found.path.join("model.bin"), 1000);
    let mut catalogue = Catalogue::new(root.path().to_owned(), rule());
    assert!(catalogue.look().expect("readable")[0].is_whole());
    fs::remove_dir_all(&found.path).expect("removable");
    Manifest::prune(root.path());
    assert_eq!(Manifest::read(&found).expect("it is gone"), None);
}

#[test]
fn no_part_of_a_file_passes_for_the_whole() {
    for name in ["step=7.ckpt", "7.pt"] {
        for length in 0..SMALL.len() {
            let root = directory();
            write(&root.path().join(name), &SMALL[..length]);
            let found = find(root.path(), &Selection::Auto)
                .expect("readable")
                .remove(0);
            let whole = check(&found, &Selection::Auto).is_whole();
            assert!(!whole, "{length} bytes of {name}");
        }
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_end_in_more_than_an_answer(
        changes in prop::collection::vec((0..SMALL.len(), any::<u8>()), 1..64),
        name in prop::sample::select(vec!["last.ckpt", "step_3.safetensors", "5.pt"]),
    ) {
        let root = directory();
        let mut bytes = SMALL.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        write(&root.path().join(name), &bytes);
        for found in find(root.path(), &Selection::Auto).expect("readable") {
            let _answered = check(&found, &Selection::Auto);
        }
    }

    #[test]
    fn changed_metadata_never_end_in_more_than_an_answer(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..16),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let root = directory();
        let mut bytes = metadata("__0_0.distcp", 4);
        bytes.pop();
        bytes.extend(tail);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let step = root.path().join("step-5");
        write(&step.join("__0_0.distcp"), b"data");
        write(&step.join(".metadata"), &bytes);
        let found = find(root.path(), &Selection::Auto).expect("readable").remove(0);
        let _answered = check(&found, &Selection::Auto);
    }
}

#[test]
fn files_that_differ_are_named_and_with_every_byte_read_also_those_of_one_size() {
    let root = directory();
    for (step, name, bytes) in [
        (1, "same", "abc"),
        (2, "same", "abc"),
        (1, "longer", "ab"),
        (2, "longer", "abcd"),
        (1, "other", "abc"),
        (2, "other", "xyz"),
        (1, "gone", "a"),
        (2, "inner/new", "ab"),
    ] {
        let path = root.path().join(format!("step-{step}")).join(name);
        write(&path, bytes.as_bytes());
    }
    let rule = Rule::parse(r"name = 'step-(?<step>\d+)'").expect("a rule");
    let mut catalogue = Catalogue::new(root.path().to_owned(), Selection::Rule(rule));
    let all = catalogue.look().expect("it can be read");
    let [first, second] = all[..] else {
        panic!("{all:?}")
    };
    let changes = |depth| {
        let found = differences(first, second, depth).expect("they can be read");
        let pairs = found.into_iter().map(|found| (found.file, found.change));
        pairs.collect::<Vec<_>>()
    };
    let gone = ("gone".to_owned(), Change::OnlyInFirst(1));
    let new = ("inner/new".to_owned(), Change::OnlyInSecond(2));
    let longer = ("longer".to_owned(), Change::Size(2, 4));
    let other = ("other".to_owned(), Change::Content(3));
    let by_size = [gone, new, longer];
    assert_eq!(changes(Depth::Metadata), by_size);
    assert_eq!(changes(Depth::Full), [&by_size[..], &[other]].concat());
    assert_eq!(
        differences(first, first, Depth::Full).expect("they can be read"),
        []
    );
}
