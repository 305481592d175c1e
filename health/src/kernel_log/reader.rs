// SPDX-License-Identifier: Apache-2.0
//! From lines to events.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::event::{DriverKind, Event, What};
use super::header::{self, Header, LineSource};
use super::pci::PciAddress;
use super::{driver_line, switch_line, system_line, xid_line};

/// The most bytes of a line that are looked at: the kernel writes no longer ones.
const MAX_LINE: usize = 8 << 10;

/// The most GPUs whose identity is kept, several times what a machine holds.
const MAX_GPUS: usize = 1024;

/// The most switches that are remembered, several times what a machine holds.
const MAX_SWITCHES: usize = 256;

/// Reads a log line by line, and puts together what the kernel spreads over several lines: the further lines of an SXID
/// make no event of their own, and a GPU that is missing at the start gets its address.
#[derive(Debug, Default)]
pub struct KernelLog {
    /// The SXID that each switch reported last.
    last_error: BTreeMap<u32, u32>,
    /// The identity of each GPU, where the log has told it.
    uuids: BTreeMap<PciAddress, String>,
    /// The GPU that the driver is about to report as missing.
    missing: Option<PciAddress>,
}

impl KernelLog {
    /// A log of which nothing has been read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next line, with or without line end, or the next record of `/dev/kmsg`.
    pub fn push(&mut self, line: &[u8]) -> Option<Event> {
        let text = read(line);
        let (header, message) = split(&text);
        // A record may hold several lines; the first that means something speaks for all.
        message
            .split('\n')
            .find_map(|message| self.message(&header, message))
    }

    fn message(&mut self, header: &Header, message: &str) -> Option<Event> {
        if let Some(after) = message.strip_prefix("NVRM: ")
            && let Some(pci) = driver_line::probe_start(after)
        {
            self.missing = Some(pci);
        }
        let mut event = understand(header, message)?;
        match &mut event.what {
            What::Driver(driver) if driver.kind == DriverKind::GpuLostAtProbe => {
                driver.pci = driver.pci.or(self.missing.take());
            }
            What::Sxid(error) => {
                let known = self.last_error.get(&error.switch) == Some(&error.code);
                if error.continuation.is_some() && known {
                    return None;
                }
                if known_or_room(&self.last_error, error.switch) {
                    self.last_error.insert(error.switch, error.code);
                }
            }
            What::Driver(driver) => {
                if let (Some(pci), Some(uuid)) = (driver.pci, &driver.uuid)
                    && (self.uuids.len() < MAX_GPUS || self.uuids.contains_key(&pci))
                {
                    self.uuids.insert(pci, uuid.clone());
                }
            }
            _ => {}
        }
        if event.uuid.is_none() {
            event.uuid = event.pci().and_then(|pci| self.uuids.get(&pci)).cloned();
        }
        Some(event)
    }
}

fn known_or_room(errors: &BTreeMap<u32, u32>, switch: u32) -> bool {
    errors.len() < MAX_SWITCHES || errors.contains_key(&switch)
}

/// Reads one line alone; absent if it says nothing of interest.
pub fn parse_line(line: &[u8]) -> Option<Event> {
    let text = read(line);
    let (header, message) = split(&text);
    message
        .split('\n')
        .find_map(|message| understand(&header, message))
}

fn read(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(line.get(..MAX_LINE).unwrap_or(line))
}

/// The header, and the message with the escapes of a record undone.
fn split(text: &str) -> (Header, Cow<'_, str>) {
    let text = text.trim_end_matches(['\n', '\r', '\0']);
    let text = text.trim_start_matches('\u{feff}');
    let (mut header, body) = match header::record(text) {
        Some((header, body)) => (header, Cow::Owned(unescape(first_line(body)))),
        None => (Header::default(), Cow::Borrowed(text)),
    };
    let body = match body {
        Cow::Borrowed(text) => Cow::Borrowed(header::strip(&mut header, text)),
        Cow::Owned(text) => Cow::Owned(header::strip(&mut header, &text).to_owned()),
    };
    let shipped = header.sequence.is_none()
        && !matches!(header.source, LineSource::Program(_))
        && !is_driver_message(&body);
    // What carries logs about puts words of its own before them.
    let inner = shipped.then(|| find_driver_message(&body)).flatten();
    match inner {
        Some(start) => {
            let message = body.get(start..).unwrap_or_default().to_owned();
            (header, Cow::Owned(message))
        }
        None => (header, body),
    }
}

/// Further lines of a record are ` KEY=value` pairs about the device.
fn first_line(body: &str) -> &str {
    match body.find("\n ") {
        Some(end) => body.get(..end).unwrap_or(body),
        None => body,
    }
}

fn is_driver_message(message: &str) -> bool {
    message.starts_with("NVRM: ") || message.starts_with("nvidia-nvswitch")
}

fn find_driver_message(message: &str) -> Option<usize> {
    let bytes = message.as_bytes();
    let start = memchr::memmem::find(bytes, b" NVRM: Xid (")
        .or_else(|| memchr::memmem::find(bytes, b" nvidia-nvswitch"))?;
    Some(start + 1)
}

/// Undoes `\xNN`, as records of `/dev/kmsg` write every byte that is not plain text.
fn unescape(text: &str) -> String {
    if !text.contains("\\x") {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after
            .strip_prefix(b"x")
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let Some(byte) = escaped {
            bytes.push(byte);
            rest = after.get(3..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn understand(header: &Header, message: &str) -> Option<Event> {
    let event = |what, message: &str| {
        Some(Event {
            header: header.clone(),
            what,
            uuid: None,
            message: message.to_owned(),
        })
    };
    if let Some(text) = message.strip_prefix("NVRM: ") {
        if let Some(after) = text.strip_prefix("Xid") {
            let (what, rest) = xid_line::parse(after);
            return event(what, rest);
        }
        return event(What::Driver(driver_line::parse(text)?), text);
    }
    if let Some(after) = message.strip_prefix("nvidia-nvswitch") {
        let (what, rest) = switch_line::parse(after)?;
        return event(what, rest);
    }
    if let Some(found) = driver_line::around(message) {
        return event(What::Driver(found), message);
    }
    event(What::System(system_line::parse(message)?), message)
}
