// SPDX-License-Identifier: Apache-2.0
//! The NVML probe: started where there is a driver, listened to, started again when it ends, and never waited for. Where the
//! node service has one, that is listened to instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Value, json};
use steadfast_health::kernel_log::PciAddress;
use steadfast_health::nvml::{Absence, Command, Condition, GpuIdentity, Report};

use crate::clock;
use crate::probes::{NvmlSetup, Probe, ProbeKind, has_ended};
use crate::settings::NvmlUse;

/// How often each GPU is looked at.
const EVERY: Duration = Duration::from_secs(5);
/// A call that takes longer than this hangs. The driver itself waits for a GPU's firmware for 6 seconds.
const HANGS: Duration = Duration::from_secs(10);
/// A probe that was not well for longer than this is stopped, or starved.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two starts: after the first death, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// How long the node service is waited for, where there may be one.
const SERVICE: Duration = Duration::from_secs(3);

/// What the agent knows of the probe.
#[derive(Debug)]
pub(crate) struct NvmlWatch {
    setup: Option<NvmlSetup>,
    probe: Option<Probe>,
    /// Whether the node service is to be believed, when it has anything to say.
    takes_service: bool,
    /// Whether it does the work.
    served: bool,
    /// Probes that were let go and have not been reaped.
    ended: Vec<Pid>,
    start_at_ns: u64,
    deaths: u32,
    /// Why there is nothing to listen to, in words.
    silent: Option<String>,
    opened: Option<Opened>,
    /// What is wrong with each GPU, by address.
    conditions: BTreeMap<String, Vec<Condition>>,
    /// The threads whose call hangs, with what was said of it.
    hanging: BTreeMap<usize, String>,
    /// The GPUs that no more calls are to be made about.
    quiet: BTreeSet<PciAddress>,
}

#[derive(Debug)]
struct Opened {
    driver: String,
    gpus: Vec<GpuIdentity>,
}

/// Something that happened to the probe, or that it says.
#[derive(Debug)]
pub(crate) enum FromProbe {
    /// It says this.
    Says(Report),
    /// It is gone; the reason in words.
    Gone(String),
}

/// Something for the journal and perhaps for the user.
#[derive(Debug)]
pub(crate) struct ProbeNews {
    pub(crate) kind: &'static str,
    pub(crate) fields: Value,
    pub(crate) say: Option<String>,
}

impl NvmlWatch {
    pub(crate) fn new(nvml: &NvmlUse) -> NvmlWatch {
        let library = match nvml {
            NvmlUse::Off => Err("turned off by --nvml off"),
            NvmlUse::Path(path) => Ok(Some(path.clone())),
            NvmlUse::Auto if has_driver() => Ok(None),
            NvmlUse::Auto => Err("this node has no NVIDIA driver"),
        };
        let (setup, silent) = match library {
            Ok(library) => {
                let every = EVERY;
                (Some(NvmlSetup { library, every }), None)
            }
            Err(reason) => (None, Some(reason.to_owned())),
        };
        NvmlWatch {
            setup,
            probe: None,
            takes_service: *nvml == NvmlUse::Auto,
            served: false,
            ended: Vec::new(),
            start_at_ns: 0,
            deaths: 0,
            silent,
            opened: None,
            conditions: BTreeMap::new(),
            hanging: BTreeMap::new(),
            quiet: BTreeSet::new(),
        }
    }

    /// Waits a moment with a probe of its own: the node service may be heard first.
    pub(crate) fn expect_service(&mut self) {
        self.start_at_ns = clock::monotonic_ns().saturating_add(nanos(SERVICE));
    }

    /// The node service reports, so no probe is needed. Returns whether its reports are wanted.
    pub(crate) fn is_served(&mut self) -> bool {
        if self.takes_service && !self.served {
            self.let_go();
            self.served = true;
        }
        self.takes_service
    }

    /// The node service has nothing to report any more.
    pub(crate) fn service_gone(&mut self, reason: &str) {
        if self.served {
            self.served = false;
            self.let_go();
            self.silent = Some(reason.to_owned());
            self.expect_service();
        }
    }

