// SPDX-License-Identifier: Apache-2.0
//! What a machine that went down may have taken with it.

#![expect(clippy::expect_used, reason = "this is test code")]

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use steadfast_checkpoints::{Boot, Catalogue, Depth, Known, Manifest, Problem, Selection, flush};

/// The smallest file that `torch.load` takes.
const SMALL: &[u8] = b"\x80\x02}.";

/// Writes a checkpoint that looks whole, at this second of 2001.
fn save(root: &Path, step: u64, second: u64) {
    let path = root.join(format!("ckpt_{step}.pt"));
    fs::write(&path, SMALL).expect("writable");
    let file = fs::File::options()
        .write(true)
        .open(&path)
        .expect("it is there");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + second);
    file.set_modified(time).expect("times can be set");
}

fn catalogue(root: &Path, boot: &str) -> Catalogue {
    let boot = Boot {
        node: "n1".to_owned(),
        id: boot.to_owned(),
    };
    Catalogue::new(root.to_owned(), Selection::Auto).seen_in(boot)
}

/// Looks as the node does that looks after the directory.
fn whole(catalogue: &mut Catalogue) -> Vec<u64> {
    catalogue.look().expect("readable");
    catalogue.leave_mark().expect("writable");
    let all = catalogue.all().into_iter();
    all.filter(|known| known.is_whole())
        .map(|known| known.found.step)
        .collect()
}

fn known(catalogue: &Catalogue, step: u64) -> Known {
    let mut all = catalogue.all().into_iter();
    let known = all.find(|known| known.found.step == step);
    known.expect("it is there").clone()
}

fn flush_for_good(known: &Known) {
    flush(&known.found, &known.checked.listing).expect("it can be flushed");
    let manifest = Manifest::of(&known.found, &known.checked, Depth::Metadata).expect("readable");
    manifest.flushed().write(&known.found).expect("writable");
}

#[test]
fn after_the_machine_went_down_only_what_was_flushed_is_trusted() {
    let root = tempfile::tempdir().expect("a directory");
    save(root.path(), 1, 1);
    let mut first = catalogue(root.path(), "one");
    assert_eq!(whole(&mut first), [1]);
    save(root.path(), 2, 2);
    save(root.path(), 3, 3);
    assert_eq!(whole(&mut first), [1, 2, 3]);
    flush_for_good(&known(&first, 2));
    // An agent that is respawned, and other nodes, trust all of them.
    assert_eq!(whole(&mut catalogue(root.path(), "one")), [1, 2, 3]);
    let mut second = catalogue(root.path(), "two");
    second.look().expect("readable");
    assert_eq!(known(&second, 3).checked.problems, [Problem::Unflushed]);
    assert_eq!(
        whole(&mut second),
        [1, 2],
        "the first was there before anybody looked"
    );
    // What is made now is trusted; what was doubted stays so, also for another agent and after another power cut.
    save(root.path(), 4, 4);
    assert_eq!(whole(&mut second), [1, 2, 4]);
    assert_eq!(whole(&mut catalogue(root.path(), "two")), [1, 2, 4]);
    assert_eq!(whole(&mut catalogue(root.path(), "three")), [1, 2]);
    // Another save of the same name is another checkpoint.
    let mut third = catalogue(root.path(), "three");
    save(root.path(), 3, 5);
    assert_eq!(whole(&mut third), [1, 2, 3]);
}

#[test]
fn what_was_flushed_and_is_written_anew_is_not_trusted_and_what_is_added_does_no_harm() {
    let root = tempfile::tempdir().expect("a directory");
    let mut first = catalogue(root.path(), "one");
    assert_eq!(whole(&mut first), [0; 0]);
    let own = root.path().join(".steadfast");
    assert!(!own.exists(), "some programs want an empty directory");
    fs::write(root.path().join("config.txt"), "").expect("writable");
    assert_eq!(whole(&mut first), [0; 0]);
    assert!(own.exists(), "it is not empty any more");
    save(root.path(), 1, 1);
    save(root.path(), 2, 2);
    assert_eq!(whole(&mut first), [1, 2]);
    flush_for_good(&known(&first, 1));
    flush_for_good(&known(&first, 2));
    save(root.path(), 2, 3);
    assert_eq!(whole(&mut catalogue(root.path(), "two")), [1]);
}

#[test]
fn what_one_node_has_flushed_no_other_takes_back() {
    let root = tempfile::tempdir().expect("a directory");
    let mut first = catalogue(root.path(), "one");
    assert_eq!(whole(&mut first), [0; 0]);
    save(root.path(), 1, 1);
    assert_eq!(whole(&mut first), [1]);
    let now = known(&first, 1);
    let manifest = || Manifest::of(&now.found, &now.checked, Depth::Metadata).expect("readable");
    manifest().write_if_news(&now.found).expect("writable");
    assert_eq!(whole(&mut catalogue(root.path(), "two")), [0; 0]);
    flush_for_good(&now);
    manifest().write_if_news(&now.found).expect("writable");
    assert_eq!(whole(&mut catalogue(root.path(), "three")), [1]);
    // Another one in its place is news.
    save(root.path(), 1, 2);
    assert_eq!(whole(&mut first), [1]);
    let anew = known(&first, 1);
    let manifest = Manifest::of(&anew.found, &anew.checked, Depth::Metadata).expect("readable");
    manifest.write_if_news(&anew.found).expect("writable");
    assert_eq!(
        Manifest::read(&anew.found).expect("readable"),
        Some(manifest)
    );
}

#[test]
fn what_changes_while_it_is_flushed_is_not_vouched_for() {
    let root = tempfile::tempdir().expect("a directory");
    let mut first = catalogue(root.path(), "one");
    save(root.path(), 1, 1);
    assert_eq!(whole(&mut first), [1]);
    let before = known(&first, 1);
    save(root.path(), 1, 2);
    let error = flush(&before.found, &before.checked.listing).expect_err("it is another one");
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
}

#[test]
fn a_mark_that_cannot_be_read_is_as_good_as_none() {
    let root = tempfile::tempdir().expect("a directory");
    save(root.path(), 1, 1);
    fs::create_dir(root.path().join(".steadfast")).expect("writable");
    fs::write(root.path().join(".steadfast/boot-n1"), "{\"ver").expect("writable");
    let mut first = catalogue(root.path(), "one");
    assert_eq!(whole(&mut first), [1]);
    save(root.path(), 2, 2);
    assert_eq!(
        whole(&mut catalogue(root.path(), "two")),
        [1],
        "it has been replaced"
    );
}
