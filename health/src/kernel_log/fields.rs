// SPDX-License-Identifier: Apache-2.0
//! Events as named values, for JSON and for tests.

use serde_json::{Value, json};

use super::event::{
    Continuation, Detail, DriverEvent, DriverKind, Event, Known, NvlinkError, SwitchError,
    SystemEvent, SystemKind, What, XidError,
};
use super::pci::PciAddress;
use super::stamp::Stamp;

/// Named values, in the order in which they are shown.
type Fields = Vec<(&'static str, Value)>;

impl Event {
    /// What kind of event it is, such as `xid`, `gpu_lost`, `oom_kill`.
    pub fn kind(&self) -> &'static str {
        match &self.what {
            What::Xid(_) => "xid",
            What::Sxid(_) => "sxid",
            What::Malformed(_) => "malformed",
            What::Driver(event) => event.kind.name(),
            What::System(event) => event.kind.name(),
        }
    }

    /// The device that it is about.
    pub fn pci(&self) -> Option<PciAddress> {
        match &self.what {
            What::Xid(error) => Some(error.pci),
            What::Sxid(error) => Some(error.pci),
            What::Malformed(_) => None,
            What::Driver(event) => event.pci,
            What::System(event) => event.pci,
        }
    }

    /// The process that the line names.
    pub fn pid(&self) -> Option<u32> {
        match &self.what {
            What::Xid(XidError {
                pid: Some(Known::Is(pid)),
                ..
            }) => Some(*pid),
            What::System(event) => event.pid,
            _ => None,
        }
    }

    /// Everything that the line gives, its `kind` first; what it does not give is left out.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        let mut fields: Fields = vec![("kind", json!(self.kind()))];
        match &self.what {
            What::Xid(error) => xid(&mut fields, error),
            What::Sxid(error) => sxid(&mut fields, error),
            What::Malformed(kind) => fields.push(("of", json!(kind.name()))),
            What::Driver(event) => driver(&mut fields, event),
            What::System(event) => system(&mut fields, event),
        }
        let uuid = match &self.what {
            What::Driver(event) => event.uuid.as_ref().or(self.uuid.as_ref()),
            _ => self.uuid.as_ref(),
        };
        fields.extend(uuid.map(|uuid| ("uuid", json!(uuid))));
        self.header_fields(&mut fields);
        fields
    }

    fn header_fields(&self, fields: &mut Fields) {
        let header = &self.header;
        let mut push = |name, value: Option<Value>| {
            fields.extend(value.map(|value| (name, value)));
        };
        push("prio", header.priority().map(|priority| json!(priority)));
        push("seq", header.sequence.map(|sequence| json!(sequence)));
        push("flags", header.flag.map(|flag| json!(flag)));
        if let Some(Stamp::SinceBoot(time)) = header.stamp {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            push("ts_us", Some(json!(micros)));
        }
        push("injected", header.injected().then_some(Value::Bool(true)));
    }
}

fn xid(fields: &mut Fields, error: &XidError) {
    fields.push(("code", json!(error.code)));
    fields.push(("pci", json!(error.pci.to_string())));
    let mut push = |name, value: Option<Value>| {
        fields.extend(value.map(|value| (name, value)));
    };
    push("gi", error.gpu_instance.map(|number| json!(number)));
    push("ci", error.compute_instance.map(|number| json!(number)));
    push("pid", error.pid.as_ref().map(known));
    push("name", error.name.as_ref().map(known));
    if let Some(detail) = &error.detail {
        fields.extend(details(detail));
    }
}

fn known<T: serde::Serialize>(value: &Known<T>) -> Value {
    match value {
        Known::Unknown => json!("unknown"),
        Known::Is(value) => json!(value),
    }
}

