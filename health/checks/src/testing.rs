// SPDX-License-Identifier: Apache-2.0
//! Made nodes: a directory in the place of `/`, and made answers in the place of other processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use steadfast_health::nvml::{
    Absence, Fabric, GpuIdentity, GpuSnapshot, NvlinkReading, PcieGeneration, PcieReading, Reading,
    Remapped, SnapshotLine,
};
use tempfile::TempDir;

use crate::outside::{Ended, How, KernelClock, Outside, Work};
use crate::{CheckResult, Node, PastFaults, Plan, Profile, Settings, Status};

/// A node that was made for a test.
#[derive(Debug)]
pub(crate) struct Made {
    directory: TempDir,
    answers: Arc<Answers>,
    settings: String,
    profile: Profile,
    gpus: Option<Vec<String>>,
    past_faults: BTreeMap<String, PastFaults>,
}

/// What other processes would say.
#[derive(Debug)]
pub(crate) struct Answers {
    nvml: Mutex<Ended>,
    mounts: Mutex<BTreeMap<PathBuf, Ended>>,
    clock: Mutex<Result<KernelClock, String>>,
    command: Mutex<Ended>,
}

impl Outside for Answers {
    fn run(&self, work: &Work, _until: Instant) -> Ended {
        match work {
            Work::Nvml { .. } => self.nvml.lock().unwrap().clone(),
            Work::Mount { path, .. } => {
                let mounts = self.mounts.lock().unwrap();
                let answer = mounts.get(path).cloned();
                answer.unwrap_or_else(|| Ended {
                    how: How::Exited(0),
                    stdout: br#"{"Ok":{"total":100,"free":50,"files":0,"files_free":0}}"#.to_vec(),
                    stderr: Vec::new(),
                })
            }
            Work::Command { .. } => self.command.lock().unwrap().clone(),
        }
    }

    fn kernel_clock(&self) -> Result<KernelClock, String> {
        self.clock.lock().unwrap().clone()
    }
}

impl Made {
    /// A node on which nothing is seen.
    pub(crate) fn empty() -> Made {
        let absent = SnapshotLine::Absent {
            absence: Absence::Library,
            reason: "no such library".to_owned(),
        };
        Made {
            directory: tempfile::tempdir().unwrap(),
            answers: Arc::new(Answers {
                nvml: Mutex::new(said(&[absent])),
                mounts: Mutex::default(),
                clock: Mutex::new(Ok(KernelClock {
                    synchronised: true,
                    estimated_error_us: 10,
                    maximum_error_us: 900,
                })),
                command: Mutex::new(Ended::silently(How::Exited(0))),
            }),
            settings: String::new(),
            profile: Profile::Full,
            gpus: None,
            past_faults: BTreeMap::new(),
        }
    }

    /// One that was started 1000 seconds ago.
    pub(crate) fn running() -> Made {
        Made::empty()
            .file("proc/uptime", "1000.00 2000.00\n")
            .file("proc/sys/kernel/random/boot_id", "boot-1\n")
    }

