// SPDX-License-Identifier: Apache-2.0
//! The bytes of an embedded store: a snapshot and the records since, written so that death at any byte loses nothing
//! that was acknowledged.
//!
//! Two headers of 32 bytes at the start say where the snapshot lies; the valid one with the higher sequence holds. A
//! compaction writes the new snapshot where it touches nothing that is alive, and then the header that is *not* in force:
//! until that header is complete, the old one holds. A frame's checksum covers the sequence of its snapshot, so that what
//! is left of an older log is never taken for a record of this one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steadfast_core::{LeaseId, Operation, StoreState};

use super::Medium;
use crate::StoreError;

const MAGIC: u64 = 0x5354_4644_4C4F_4731;
const HEADER: usize = 32;
const HEADERS: u64 = 64;
const FRAME_HEADER: usize = 12;
/// A log is compacted when it is larger than this and than four snapshots.
const GROWN: u64 = 256 * 1024;

/// Something that happened to the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Record {
    Write(Vec<Operation>),
    Grant { lease: LeaseId, ttl_ms: u64 },
    EndLease(LeaseId),
}

/// The whole store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) state: StoreState,
    pub(super) leases: BTreeMap<LeaseId, u64>,
    pub(super) next_lease: i64,
}

#[derive(Debug)]
pub(super) struct Journal {
    medium: Box<dyn Medium>,
    sequence: u64,
    /// Where the snapshot begins, where the records begin, and where the next one goes.
    start: u64,
    records: u64,
    end: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            state: StoreState::default(),
            leases: BTreeMap::new(),
            next_lease: 1,
        }
    }
}

impl Journal {
    pub(super) fn open(
        mut medium: Box<dyn Medium>,
    ) -> Result<(Self, Snapshot, Vec<Record>), StoreError> {
        let bytes = medium.load().map_err(failed("load"))?;
        let first = read_header(&bytes, 0);
        let second = read_header(&bytes, 1);
        let Some((sequence, start)) = first.max(second) else {
            // The first header that is ever written is number 0: a torn one is a store that never came to be.
            if bytes
                .iter()
                .skip(HEADER)
                .take(HEADER)
                .any(|byte| *byte != 0)
            {
                return Err(StoreError::Corrupt("both headers are damaged".to_owned()));
            }
            return Self::create(medium);
        };
        let mut frames = Frames {
            bytes: &bytes,
            sequence,
            offset: start,
        };
        let snapshot = frames
            .next()
            .and_then(|payload| serde_json::from_slice(payload).ok())
            .ok_or_else(|| StoreError::Corrupt("the snapshot is damaged".to_owned()))?;
        let records_start = frames.offset;
        let mut records = Vec::new();
        while let Some(payload) = frames.next() {
            let record = serde_json::from_slice(payload)
                .map_err(|error| StoreError::Corrupt(format!("a record is damaged: {error}")))?;
            records.push(record);
        }
        let journal = Self {
            sequence,
            start,
            records: records_start,
            end: frames.offset,
            medium,
        };
        Ok((journal, snapshot, records))
    }

    fn create(medium: Box<dyn Medium>) -> Result<(Self, Snapshot, Vec<Record>), StoreError> {
        let mut journal = Self {
            medium,
            sequence: 0,
            start: HEADERS,
            records: HEADERS,
            end: HEADERS,
        };
        let snapshot = Snapshot::default();
        // The header of sequence 0 is number 0.
        journal.put_snapshot(&snapshot, 0, HEADERS)?;
        Ok((journal, snapshot, Vec::new()))
    }

    /// Writes a record. When this returns without error, the record survives the process.
    pub(super) fn append(&mut self, record: &Record) -> Result<(), StoreError> {
        let frame = frame(self.sequence, record)?;
        self.medium
            .write(self.end, &frame)
            .map_err(failed("write to"))?;
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Whether a compaction would be worth its while.
    pub(super) fn is_grown(&self) -> bool {
        let log = self.end - self.records;
        let snapshot = self.records - self.start;
        log > GROWN && log > 4 * snapshot
    }

    /// Puts a snapshot in the place of everything that was written so far.
    pub(super) fn compact(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let sequence = self.sequence + 1;
        let length = frame(sequence, snapshot)?.len() as u64;
        let before = HEADERS + length <= self.start;
        let start = if before { HEADERS } else { self.end };
        self.put_snapshot(snapshot, sequence, start)?;
        if before {
            // What lies behind is the old log; giving its memory back is all that this is for.
            self.medium.truncate(self.end).map_err(failed("shorten"))?;
        }
        Ok(())
    }

    fn put_snapshot(
        &mut self,
        snapshot: &Snapshot,
        sequence: u64,
        start: u64,
    ) -> Result<(), StoreError> {
        let frame = frame(sequence, snapshot)?;
        self.medium
            .write(start, &frame)
            .map_err(failed("write to"))?;
        let slot = (sequence % 2) * HEADER as u64;
        self.medium
            .write(slot, &header(sequence, start))
            .map_err(failed("write to"))?;
        self.sequence = sequence;
        self.start = start;
        self.records = start + frame.len() as u64;
        self.end = self.records;
        Ok(())
    }
}

/// Reads frames one after the other, up to the first that is not whole.
struct Frames<'a> {
    bytes: &'a [u8],
    sequence: u64,
    offset: u64,
}

impl<'a> Frames<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let rest = self.bytes.get(start..)?;
        let (head, rest) = rest.split_at_checked(FRAME_HEADER)?;
        let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
        let checksum = u64::from_le_bytes(head[4..].try_into().ok()?);
        let payload = rest.get(..length)?;
        if checksum != checksum_of(self.sequence, payload) {
            return None;
        }
        self.offset += (FRAME_HEADER + length) as u64;
        Some(payload)
    }
}

fn frame<T: Serialize>(sequence: u64, value: &T) -> Result<Vec<u8>, StoreError> {
    let payload = serde_json::to_vec(value)
        .map_err(|error| StoreError::Corrupt(format!("a record cannot be written: {error}")))?;
    let length = u32::try_from(payload.len())
        .map_err(|_| StoreError::Corrupt("a record is larger than 4 GiB".to_owned()))?;
    let mut frame = Vec::with_capacity(FRAME_HEADER + payload.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&checksum_of(sequence, &payload).to_le_bytes());
    frame.extend_from_slice(&payload);
    Ok(frame)
}

fn header(sequence: u64, start: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&start.to_le_bytes());
    let checksum = checksum_of(MAGIC, &header[..24]);
    header[24..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Sequence and start of a header, if it is whole.
fn read_header(bytes: &[u8], slot: usize) -> Option<(u64, u64)> {
    let header = bytes.get(slot * HEADER..(slot + 1) * HEADER)?;
    let word = |index: usize| {
        let bytes = header.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let whole = word(0)? == MAGIC && word(3)? == checksum_of(MAGIC, &header[..24]);
    whole.then_some((word(1)?, word(2)?))
}

/// FNV-1a, 64 bits: finds torn writes, which is all that can happen to memory of a process that died.
fn checksum_of(sequence: u64, payload: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in sequence.to_le_bytes().iter().chain(payload) {
        hash ^= u64::from(*byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01B3);
    }
    hash
}

fn failed(operation: &'static str) -> impl FnOnce(std::io::Error) -> StoreError {
    move |source| StoreError::Medium { operation, source }
}