fn details(detail: &Detail) -> Fields {
    match detail {
        Detail::Nvlink(error) => nvlink(error),
        Detail::Recovery { from, to, text } => vec![
            ("from_action", json!(from.number())),
            ("to_action", json!(to.number())),
            ("to_text", json!(text)),
        ],
        Detail::Containment {
            reset,
            drain_and_reset,
        } => vec![("rst", json!(reset)), ("drst", json!(drain_and_reset))],
        Detail::LinkRegisters { link, registers } => {
            vec![("link", json!(link)), ("regs", hexadecimal(registers))]
        }
        Detail::Multiprocessor { gpc, tpc, sm } => {
            vec![("gpc", json!(gpc)), ("tpc", json!(tpc)), ("sm", json!(sm))]
        }
        Detail::Row(row) => vec![("row", json!(format!("{row:#018x}")))],
        Detail::CausedBy(code) => vec![("root_cause", json!(code))],
    }
}

fn nvlink(error: &NvlinkError) -> Fields {
    vec![
        ("unit", json!(error.unit)),
        (
            "severity",
            json!(if error.fatal { "Fatal" } else { "Nonfatal" }),
        ),
        ("xc", json!(error.controller)),
        ("inj", json!(error.instance)),
        ("link", json!(error.link)),
        ("regs", hexadecimal(&error.registers)),
    ]
}

fn hexadecimal(registers: &[u32]) -> Value {
    registers
        .iter()
        .map(|register| format!("{register:#010x}"))
        .collect()
}

fn sxid(fields: &mut Fields, error: &SwitchError) {
    fields.push(("code", json!(error.code)));
    fields.push(("pci", json!(error.pci.to_string())));
    fields.push(("switch", json!(error.switch)));
    let mut push = |name, value: Option<Value>| {
        fields.extend(value.map(|value| (name, value)));
    };
    push("severity", error.severity.as_ref().map(|word| json!(word)));
    push("link", error.link.map(|link| json!(link)));
    push("first", error.first.then_some(Value::Bool(true)));
    let continuation = error.continuation.map(|continuation| match continuation {
        Continuation::Severity(number) => json!(format!("severity{number}")),
        Continuation::Data => json!("data"),
    });
    push("continuation", continuation);
}

fn driver(fields: &mut Fields, event: &DriverEvent) {
    fields.extend(event.pci.map(|pci| ("pci", json!(pci.to_string()))));
    match event.kind {
        DriverKind::GpuLostAtProbe => fields.push(("at", json!("probe"))),
        DriverKind::GpuReset { success } => fields.push(("success", json!(success))),
        _ => {}
    }
}

fn system(fields: &mut Fields, event: &SystemEvent) {
    fields.extend(event.pci.map(|pci| ("pci", json!(pci.to_string()))));
    fields.extend(event.pid.map(|pid| ("pid", json!(pid))));
    fields.extend(event.name.as_ref().map(|name| ("name", json!(name))));
    fields.extend(
        event
            .device
            .as_ref()
            .map(|device| ("device", json!(device))),
    );
}

impl DriverKind {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GpuLost | Self::GpuLostAtProbe => "gpu_lost",
            Self::GpuIdentity => "gpu_identity",
            Self::GspRateLimited => "gsp_rate_limited",
            Self::NvlinkDetectFailed => "nvlink_rx_detect_failed",
            Self::PeermemInvalidContext => "peermem_invalid_context",
            Self::GpuReset { .. } => "gpu_reset_marker",
        }
    }
}

impl SystemKind {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "oom_kill",
            Self::GroupOutOfMemory => "cgroup_oom_kill",
            Self::MachineCheck => "machine_check",
            Self::MachineCheckFatal => "machine_check_fatal",
            Self::MemoryCorrected => "memory_corrected",
            Self::MemoryUncorrected => "memory_uncorrected",
            Self::PcieCorrected => "pcie_corrected",
            Self::PcieUncorrected => "pcie_uncorrected",
            Self::PcieFatal => "pcie_fatal",
            Self::DiskTimeout => "disk_timeout",
            Self::DiskError => "disk_error",
            Self::FileSystemError => "file_system_error",
            Self::FileSystemReadOnly => "file_system_read_only",
            Self::ServerLost => "server_lost",
            Self::ServerBack => "server_back",
            Self::HungTask => "hung_task",
            Self::SoftLockup => "soft_lockup",
            Self::LinkDown => "link_down",
            Self::LinkUp => "link_up",
            Self::PortModule => "port_module_fault",
            Self::AdapterPower => "adapter_power",
            Self::CommunicationCrash => "communication_crash",
        }
    }
}
