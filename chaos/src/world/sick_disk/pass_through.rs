// SPDX-License-Identifier: Apache-2.0
//! The calls of the kernel, each passed on to the directory behind.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    chown, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use super::Sickness;
use super::handles::{Entry, Handles};
use super::names::Names;
use crate::scenario::DiskCall;

/// Nothing is remembered by the kernel: it asks again each time.
const TTL: Duration = Duration::ZERO;

type Answer<T> = Result<T, Errno>;

/// The file system.
#[derive(Debug)]
pub(super) struct PassThrough {
    root: PathBuf,
    names: Mutex<Names>,
    handles: Mutex<Handles>,
    sickness: Arc<Sickness>,
}

impl PassThrough {
    pub(super) fn new(root: PathBuf, sickness: Arc<Sickness>) -> Self {
        Self {
            names: Mutex::new(Names::new(root.clone())),
            handles: Mutex::default(),
            root,
            sickness,
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, number: INodeNo) -> Answer<PathBuf> {
        self.names().path(number)
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Answer<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn entry(&self, path: &Path) -> Answer<FileAttr> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(attributes(self.names().number(path), &metadata))
    }

    fn look(&self, number: INodeNo, handle: Option<FileHandle>) -> Answer<FileAttr> {
        let open = handle.and_then(|handle| self.handles().file(handle).ok());
        let open = open.or_else(|| self.handles().any_of(number));
        let metadata = match open {
            Some(file) => file.metadata()?,
            None => fs::symlink_metadata(self.path(number)?)?,
        };
        Ok(attributes(number, &metadata))
    }

    fn open_file(path: &Path, flags: i32, mode: Option<u32>) -> Answer<File> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let way = flags & OFlags::RWMODE;
        // The kernel says where each piece goes, also to one who appends.
        let more = flags & (OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW);
        let mut options = OpenOptions::new();
        options
            .read(way != OFlags::WRONLY)
            .write(way != OFlags::RDONLY)
            .custom_flags(more.bits().cast_signed());
        if let Some(mode) = mode {
            options.write(true).create(true).mode(mode);
        }
        Ok(options.open(path)?)
    }

    fn write_at(&self, handle: FileHandle, offset: u64, data: &[u8]) -> Answer<u32> {
        let taken = self.sickness.on(DiskCall::Write, data.len())?;
        let file = self.handles().file(handle)?;
        file.write_all_at(data.get(..taken).unwrap_or(data), offset)?;
        u32::try_from(taken).map_err(|_| Errno::EINVAL)
    }

    fn read_at(&self, handle: FileHandle, offset: u64, size: u32) -> Answer<Vec<u8>> {
        self.sickness.on(DiskCall::Read, size as usize)?;
        let file = self.handles().file(handle)?;
        let mut bytes = vec![0; size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let at = offset.saturating_add(filled as u64);
            match file.read_at(bytes.get_mut(filled..).unwrap_or_default(), at) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn sync(&self, file: &File, data_only: bool) -> Answer<()> {
        self.sickness.on(DiskCall::Fsync, 0)?;
        if data_only {
            file.sync_data()?;
        } else {
            file.sync_all()?;
        }
        Ok(())
    }

    fn list(&self, number: INodeNo) -> Answer<Vec<Entry>> {
        let path = self.path(number)?;
        let dot = |name: &str| Entry {
            number,
            kind: FileType::Directory,
            name: name.into(),
        };
        let mut entries = vec![dot("."), dot("..")];
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            entries.push(Entry {
                number: self.names().number(&entry.path()),
                kind: FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile),
                name: entry.file_name(),
            });
        }
        Ok(entries)
    }