    /// One with such GPUs.
    pub(crate) fn with_gpus(gpus: &[GpuSnapshot]) -> Made {
        Made::running().nvml(said(&lines(gpus)))
    }

    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Made {
        self.write(path, content);
        self
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub(crate) fn nvml(self, ended: Ended) -> Made {
        *self.answers.nvml.lock().unwrap() = ended;
        self
    }

    pub(crate) fn mount(self, path: &str, ended: Ended) -> Made {
        let path = PathBuf::from(path);
        self.answers.mounts.lock().unwrap().insert(path, ended);
        self
    }

    pub(crate) fn clock(self, clock: Result<KernelClock, String>) -> Made {
        *self.answers.clock.lock().unwrap() = clock;
        self
    }

    pub(crate) fn command(self, ended: Ended) -> Made {
        *self.answers.command.lock().unwrap() = ended;
        self
    }

    pub(crate) fn settings(mut self, text: &str) -> Made {
        text.clone_into(&mut self.settings);
        self
    }

    /// Faults of a GPU that somebody remembers, in hundredths.
    pub(crate) fn past_faults(mut self, gpu: u32, hundredths: u64) -> Made {
        let last = "XID 79 on made".to_owned();
        let faults = PastFaults { hundredths, last };
        self.past_faults.insert(format!("GPU-{gpu}"), faults);
        self
    }

    pub(crate) fn profile(mut self, profile: Profile) -> Made {
        self.profile = profile;
        self
    }

    pub(crate) fn only_gpus(mut self, gpus: &[&str]) -> Made {
        self.gpus = Some(gpus.iter().map(|gpu| (*gpu).to_owned()).collect());
        self
    }

    /// Makes these checks.
    pub(crate) fn report(&self, checks: &[&str]) -> crate::Report {
        let mut node = Node::here("made", Arc::<Answers>::clone(&self.answers));
        node.root = self.directory.path().to_owned();
        node.state = Some(self.directory.path().join("state/checks.json"));
        node.gpus.clone_from(&self.gpus);
        node.past_faults.clone_from(&self.past_faults);
        let settings = Settings::parse("checks.toml".as_ref(), &self.settings).unwrap();
        let names: Vec<String> = checks.iter().map(|name| (*name).to_owned()).collect();
        let plan = Plan::new(self.profile, settings, node);
        plan.only(&names).unwrap().run()
    }

    /// Makes one check.
    pub(crate) fn check(&self, name: &str) -> CheckResult {
        self.report(&[name]).results.remove(0)
    }

    /// Makes one check that must end so, and say this.
    #[track_caller]
    pub(crate) fn expect(&self, name: &str, status: Status, said: &str) -> CheckResult {
        let result = self.check(name);
        assert!(
            result.status == status && result.summary.contains(said),
            "expected {status} with `{said}`, found {result:#?}"
        );
        result
    }
}

/// What the process that asks the driver says, in the end.
pub(crate) fn said(lines: &[SnapshotLine]) -> Ended {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| serde_json::to_string(line).unwrap() + "\n")
        .collect();
    Ended {
        how: How::Exited(0),
        stdout: lines.concat().into_bytes(),
        stderr: Vec::new(),
    }
}

/// The lines about such GPUs.
pub(crate) fn lines(gpus: &[GpuSnapshot]) -> Vec<SnapshotLine> {
    let opened = SnapshotLine::Opened {
        driver: "570.86.15".to_owned(),
        library: "12.570.86.15".to_owned(),
        count: u32::try_from(gpus.len()).unwrap(),
    };
    let each = (0..).zip(gpus).flat_map(|(index, gpu)| {
        let snapshot = Box::new(gpu.clone());
        [
            SnapshotLine::Found(identity(index)),
            SnapshotLine::Gpu {
                gpu: index,
                snapshot,
            },
        ]
    });
    [opened].into_iter().chain(each).collect()
}

pub(crate) fn identity(index: u32) -> GpuIdentity {
    GpuIdentity {
        index,
        pci: format!("0000:{:02x}:00", 0x18 + index),
        uuid: format!("GPU-{index}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
    }
}

/// A GPU without a fault.
pub(crate) fn healthy() -> GpuSnapshot {
    let link = |link| NvlinkReading {
        link,
        active: true,
        errors: Some(5),
    };
    GpuSnapshot {
        reading: Reading {
            recovery: Some(0),
            remapped: Some(Remapped::default()),
            uncorrected: Some(0),
            throttle: Some(1),
            temperature: Some(41),
            power: Some(120_000),
            pcie: Some(PcieReading {
                width: 16,
                max_width: 16,
            }),
            nvlinks: vec![link(0), link(1)],
            fabric: Some(Fabric {
                state: 3,
                status: 0,
            }),
        },
        corrected: Some(3),
        ecc: Some(true),
        persistence: Some(true),
        pcie_generation: Some(PcieGeneration { current: 5, max: 5 }),
        processes: Vec::new(),
    }
}

/// One that lacks everything that a GPU can lack.
pub(crate) fn silent() -> GpuSnapshot {
    GpuSnapshot::default()
}
