// SPDX-License-Identifier: Apache-2.0

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;

use std::time::SystemTime;

use super::*;
use crate::doctor::Machine;
use crate::scenario::Capability;
use crate::tools::run;

/// Runs a test on such a file system, where there can be one. It is unmounted also when the test fails.
fn on_disk(test: impl FnOnce(&Path, &Path, &Sickness)) {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let path = self.0.path().join("front");
            run(&["umount", "--lazy", &path.to_string_lossy()], "").unwrap();
        }
    }
    let machine = Machine::look();
    if let Some(reason) = machine.obstacle(Capability::UserFileSystem) {
        eprintln!("SKIPPED: no file system can be mounted by FUSE here: {reason}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (behind, front) = (
        directory.path().join("behind"),
        directory.path().join("front"),
    );
    fs::create_dir(&behind).unwrap();
    fs::create_dir(&front).unwrap();
    let disk = SickDisk::mount(&behind, &front).unwrap();
    let _mounted = Mounted(directory);
    test(&front, &behind, &disk.sickness);
}

#[test]
fn a_well_one_is_as_the_directory_behind_it() {
    on_disk(|front, behind, sickness| {
        fs::create_dir_all(front.join("a/b")).unwrap();
        fs::write(front.join("a/b/one"), "first").unwrap();
        fs::rename(front.join("a"), front.join("c")).unwrap();
        assert_eq!(fs::read_to_string(behind.join("c/b/one")).unwrap(), "first");
        assert_eq!(fs::read_to_string(front.join("c/b/one")).unwrap(), "first");
        fs::hard_link(front.join("c/b/one"), front.join("two")).unwrap();
        std::os::unix::fs::symlink("two", front.join("three")).unwrap();
        assert_eq!(fs::read_to_string(front.join("three")).unwrap(), "first");
        let mut names: Vec<_> = fs::read_dir(front)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["c", "three", "two"]);

        // One that is removed can still be read and looked at by who has it open.
        let mut open = File::open(front.join("two")).unwrap();
        fs::remove_file(front.join("two")).unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(
            (text.as_str(), open.metadata().unwrap().len()),
            ("first", 5)
        );
        assert!(!front.join("two").exists() && !behind.join("two").exists());

        let mut log = File::options()
            .create(true)
            .append(true)
            .open(front.join("log"))
            .unwrap();
        log.write_all(b"one ").unwrap();
        log.write_all(b"two").unwrap();
        log.sync_all().unwrap();
        log.set_len(5).unwrap();
        assert_eq!(log.stream_position().unwrap(), 7);
        assert_eq!(fs::read_to_string(front.join("log")).unwrap(), "one t");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        log.set_modified(long_ago).unwrap();
        assert_eq!(log.metadata().unwrap().modified().unwrap(), long_ago);
        fs::remove_dir_all(front.join("c")).unwrap();
        assert!(!behind.join("c").exists());
        assert_eq!(sickness.hits(), 0);
    });
}

#[test]
fn what_fails_fails_until_it_is_well_again_and_is_counted() {
    const EIO: i32 = 5;
    on_disk(|front, behind, sickness| {
        let file = File::create_new(front.join("file")).unwrap();
        let errno = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());

        sickness.set(Some(Ailment::Fails(DiskCall::Fsync)));
        file.write_all_at(b"0123", 0).unwrap();
        assert_eq!(errno(file.sync_all()), Some(EIO));
        assert_eq!(errno(File::open(front).unwrap().sync_all()), Some(EIO));
        assert_eq!(sickness.hits(), 2);

        sickness.set(Some(Ailment::Fails(DiskCall::Write)));
        assert_eq!(errno(file.write_all_at(b"4567", 4)), Some(EIO));
        file.sync_all().unwrap();
        sickness.set(Some(Ailment::Fails(DiskCall::Read)));
        assert_eq!(errno(fs::read(front.join("file")).map(drop)), Some(EIO));

        sickness.set(Some(Ailment::ShortWrites));
        assert_eq!(file.write_at(b"4567", 4).unwrap(), 2);
        file.write_all_at(b"67", 6).unwrap();

        let before = sickness.hits();
        sickness.set(Some(Ailment::Slow(Duration::from_millis(1))));
        file.sync_all().unwrap();
        assert_eq!(sickness.hits(), before + 1);
        sickness.set(None);
        file.sync_all().unwrap();
        assert_eq!(sickness.hits(), before + 1);
        assert_eq!(fs::read(behind.join("file")).unwrap(), b"01234567");
    });
}
