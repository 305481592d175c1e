// SPDX-License-Identifier: Apache-2.0
//! One GPU: waits for its events, and looks at it from time to time.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

use super::condition::{Condition, conditions};
use super::probe::{Calls, Outlet, Probe, absent};
use super::reading::{Called, Reading, processes, read};
use super::report::Report;
use crate::kernel_log::{Clock, PciAddress};

/// How long one wait for an event takes at most, in milliseconds.
const WAIT_MS: u32 = 500;
/// The same where there is nothing to wait for.
const PAUSE: Duration = Duration::from_millis(500);
/// Looks in a row at which a condition that comes and goes must be there.
const STAYS: u32 = 3;
/// A GPU that was lost is looked at again this much later: a reset may bring it back.
const AFTER_LOSS: Duration = Duration::from_mins(1);

// Bits of `nvmlEventType*` in `nvml.h`. The wrapper does not name the last two; that they came is enough.
const DOUBLE_BIT_ERROR: u64 = 0x2;
const GPU_UNAVAILABLE: u64 = 0x4000;
const RECOVERY_ACTION: u64 = 0x8000;

/// A thread that watches one GPU.
pub(super) struct GpuThread {
    pub(super) probe: Arc<Probe>,
    pub(super) outlet: Arc<dyn Outlet>,
    pub(super) slot: usize,
    pub(super) pci: PciAddress,
    pub(super) device: Device<'static>,
    pub(super) every: Duration,
    pub(super) clock: Clock,
}

/// What was seen so far.
#[derive(Default)]
struct Memory {
    at_start: Option<Reading>,
    told: Option<Vec<Condition>>,
    /// Conditions that come and go, and how often in a row each was there.
    passing: Vec<(Condition, u32)>,
    look_at_ns: u64,
    asked: u64,
    lost: bool,
    /// Whether the last look at the GPU succeeded.
    answers: bool,
    /// Whether its event set failed.
    deaf: bool,
}

/// The library cannot be used any more.
struct Over;

impl GpuThread {
    pub(super) fn run(self) {
        let mut events = self.register();
        let mut memory = Memory {
            asked: self.probe.asked(),
            ..Memory::default()
        };
        loop {
            if self.probe.is_quiet(self.pci) {
                std::thread::park_timeout(PAUSE);
                // Afterwards, what is the case is news.
                memory.look_at_ns = 0;
                continue;
            }
            let look = if let Some(set) = &events {
                self.wait(set)
            } else {
                std::thread::park_timeout(PAUSE);
                Ok(false)
            };
            let step = match look {
                Ok(at_once) => self.look_if_due(&mut memory, at_once),
                Err(error) => {
                    // A set that gave an error is not asked again; a GPU that comes back gets another one.
                    events = None;
                    memory.deaf = true;
                    self.fail(&mut memory, &error)
                }
            };
            if step.is_err() {
                return;
            }
            if memory.deaf && memory.answers {
                memory.deaf = false;
                events = self.register();
            }
        }
    }

