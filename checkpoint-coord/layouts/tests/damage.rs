// SPDX-License-Identifier: Apache-2.0
//! Whole checkpoints of every layout, written by PyTorch and otherwise as documented, and every damage to each of their
//! files.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "this is test code"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfast_checkpoints::{
    Comparison, Depth, Found, Layout, Manifest, Selection, Sizes, check, find,
};

const PYTHON: &str = "/usr/bin/python3";
const PAGE: usize = 4096;

/// What can have happened to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Missing,
    HalfWritten,
    LastByteLost,
    ZeroTail,
}

const DAMAGES: [Damage; 4] = [
    Damage::Missing,
    Damage::HalfWritten,
    Damage::LastByteLost,
    Damage::ZeroTail,
];

/// Damages that cannot be seen in a checkpoint that nobody has looked at before: nothing in it says that the file was there,
/// or how long it was. `(layout, end of the path, damages)`
const UNSEEN: &[(&str, &str, &[&str])] = &[
    ("huggingface", "/config.json", &["Missing"]),
    ("huggingface", "/training_args.bin", &["Missing"]),
    ("huggingface", "/rng_state_1.pth", &["Missing"]),
    (
        "nemo",
        "/model.yaml",
        &["Missing", "HalfWritten", "LastByteLost"],
    ),
    ("orbax", "/_CHECKPOINT_METADATA", &["Missing"]),
    ("orbax", "manifest.ocdbt", &["HalfWritten", "LastByteLost"]),
    ("orbax", "/d/0123abcd", &["HalfWritten", "LastByteLost"]),
];

#[test]
fn every_damage_to_every_file_is_found() {
    let Some(fixtures) = fixtures() else {
        return;
    };
    for (name, layout, world_size, sizes) in [
        ("dcp", Layout::Dcp, Some(2), Sizes::Any),
        ("torch_files", Layout::TorchSave, None, Sizes::Any),
        ("megatron", Layout::Megatron, Some(4), Sizes::Any),
        ("megatron_legacy", Layout::Megatron, Some(4), Sizes::Same),
        ("deepspeed", Layout::DeepSpeed, Some(2), Sizes::Same),
        ("huggingface", Layout::HuggingFace, Some(2), Sizes::Any),
        ("lightning", Layout::Lightning, None, Sizes::Any),
        ("lightning_sharded", Layout::Lightning, Some(2), Sizes::Any),
        ("orbax", Layout::Orbax, Some(2), Sizes::Any),
        ("nemo", Layout::Nemo, Some(4), Sizes::Any),
    ] {
        let root = fixtures.path().join(name);
        let found = only(&root);
        assert_eq!((found.layout, found.step), (layout, 100), "{name}");
        let whole = check(&found, &Selection::Auto);
        assert_eq!(whole.problems, [], "{name}");
        assert_eq!(
            (whole.world_size, whole.sizes),
            (world_size, sizes),
            "{name}"
        );
        let manifest = Manifest::of(&found, &whole, Depth::Full).expect("it can be read");
        assert_eq!(manifest.compare(&whole.listing), Comparison::Same);
        assert_eq!(
            manifest
                .compare_hashes(&found, &whole.listing)
                .expect("it can be read"),
            []
        );
        for file in whole.listing.files.keys() {
            let path = if found.path.is_dir() {
                found.path.join(file)
            } else {
                found.path.clone()
            };
            for damage in DAMAGES {
                let before = harm(&path, damage);
                judge(&root, name, file, damage, &manifest);
                restore(&path, &before);
            }
        }
        assert!(
            check(&found, &Selection::Auto).is_whole(),
            "{name} is as it was"
        );
    }
}

/// Looks at the one checkpoint in `root`, to `file` of which `damage` was done.
fn judge(root: &Path, name: &str, file: &str, damage: Damage, manifest: &Manifest) {
    let damaged = find(root, &Selection::Auto).expect("the directory can be read");
    let Some(damaged) = damaged.first() else {
        assert!(
            matches!(damage, Damage::Missing),
            "{name}: {file} {damage:?}"
        );
        return;
    };
    let checked = check(damaged, &Selection::Auto);
    let path = format!("/{file}");
    let is_unseen = UNSEEN.iter().any(|(layout, end, damages)| {
        *layout == name && path.ends_with(end) && damages.contains(&format!("{damage:?}").as_str())
    });
    assert_eq!(
        checked.is_whole(),
        is_unseen,
        "{name}: {file} {damage:?}: {:?}",
        checked.problems
    );
    // Once it was looked at when it was whole, nothing is unseen.
    match damage {
        Damage::ZeroTail => {
            let changed = manifest
                .compare_hashes(damaged, &checked.listing)
                .expect("it can be read");
            assert_eq!(changed.len(), 1, "{name}: {file} {damage:?}");
        }
        _ if checked.listing.files.len() > 1 => {
            let Comparison::Damaged(problems) = manifest.compare(&checked.listing) else {
                panic!("{name}: {file} {damage:?} is not damage");
            };
            assert_eq!(problems.len(), 1, "{name}: {file} {damage:?}");
        }
        _ => {}
    }
}

fn harm(path: &Path, damage: Damage) -> (Vec<u8>, fs::FileTimes) {
    let bytes = fs::read(path).expect("the fixture is there");
    let metadata = fs::metadata(path).expect("the fixture is there");
    let times = fs::FileTimes::new().set_modified(metadata.modified().expect("files have times"));
    let written = match damage {
        Damage::Missing => {
            fs::remove_file(path).expect("it can be removed");
            return (bytes, times);
        }
        Damage::HalfWritten => bytes[..bytes.len() / 2].to_vec(),
        Damage::LastByteLost => bytes[..bytes.len() - 1].to_vec(),
        Damage::ZeroTail => {
            let from = (bytes.len() - 1) / PAGE * PAGE;
            // What is lost may be more than a page, and never ends in the middle of the file.
            let from = if bytes.len() - from < PAGE {
                from.saturating_sub(PAGE)
            } else {
                from
            };
            let mut zeroed = bytes.clone();
            zeroed[from..].fill(0);
            zeroed
        }
    };
    put(path, &written, times);
    (bytes, times)
}

fn restore(path: &Path, (bytes, times): &(Vec<u8>, fs::FileTimes)) {
    put(path, bytes, *times);
}

/// Writes a file so that its time does not tell.
fn put(path: &Path, bytes: &[u8], times: fs::FileTimes) {
    fs::write(path, bytes).expect("it can be written");
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("it is there");
    file.set_times(times).expect("times can be set");
}

fn only(root: &Path) -> Found {
    let mut found = find(root, &Selection::Auto).expect("the directory can be read");
    assert_eq!(found.len(), 1, "{}: {found:?}", root.display());
    found.remove(0)
}

/// The fixtures, where there is a PyTorch to make them.
#[expect(
    clippy::disallowed_methods,
    reason = "tests create processes and read CI"
)]
fn fixtures() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().expect("a directory");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures.py");
    let made = Command::new(PYTHON)
        .arg(script)
        .arg(directory.path())
        .output();
    let error = match &made {
        Ok(output) if output.status.success() => return Some(directory),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let no_torch = made.is_err() || error.contains("No module named 'torch'");
    let must = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(no_torch && !must, "the fixtures cannot be made: {error}");
    eprintln!("SKIPPED: no PyTorch for {PYTHON} (Debian: python3-torch)");
    None
}