    /// Starts a probe if one is due. Returns its process id, which the keeper has to know.
    pub(crate) fn start_if_due(&mut self) -> Option<Pid> {
        let setup = self.setup.as_ref()?;
        if self.served || self.probe.is_some() || clock::monotonic_ns() < self.start_at_ns {
            return None;
        }
        match Probe::start(ProbeKind::Nvml, setup) {
            Ok(probe) => {
                let pid = probe.pid();
                self.probe = Some(probe);
                self.silent = Some("it is being opened".to_owned());
                Some(pid)
            }
            Err(error) => {
                self.silent = Some(format!("the probe cannot be started: {error}"));
                self.start_later();
                None
            }
        }
    }

    /// Waits for what the probe says; for ever while there is none.
    pub(crate) async fn next(&mut self) -> FromProbe {
        let Some(probe) = &mut self.probe else {
            return std::future::pending().await;
        };
        match probe.next().await {
            Ok(Some(body)) => match serde_json::from_slice(&body) {
                Ok(report) => FromProbe::Says(report),
                Err(error) => FromProbe::Gone(format!("it speaks another language: {error}")),
            },
            Ok(None) => FromProbe::Gone("its process ended".to_owned()),
            Err(error) => FromProbe::Gone(format!("it cannot be listened to: {error}")),
        }
    }

    /// Takes note of a report, and says what is new about the library itself.
    pub(crate) fn note(&mut self, report: &Report) -> Option<ProbeNews> {
        match report {
            Report::Opened {
                driver,
                gpus,
                silent,
            } => {
                self.silent = None;
                self.deaths = 0;
                self.opened = Some(Opened {
                    driver: driver.clone(),
                    gpus: gpus.clone(),
                });
                let say = (!silent.is_empty()).then(|| {
                    format!(
                        "NVML cannot open {}; workers that use it will fail",
                        silent.join(", ")
                    )
                });
                let fields = json!({ "driver": driver, "gpus": gpus, "cannot_open": silent });
                let kind = "nvml.opened";
                Some(ProbeNews { kind, fields, say })
            }
            Report::Absent { absence, reason } => {
                self.let_go();
                self.silent = Some(reason.clone());
                match absence {
                    Absence::Library => self.setup = None,
                    Absence::Driver | Absence::Refused | Absence::Stale => self.start_later(),
                }
                Some(ProbeNews {
                    kind: "nvml.absent",
                    fields: json!({ "reason": reason }),
                    say: None,
                })
            }
            Report::NoEvents { gpu, reason } => Some(ProbeNews {
                kind: "nvml.no_events",
                fields: json!({ "gpu": gpu, "reason": reason }),
                say: None,
            }),
            Report::Conditions {
                gpu, conditions, ..
            } => {
                self.conditions.insert(gpu.clone(), conditions.clone());
                None
            }
            Report::Xid { .. } | Report::Lost { .. } | Report::Holders { .. } => None,
        }
    }

    /// What was wrong with a GPU at the last report.
    pub(crate) fn conditions_of(&self, gpu: &str) -> &[Condition] {
        self.conditions.get(gpu).map_or(&[], Vec::as_slice)
    }

    /// The GPU that a report is about.
    pub(crate) fn identity(&self, gpu: &str) -> Option<&GpuIdentity> {
        let opened = self.opened.as_ref()?;
        opened.gpus.iter().find(|known| known.pci == gpu)
    }

    /// The probe is gone.
    pub(crate) fn gone(&mut self, reason: &str) -> ProbeNews {
        self.let_go();
        self.silent = Some(format!("{reason}; it is started again"));
        self.start_later();
        ProbeNews {
            kind: "nvml.probe_ended",
            fields: json!({ "reason": reason, "deaths": self.deaths }),
            say: None,
        }
    }

    /// Tells the probe which GPUs to leave alone: a call about a GPU whose firmware does not answer would hang.
    pub(crate) fn keep_quiet_about(&mut self, sick: &BTreeSet<PciAddress>) {
        if let Some(probe) = &self.probe {
            for pci in sick.difference(&self.quiet) {
                let gpu = pci.to_string();
                probe.send(&Command::Quiet { gpu });
            }
            for pci in self.quiet.difference(sick) {
                let gpu = pci.to_string();
                probe.send(&Command::Resume { gpu });
            }
            self.quiet.clone_from(sick);
        }
    }