    fn remove(
        &self,
        parent: INodeNo,
        name: &OsStr,
        remove: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Answer<()> {
        let path = self.child(parent, name)?;
        remove(&path)?;
        self.names().removed(&path);
        Ok(())
    }

    fn rename_to(&self, from: &Path, to: &Path, flags: RenameFlags) -> Answer<()> {
        if !flags.is_empty() {
            // As many a network file system does.
            return Err(Errno::EINVAL);
        }
        fs::rename(from, to)?;
        self.names().moved(from, to);
        Ok(())
    }

    fn resize(&self, path: &Path, handle: Option<FileHandle>, size: u64) -> Answer<()> {
        let open = handle.and_then(|handle| self.handles().file(handle).ok());
        match open {
            Some(file) => file.set_len(size)?,
            None => OpenOptions::new().write(true).open(path)?.set_len(size)?,
        }
        Ok(())
    }
}

impl Filesystem for PassThrough {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.child(parent, name).and_then(|path| self.entry(&path));
        enter(found, reply);
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        describe(self.look(number, handle), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_mac: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || -> Answer<FileAttr> {
            let path = self.path(number)?;
            if let Some(mode) = mode {
                fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777))?;
            }
            if uid.is_some() || gid.is_some() {
                chown(&path, uid, gid)?;
            }
            if let Some(size) = size {
                self.resize(&path, handle, size)?;
            }
            if accessed.is_some() || modified.is_some() {
                let times = Timestamps {
                    last_access: timespec(accessed),
                    last_modification: timespec(modified),
                };
                utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|errno| Errno::from_i32(errno.raw_os_error()))?;
            }
            self.look(number, handle)
        };
        describe(set(), reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let target = || Ok::<_, Errno>(fs::read_link(self.path(number)?)?);
        match target() {
            Ok(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = || {
            let path = self.child(parent, name)?;
            fs::DirBuilder::new().mode(mode & !umask).create(&path)?;
            self.entry(&path)
        };
        enter(make(), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |path: &Path| fs::remove_file(path);
        end(self.remove(parent, name, remove), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |path: &Path| fs::remove_dir(path);
        end(self.remove(parent, name, remove), reply);
    }

    fn symlink(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = || {
            let path = self.child(parent, name)?;
            symlink(target, &path)?;
            self.entry(&path)
        };
        enter(make(), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let (from, to) = (self.child(parent, name)?, self.child(new_parent, new_name)?);
            self.rename_to(&from, &to, flags)
        };
        end(rename(), reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let link = || {
            let path = self.child(new_parent, new_name)?;
            fs::hard_link(self.path(number)?, &path)?;
            self.entry(&path)
        };
        enter(link(), reply);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = || {
            let file = Self::open_file(&self.path(number)?, flags.0, None)?;
            Ok(self.handles().add_file(number, file))
        };
        opened(open(), reply);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let path = self.child(parent, name)?;
            let file = Self::open_file(&path, flags, Some(mode & !umask & 0o7777))?;
            let attributes = self.entry(&path)?;
            let handle = self.handles().add_file(attributes.ino, file);
            Ok::<_, Errno>((attributes, handle))
        };
        match create() {
            Ok((attributes, handle)) => {
                let nothing = FopenFlags::empty();
                reply.created(&TTL, &attributes, Generation(0), handle, nothing);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_at(handle, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_at(handle, offset, data) {
            Ok(written) => reply.written(written),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles().close(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let file = self.handles().file(handle);
        end(file.and_then(|file| self.sync(&file, data_only)), reply);
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let entries = self.list(number);
        opened(entries.map(|all| self.handles().add_directory(all)), reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.handles().directory(handle) {
            Ok(entries) => entries,
            Err(errno) => return reply.error(errno),
        };
        for (index, entry) in (1_u64..).zip(entries.iter()) {
            if index > offset && reply.add(entry.number, index, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles().close(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let sync = || self.sync(&File::open(self.path(number)?)?, data_only);
        end(sync(), reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.root) {
            Ok(is) => reply.statfs(
                is.f_blocks,
                is.f_bfree,
                is.f_bavail,
                is.f_files,
                is.f_ffree,
                u32::try_from(is.f_bsize).unwrap_or(4096),
                u32::try_from(is.f_namemax).unwrap_or(255),
                u32::try_from(is.f_frsize).unwrap_or(4096),
            ),
            Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
        }
    }
}

fn enter(found: Answer<FileAttr>, reply: ReplyEntry) {
    match found {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn describe(found: Answer<FileAttr>, reply: ReplyAttr) {
    match found {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(errno) => reply.error(errno),
    }
}

fn opened(handle: Answer<FileHandle>, reply: ReplyOpen) {
    match handle {
        Ok(handle) => reply.opened(handle, FopenFlags::empty()),
        Err(errno) => reply.error(errno),
    }
}

fn end(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn attributes(number: INodeNo, metadata: &Metadata) -> FileAttr {
    let time = |time: io::Result<SystemTime>| time.unwrap_or(UNIX_EPOCH);
    let changed = Duration::from_secs(u64::try_from(metadata.ctime()).unwrap_or(0));
    FileAttr {
        ino: number,
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.accessed()),
        mtime: time(metadata.modified()),
        ctime: UNIX_EPOCH + changed,
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(since.subsec_nanos()),
            }
        }
    }
}
