// SPDX-License-Identifier: Apache-2.0
//! Events in words, for people. What comes from outside is escaped.

use super::event::{Event, Known, What};

impl Event {
    /// What it is and which device it is about: `XID 79 at 0000:3b:00`. Equal for events that differ in nothing but time
    /// and process.
    pub fn title(&self) -> String {
        let mut title = match &self.what {
            What::Xid(error) => format!("XID {}", error.code),
            What::Sxid(error) => format!("SXID {} of switch {}", error.code, error.switch),
            What::Malformed(kind) => format!("unreadable {}", kind.title()),
            What::Driver(_) | What::System(_) => self.kind().to_owned(),
        };
        if let What::System(event) = &self.what
            && let Some(device) = &event.device
        {
            title = format!("{title} {}", device.escape_debug());
        }
        if let Some(pci) = self.pci() {
            title = format!("{title} at {pci}");
        }
        if let What::Xid(error) = &self.what
            && let Some(instance) = error.gpu_instance
        {
            title = format!("{title}, MIG instance {instance}");
        }
        if let Some(uuid) = &self.uuid {
            title = format!("{title} ({})", uuid.escape_debug());
        }
        title
    }

    /// The name of the process that the line names, as it stands there.
    pub fn process_name(&self) -> Option<&str> {
        match &self.what {
            What::Xid(error) => match &error.name {
                Some(Known::Is(name)) => Some(name),
                _ => None,
            },
            What::System(event) => event.name.as_deref(),
            _ => None,
        }
    }

    /// The process that the line names: `pid 7 (python)`.
    pub fn process(&self) -> Option<String> {
        match (self.pid(), self.process_name()) {
            (Some(pid), Some(name)) => Some(format!("pid {pid} ({})", name.escape_debug())),
            (Some(pid), None) => Some(format!("pid {pid}")),
            _ => None,
        }
    }
}
