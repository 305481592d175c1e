// SPDX-License-Identifier: Apache-2.0
//! Zip archives as `torch.save` writes them: entries stored without compression, the directory at the end
//! (PKWARE's APPNOTE 6.3.10, sections 4.3.6 to 4.3.16).

use std::io;

use super::Slice;

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const ENTRY: &[u8] = b"PK\x01\x02";
const END_LENGTH: usize = 22;
const LONGEST_COMMENT: u64 = 65_535;
/// A directory of a million tensors stays below this.
const LARGEST_DIRECTORY: u64 = 256 << 20;

/// An archive whose directory can be read.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    slice: Slice<'a>,
    directory: Vec<u8>,
}

/// What became of opening one.
#[derive(Debug)]
pub(crate) enum Opened<'a> {
    Archive(Archive<'a>),
    /// What is wrong with it, as the end of a sentence.
    Flaw(String),
}

struct Directory {
    entries: u64,
    size: u64,
    offset: u64,
}

impl<'a> Archive<'a> {
    /// Reads the directory, which is the last thing that is written.
    pub(crate) fn open(slice: &Slice<'a>) -> io::Result<Opened<'a>> {
        let flaw = |what: &str| Ok(Opened::Flaw(what.to_owned()));
        let Some((end_at, end)) = end_record(slice)? else {
            return flaw("has no directory at its end: it was not written to the end");
        };
        let (Some(directory), Some(entries)) = (
            directory(slice, end_at, &end)?,
            u16_at(&end, 10).map(u64::from),
        ) else {
            return flaw("has a damaged directory");
        };
        if directory.size > LARGEST_DIRECTORY
            || directory.offset.saturating_add(directory.size) > end_at
            || directory.entries & 0xffff != entries && entries != 0xffff
        {
            return flaw("has a damaged directory");
        }
        let Some(bytes) = slice.read(directory.offset, directory.size)? else {
            return flaw("has a damaged directory");
        };
        let archive = Archive {
            slice: *slice,
            directory: bytes,
        };
        let entries = archive.entries().count() as u64;
        if entries != directory.entries {
            return Ok(Opened::Flaw(format!(
                "has a damaged directory: {entries} of {} entries can be read",
                directory.entries
            )));
        }
        if archive
            .entries()
            .any(|entry| entry.end() > directory.offset)
        {
            return flaw("has a directory with entries that are not in the file");
        }
        Ok(Opened::Archive(archive))
    }

    /// The bytes of the first entry of this name, whatever directory of the archive it is in. `None` when there is none,
    /// it is compressed or larger than `largest`.
    pub(crate) fn stored(&self, name: &str, largest: u64) -> io::Result<Option<Vec<u8>>> {
        let wanted = |entry: &Entry<'_>| {
            let rest = entry.name.strip_suffix(name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(b"/"))
        };
        let Some(entry) = self.entries().find(wanted) else {
            return Ok(None);
        };
        if entry.method != 0 || entry.size > largest {
            return Ok(None);
        }
        // The name and the extra field may have other lengths here than in the directory.
        let Some(header) = self.slice.read(entry.offset, 30)? else {
            return Ok(None);
        };
        let (Some(name), Some(extra)) = (u16_at(&header, 26), u16_at(&header, 28)) else {
            return Ok(None);
        };
        let at = entry
            .offset
            .saturating_add(30 + u64::from(name) + u64::from(extra));
        self.slice.read(at, entry.size)
    }

    fn entries(&self) -> Entries<'_> {
        Entries {
            rest: &self.directory,
        }
    }
}

/// The record at the very end, and where it begins.
fn end_record(slice: &Slice<'_>) -> io::Result<Option<(u64, Vec<u8>)>> {
    let Some(at) = slice.length.checked_sub(END_LENGTH as u64) else {
        return Ok(None);
    };
    // Nearly always there is no comment behind it.
    if let Some(end) = slice.read(at, END_LENGTH as u64)?
        && end.starts_with(END)
        && u16_at(&end, 20) == Some(0)
    {
        return Ok(Some((at, end)));
    }
    let from = at.saturating_sub(LONGEST_COMMENT);
    let Some(tail) = slice.read(from, slice.length - from)? else {
        return Ok(None);
    };
    let found = tail
        .windows(END_LENGTH)
        .enumerate()
        .rev()
        .find(|(at, window)| {
            let behind = tail.len() - at - END_LENGTH;
            window.starts_with(END) && u16_at(window, 20).map(usize::from) == Some(behind)
        });
    Ok(found.map(|(at, window)| (from + at as u64, window.to_vec())))
}

fn directory(slice: &Slice<'_>, end_at: u64, end: &[u8]) -> io::Result<Option<Directory>> {
    let (Some(entries), Some(size), Some(offset)) =
        (u16_at(end, 10), u32_at(end, 12), u32_at(end, 16))
    else {
        return Ok(None);
    };
    if entries != u16::MAX && size != u32::MAX && offset != u32::MAX {
        return Ok(Some(Directory {
            entries: entries.into(),
            size: size.into(),
            offset: offset.into(),
        }));
    }
    let Some(locator_at) = end_at.checked_sub(20) else {
        return Ok(None);
    };
    let Some(locator) = slice.read(locator_at, 20)? else {
        return Ok(None);
    };
    let Some(at) = u64_at(&locator, 8).filter(|_| locator.starts_with(LOCATOR_64)) else {
        return Ok(None);
    };
    let Some(end) = slice.read(at, 56)?.filter(|end| end.starts_with(END_64)) else {
        return Ok(None);
    };
    let numbers = (u64_at(&end, 32), u64_at(&end, 40), u64_at(&end, 48));
    let (Some(entries), Some(size), Some(offset)) = numbers else {
        return Ok(None);
    };
    Ok(Some(Directory {
        entries,
        size,
        offset,
    }))
}

struct Entry<'a> {
    name: &'a [u8],
    method: u16,
    /// Of the bytes as they are in the file.
    size: u64,
    offset: u64,
}

impl Entry<'_> {
    /// The least place at which it can end.
    fn end(&self) -> u64 {
        self.offset
            .saturating_add(30 + self.name.len() as u64)
            .saturating_add(self.size)
    }
}

struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let here = self.rest;
        if !here.starts_with(ENTRY) {
            return None;
        }
        let name_end = 46 + usize::from(u16_at(here, 28)?);
        let extra_end = name_end + usize::from(u16_at(here, 30)?);
        let next = extra_end + usize::from(u16_at(here, 32)?);
        let name = here.get(46..name_end)?;
        let extra = here.get(name_end..extra_end)?;
        self.rest = here.get(next..)?;
        let mut size = u64::from(u32_at(here, 20)?);
        let uncompressed = u32_at(here, 24)?;
        let mut offset = u64::from(u32_at(here, 42)?);
        // What does not fit is in the zip64 field, in this order, and only what does not fit.
        let mut wide = zip64(extra).unwrap_or_default().chunks_exact(8);
        let mut next_wide = || u64_at(wide.next()?, 0);
        if uncompressed == u32::MAX {
            next_wide()?;
        }
        if size == u64::from(u32::MAX) {
            size = next_wide()?;
        }
        if offset == u64::from(u32::MAX) {
            offset = next_wide()?;
        }
        Some(Entry {
            name,
            method: u16_at(here, 10)?,
            size,
            offset,
        })
    }
}

fn zip64(mut extra: &[u8]) -> Option<&[u8]> {
    loop {
        let (id, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        if id == 1 {
            return extra.get(4..4 + length);
        }
        extra = extra.get(4 + length..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let found = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes(found.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let found = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(found.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(found.try_into().ok()?))
}
