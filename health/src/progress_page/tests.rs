// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_000_000_000_000;

/// A page as a process writes it that is at step 7 of its third generation.
fn bytes() -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, b"STDFPAGE");
    put(8, &1u32.to_le_bytes());
    put(12, &4096u32.to_le_bytes());
    put(16, &4242u32.to_le_bytes());
    put(20, &44u32.to_le_bytes());
    put(24, &9i32.to_le_bytes());
    put(28, &1i32.to_le_bytes());
    put(32, &3u64.to_le_bytes());
    put(40, &1u64.to_le_bytes());
    for (at, number) in [(128, 5), (136, 7), (144, NOW - 2), (152, NOW - 1), (160, 5)] {
        put(at, &u64::to_le_bytes(number));
    }
    put(192, &8u64.to_le_bytes());
    put(200, &2u32.to_le_bytes());
    put(204, &3u32.to_le_bytes());
    put(208, &(NOW - 3).to_le_bytes());
    put(232, &6u64.to_le_bytes());
    put(240, &0.5f64.to_le_bytes());
    put(248, &8u64.to_le_bytes());
    put(256, &(NOW - 4).to_le_bytes());
    put(512, &5u16.to_le_bytes());
    put(514, b"/ckpt");
    bytes
}

fn directory_with(content: &[u8]) -> (tempfile::TempDir, PageDirectory) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("1.page"), content).unwrap();
    let mut pages = PageDirectory::new(directory.path().to_owned());
    assert_eq!(pages.scan(), Vec::<String>::new());
    (directory, pages)
}

#[track_caller]
fn noted(content: &[u8], words: &str) {
    let (_directory, mut pages) = directory_with(content);
    let look = pages.look(NOW);
    assert!(look.pages.is_empty());
    assert!(look.notes[0].contains(words), "{:?}", look.notes);
    let again = pages.look(NOW);
    assert!(again.notes.is_empty(), "told once: {:?}", again.notes);
}

#[test]
fn every_field_is_where_the_documentation_says() {
    let (directory, mut pages) = directory_with(&bytes());
    let expected = Page {
        pid: 4242,
        rank: Some(9),
        local_rank: Some(1),
        generation: 3,
        created_ns: 1,
        stack_signal: Some(44),
        step: Some(PageStep {
            number: 7,
            source: StepSource::Stated,
            at_ns: NOW - 2,
        }),
        changed_ns: NOW - 1,
        phase: PagePhase::Checkpoint,
        phase_ns: NOW - 3,
        collectives: None,
        checkpoint_request: None,
        asked_ns: Some(NOW - 4),
        checkpoint_done: Some(6),
        checkpoint_path: Some("/ckpt".into()),
        loss: Some(0.5),
    };
    assert_eq!(pages.look(NOW).pages, [expected]);
    assert_eq!(pages.request_checkpoint(12, 0), 1);
    assert_eq!(pages.look(NOW).pages[0].checkpoint_request, Some(12));
    let file = fs::read(directory.path().join("1.page")).unwrap();
    assert_eq!(file[64], 12, "where the process looks for it");
}

#[test]
fn a_loss_that_is_no_number_is_told_from_none() {
    let with = |bits: u64| {
        let mut page = bytes();
        page[240..248].copy_from_slice(&bits.to_le_bytes());
        let (_directory, mut pages) = directory_with(&page);
        pages.look(NOW).pages[0].loss
    };
    assert!(with(0x7ff8_0000_0000_0001).is_some_and(f64::is_nan));
    assert_eq!(with(f64::NAN.to_bits()), None);
    assert_eq!(with(f64::INFINITY.to_bits()), Some(f64::INFINITY));
}