    /// Asks who holds memory.
    pub(crate) fn ask_for_holders(&self) {
        if let Some(probe) = &self.probe {
            probe.send(&Command::TellHolders);
        }
    }

    /// What has begun or ceased to hang.
    pub(crate) fn look(&mut self) -> Vec<ProbeNews> {
        self.ended.retain(|pid| has_ended(*pid).is_none());
        let Some(probe) = &self.probe else {
            return Vec::new();
        };
        let now = clock::monotonic_ns();
        let older = |since_ns: u64, than: Duration| {
            Duration::from_nanos(now.saturating_sub(since_ns)) > than
        };
        let pending = probe.page().pending();
        let mut hanging: BTreeMap<usize, String> = pending
            .into_iter()
            .filter(|call| older(call.since_ns, HANGS))
            .map(|call| (call.thread, self.describe(call.thread, &call.call)))
            .collect();
        let last_beat = probe.page().last_beat();
        if last_beat != 0 && older(last_beat, SILENCE) {
            let text =
                "the NVML probe's process does not run: it is stopped, or gets no processor time";
            hanging.insert(usize::MAX, text.to_owned());
        }
        let mut news = Vec::new();
        for (thread, text) in &hanging {
            if !self.hanging.contains_key(thread) {
                news.push(ProbeNews {
                    kind: "nvml.hangs",
                    fields: json!({ "what": text }),
                    say: Some(format!(
                        "{text}. The job goes on; the GPU's driver or firmware may be stuck"
                    )),
                });
            }
        }
        for (thread, text) in &self.hanging {
            if !hanging.contains_key(thread) {
                news.push(ProbeNews {
                    kind: "nvml.answers_again",
                    fields: json!({ "what": text }),
                    say: None,
                });
            }
        }
        self.hanging = hanging;
        news
    }

    /// Closes the line, so that the probe has time to end by itself before the agent does.
    pub(crate) fn close(&mut self) {
        self.let_go();
        self.setup = None;
        self.silent = Some("the job is ending".to_owned());
    }

    /// For `steadfast status`.
    pub(crate) fn status(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match (&self.silent, &self.opened) {
            (Some(reason), _) => lines.push(format!("NVML is not used: {reason}")),
            (None, Some(opened)) => {
                let (looked_at, all) = (self.conditions.len(), opened.gpus.len());
                let progress = if looked_at < all {
                    format!("; {looked_at} of them have answered")
                } else {
                    String::new()
                };
                let by = if self.served {
                    " by the node service"
                } else {
                    ""
                };
                lines.push(format!(
                    "NVML is watched{by} (driver {}, {all} GPUs{progress})",
                    opened.driver
                ));
            }
            (None, None) => {}
        }
        lines.extend(self.hanging.values().cloned());
        for (gpu, conditions) in &self.conditions {
            lines.extend(
                conditions
                    .iter()
                    .map(|condition| format!("GPU {gpu}: {condition}")),
            );
        }
        lines
    }

    fn describe(&self, thread: usize, call: &str) -> String {
        let gpus = self.opened.as_ref().map(|opened| &opened.gpus);
        let gpu = thread
            .checked_sub(1)
            .and_then(|index| gpus.and_then(|gpus| gpus.get(index)));
        match gpu {
            Some(gpu) => format!("NVML does not answer about GPU {}: `{call}` hangs", gpu.pci),
            None => format!("NVML does not answer: `{call}` hangs"),
        }
    }

    fn let_go(&mut self) {
        if let Some(probe) = self.probe.take() {
            self.ended.push(probe.pid());
        }
        self.opened = None;
        self.conditions.clear();
        self.hanging.clear();
        self.quiet.clear();
    }

    /// Twice as late after each end in a row.
    fn start_later(&mut self) {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(2_u32.saturating_pow(self.deaths.min(16)));
        self.deaths = self.deaths.saturating_add(1);
        self.start_at_ns = clock::monotonic_ns().saturating_add(nanos(pause.min(longest)));
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a driver is loaded, or a container is given its devices.
fn has_driver() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"]
        .iter()
        .any(|path| Path::new(path).exists())
}
