// SPDX-License-Identifier: Apache-2.0
//! What may be deleted, and how.

#![expect(clippy::expect_used, reason = "this is test code")]

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::symlink;
use std::path::Path;

use steadfast_checkpoints::{Catalogue, Retention, Rule, Selection, retention};

/// Checkpoints `step-N`, whole where they have a marker.
fn catalogue(root: &Path, whole: &[u64], torn: &[u64]) -> Catalogue {
    for step in whole.iter().chain(torn) {
        fs::create_dir(root.join(format!("step-{step}"))).expect("a directory");
    }
    for step in whole {
        fs::write(root.join(format!("step-{step}/DONE")), "x").expect("a marker");
    }
    let rule = Rule::parse("name = 'step-(?<step>\\d+)'\nmarker = 'DONE'").expect("a rule");
    let mut catalogue = Catalogue::new(root.to_owned(), Selection::Rule(rule));
    catalogue.look().expect("it can be read");
    catalogue
}

fn superseded(catalogue: &Catalogue, keep: u32, committed: u64, in_use: Option<&Path>) -> Vec<u64> {
    let policy = Retention {
        keep: NonZeroU32::new(keep).expect("not 0"),
        committed,
        world_size: Some(2),
        in_use,
    };
    let found = policy.superseded(catalogue);
    found.iter().map(|known| known.found.step).collect()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn only_whole_ones_older_than_the_committed_and_the_kept_are_superseded() {
    let root = directory();
    let catalogue = catalogue(root.path(), &[10, 30, 40, 50, 60], &[20, 45]);
    let old = |keep, committed| superseded(&catalogue, keep, committed, None);
    assert_eq!(old(1, 50), [10, 30, 40]);
    assert_eq!(
        old(2, 50),
        [10, 30],
        "60 is newer than the committed one, and does not count"
    );
    assert_eq!(old(9, 50), [0; 0]);
}

#[test]
fn nothing_goes_while_the_committed_one_is_not_seen_whole() {
    let root = directory();
    let catalogue = catalogue(root.path(), &[10, 30, 60], &[50]);
    for committed in [50, 55] {
        assert_eq!(superseded(&catalogue, 1, committed, None), [0; 0]);
    }
}

#[test]
fn what_is_in_use_or_linked_to_stays() {
    let root = directory();
    let catalogue = catalogue(root.path(), &[10, 20, 30, 40], &[]);
    let in_use = root.path().join("step-20");
    symlink("step-10", root.path().join("best")).expect("a link");
    symlink("nowhere", root.path().join("dangling")).expect("a link");
    assert_eq!(superseded(&catalogue, 1, 40, Some(&in_use)), [30]);
}

#[test]
fn one_is_deleted_as_a_whole_whoever_else_does_the_same() {
    let root = directory();
    let catalogue = catalogue(root.path(), &[10, 20], &[]);
    let found = catalogue.all().first().expect("the oldest").found.clone();
    // An earlier try was interrupted.
    fs::create_dir_all(root.path().join(".steadfast-old-step-10/inner")).expect("a directory");
    assert!(retention::delete(&found).expect("it can be"));
    assert!(!retention::delete(&found).expect("it is gone"));
    let left = fs::read_dir(root.path()).expect("it is there");
    let left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["step-20"]);
}

#[test]
fn what_an_interrupted_deletion_has_left_is_swept_away_and_nothing_else() {
    let root = directory();
    catalogue(root.path(), &[10], &[20]);
    fs::create_dir_all(root.path().join(".steadfast-old-step-5/inner")).expect("a directory");
    fs::write(root.path().join(".steadfast-old-step-6.pt"), "x").expect("a file");
    fs::write(root.path().join(".steadfast-torn-step-7"), "x").expect("a file");
    retention::sweep(root.path());
    let left = fs::read_dir(root.path()).expect("it is there").count();
    assert_eq!(left, 3);
}

#[test]
fn the_best_one_of_hugging_face_stays() {
    let root = directory();
    for step in [10, 20, 30] {
        let state = r#"{"best_model_checkpoint": "out/checkpoint-10", "global_step": 1}"#;
        let at = root.path().join(format!("checkpoint-{step}"));
        fs::create_dir(&at).expect("a directory");
        fs::write(at.join("trainer_state.json"), state).expect("a file");
        fs::write(
            at.join("model.safetensors"),
            [&8u64.to_le_bytes()[..], b"{}      "].concat(),
        )
        .expect("a file");
        fs::write(at.join("config.json"), "{}").expect("a file");
    }
    let mut catalogue = Catalogue::new(root.path().to_owned(), Selection::Auto);
    catalogue.look().expect("it can be read");
    let problems: Vec<_> = catalogue
        .all()
        .iter()
        .flat_map(|known| known.checked.problems.clone())
        .collect();
    assert_eq!(problems, []);
    assert_eq!(superseded(&catalogue, 1, 30, None), [20]);
}