#[test]
fn pages_that_make_no_sense_are_ignored_with_a_note() {
    noted(b"", "has 0 bytes");
    noted(&bytes()[..4095], "has 4095 bytes");
    noted(&[0xff; PAGE_SIZE], "is not a progress page");
    let mut other_version = bytes();
    other_version[8] = 9;
    noted(&other_version, "has version 9");
    let mut future = bytes();
    future[144..152].copy_from_slice(&(NOW * 2).to_le_bytes());
    noted(&future, "has not come yet");
}

#[test]
fn a_page_that_is_being_written_keeps_its_last_state() {
    let (directory, mut pages) = directory_with(&bytes());
    let before = pages.look(NOW).pages;
    let mut torn = bytes();
    torn[136] = 99;
    torn[128] = 6;
    fs::write(directory.path().join("1.page"), torn).unwrap();
    let look = pages.look(NOW);
    assert_eq!(look.pages, before);
    assert!(look.notes.is_empty());
}

#[test]
fn a_page_that_shrinks_or_vanishes_is_noted() {
    let (directory, mut pages) = directory_with(&bytes());
    let path = directory.path().join("1.page");
    fs::remove_file(&path).unwrap();
    assert!(pages.scan()[0].contains("has vanished"));
    assert!(pages.look(NOW).pages.is_empty());

    fs::write(&path, bytes()).unwrap();
    assert!(pages.scan().is_empty());
    assert_eq!(pages.look(NOW).pages.len(), 1);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    assert!(pages.look(NOW).notes[0].contains("has 10 bytes"));

    drop(directory);
    assert!(pages.scan()[0].contains("cannot be read any more"));
    assert!(pages.scan().is_empty());
}

#[test]
fn what_is_no_plain_file_is_never_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("target"), bytes()).unwrap();
    symlink(at("target"), at("link.page")).unwrap();
    fs::create_dir(at("directory.page")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe.page"), rustix::fs::Mode::RWXU).unwrap();
    fs::write(at("other.stacks"), bytes()).unwrap();
    let mut pages = PageDirectory::new(directory.path().to_owned());
    let notes = pages.scan();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(pages.look(NOW).pages.is_empty());
}

#[test]
fn a_flood_of_pages_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..300 {
        fs::write(directory.path().join(format!("{number}.page")), bytes()).unwrap();
    }
    let mut pages = PageDirectory::new(directory.path().to_owned());
    assert!(pages.scan()[0].contains("more than 256"));
    assert!(pages.scan().is_empty());
    assert_eq!(pages.look(NOW).pages.len(), 256);
}

#[test]
fn no_directory_is_no_news() {
    let mut pages = PageDirectory::new(Path::new("/nonexistent/pages").to_owned());
    assert!(pages.scan().is_empty());
    assert!(pages.look(NOW).pages.is_empty());
}

#[test]
fn the_process_that_steps_and_knows_its_rank_leads() {
    let (_directory, mut pages) = directory_with(&bytes());
    let rank = pages.look(NOW).pages.remove(0);
    let launcher = Page {
        step: None,
        changed_ns: NOW,
        ..rank.clone()
    };
    let nobody = Page {
        rank: None,
        changed_ns: NOW,
        ..rank.clone()
    };
    let all = [launcher.clone(), rank.clone(), nobody];
    assert_eq!(Page::leading(&all), Some(&rank));
    assert_eq!(Page::leading(&all[..1]), Some(&launcher));
    assert_eq!(Page::leading(&[]), None);
}

proptest! {
    #[test]
    fn no_content_does_harm(content in proptest::collection::vec(any::<u8>(), 0..5000), valid in any::<bool>()) {
        let mut content = content;
        if valid {
            content.resize(PAGE_SIZE, 0xa5);
            content[..12].copy_from_slice(&bytes()[..12]);
            let (begin, state) = (content[128..136].to_vec(), content[192..200].to_vec());
            content[160..168].copy_from_slice(&begin);
            content[248..256].copy_from_slice(&state);
        }
        let (_directory, mut pages) = directory_with(&content);
        pages.look(NOW);
    }
}