    fn calls(&self) -> Calls<'_> {
        Calls {
            outlet: &*self.outlet,
            slot: self.slot,
        }
    }

    /// An event set for this GPU alone. Older drivers know fewer events.
    fn register(&self) -> Option<EventSet<'static>> {
        let xid = EventTypes::CRITICAL_XID_ERROR.bits();
        let mut reason = String::new();
        for bits in [
            xid | DOUBLE_BIT_ERROR | GPU_UNAVAILABLE | RECOVERY_ACTION,
            xid | DOUBLE_BIT_ERROR,
            xid,
        ] {
            let calls = self.calls();
            let nvml = self.device.nvml();
            let registered = calls
                .call("nvmlEventSetCreate", || nvml.create_event_set())
                .and_then(|set| {
                    calls.call("nvmlDeviceRegisterEvents", || {
                        let types = EventTypes::from_bits_retain(bits);
                        let done = self.device.register_events(types, set);
                        done.map_err(|error| error.error)
                    })
                });
            match registered {
                Ok(set) => return Some(set),
                Err(error) => reason = error.to_string(),
            }
        }
        let gpu = self.pci.to_string();
        self.outlet.report(&Report::NoEvents { gpu, reason });
        None
    }

    /// Waits for one event. Says whether the GPU should be looked at for it.
    fn wait(&self, set: &EventSet<'static>) -> Result<bool, NvmlError> {
        let event = match self
            .calls()
            .call("nvmlEventSetWait_v2", || set.wait(WAIT_MS))
        {
            Ok(event) => event,
            Err(NvmlError::Timeout) => return Ok(false),
            Err(error) => return Err(error),
        };
        if event.event_type.contains(EventTypes::CRITICAL_XID_ERROR) {
            let code = match event.event_data {
                Some(XidError::Value(code)) => u32::try_from(code).ok(),
                _ => None,
            };
            // Some drivers begin with an XID 0 that is none.
            if let Some(code) = code.filter(|code| *code != 0) {
                self.outlet.report(&Report::Xid {
                    gpu: self.pci.to_string(),
                    code,
                    at_ns: (self.clock)(),
                });
            }
        }
        Ok(true)
    }

    fn look_if_due(&self, memory: &mut Memory, at_once: bool) -> Result<(), Over> {
        let asked = self.probe.asked();
        if asked != memory.asked {
            memory.asked = asked;
            match processes(&self.device, &self.calls()) {
                Ok(processes) => self.outlet.report(&Report::Holders {
                    gpu: self.pci.to_string(),
                    processes,
                }),
                Err(error) => return self.fail(memory, &error),
            }
        }
        if !at_once && (self.clock)() < memory.look_at_ns {
            return Ok(());
        }
        match read(&self.device, &self.calls()) {
            Ok(reading) => {
                memory.lost = false;
                memory.answers = true;
                memory.look_at_ns = after((self.clock)(), self.every);
                self.tell(memory, &reading);
                Ok(())
            }
            Err(error) => self.fail(memory, &error),
        }
    }

    fn tell(&self, memory: &mut Memory, reading: &Reading) {
        let at_start = memory.at_start.get_or_insert_with(|| reading.clone());
        let found = conditions(reading, at_start);
        memory.passing = found
            .iter()
            .filter(|condition| condition.is_passing())
            .map(|condition| {
                let before = memory.passing.iter().find(|(known, _)| known == condition);
                let times = before.map_or(0, |(_, times)| *times).saturating_add(1);
                (condition.clone(), times)
            })
            .collect();
        let stays = |condition: &Condition| {
            let mut passing = memory.passing.iter();
            !condition.is_passing()
                || passing.any(|(known, times)| known == condition && *times >= STAYS)
        };
        let conditions: Vec<Condition> = found.into_iter().filter(stays).collect();
        if memory.told.as_ref() == Some(&conditions) {
            return;
        }
        self.outlet.report(&Report::Conditions {
            gpu: self.pci.to_string(),
            conditions: conditions.clone(),
            first: memory.told.is_none(),
            at_ns: (self.clock)(),
        });
        memory.told = Some(conditions);
    }

    /// An error after which the GPU, or the library, is not asked again for a while.
    fn fail(&self, memory: &mut Memory, error: &NvmlError) -> Result<(), Over> {
        memory.answers = false;
        memory.look_at_ns = after((self.clock)(), self.every);
        match error {
            NvmlError::GpuLost => {
                memory.look_at_ns = after((self.clock)(), AFTER_LOSS);
                // A set says it for any GPU: only a call about this one tells.
                let own = self
                    .calls()
                    .call("nvmlDeviceGetUUID", || self.device.uuid());
                if matches!(own, Err(NvmlError::GpuLost)) && !memory.lost {
                    memory.lost = true;
                    self.outlet.report(&Report::Lost {
                        gpu: self.pci.to_string(),
                        at_ns: (self.clock)(),
                    });
                }
                Ok(())
            }
            error @ (NvmlError::Uninitialized
            | NvmlError::LibRmVersionMismatch
            | NvmlError::DriverNotLoaded) => {
                self.outlet.report(&absent(error));
                Err(Over)
            }
            _ => Ok(()),
        }
    }
}

fn after(now_ns: u64, pause: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX))
}
