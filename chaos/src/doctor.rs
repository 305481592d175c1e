// SPDX-License-Identifier: Apache-2.0
//! What this machine can do: each thing is tried, not guessed.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::bench::launch::on_path;
use crate::failure::Failure;
use crate::scenario::Capability;
use crate::tools::{are_there, run};
use crate::world::cgroup::Controller;
use crate::world::sick_disk::SickDisk;
use crate::world::{Tools, host};

/// What was found.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    obstacles: Vec<(Capability, Option<String>)>,
}

impl Machine {
    /// Tries everything.
    pub(crate) fn look() -> Self {
        let obstacles = Capability::ALL.map(|capability| (capability, obstacle(capability)));
        Self {
            obstacles: obstacles.to_vec(),
        }
    }

    /// What stands in the way of using it.
    pub(crate) fn obstacle(&self, capability: Capability) -> Option<&str> {
        let found = self.obstacles.iter().find(|(of, _)| *of == capability);
        found.and_then(|(_, obstacle)| obstacle.as_deref())
    }

    /// Whether it can be used.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.obstacle(capability).is_none()
    }

    /// Prints a table.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let failed = |error| Failure::write("the report", error);
        for (capability, obstacle) in &self.obstacles {
            match obstacle {
                None => writeln!(out, "yes  {capability}"),
                Some(reason) => writeln!(
                    out,
                    "no   {capability:<20} {reason}\n     {:<20} instead: {}",
                    "",
                    capability.fallback()
                ),
            }
            .map_err(failed)?;
        }
        Ok(())
    }
}

/// Finds what worlds are made from.
pub(crate) fn tools(
    steadfast: Option<PathBuf>,
    command: &[OsString],
    machine: &Machine,
) -> Result<Tools, Failure> {
    let system = PathBuf::from("/usr/bin/python3");
    let python = if system.exists() {
        system
    } else {
        crate::bench::launch::python(None)?
    };
    Ok(Tools {
        steadfast: crate::bench::launch::steadfast_or_default(steadfast)?,
        python,
        fake_nvml: fake_nvml(),
        command: command.to_vec(),
        namespaces: machine.has(Capability::Namespaces),
    })
}

fn obstacle(capability: Capability) -> Option<String> {
    let missing = |programs: &[&str]| {
        let mut missing = programs.iter().filter(|program| !are_there(&[program]));
        missing
            .next()
            .map(|program| format!("{program} is not on PATH"))
    };
    match capability {
        Capability::Python => {
            let there = Path::new("/usr/bin/python3").exists() || on_path("python3").is_some();
            (!there).then(|| "python3 is not on PATH".to_owned())
        }
        Capability::Etcd => missing(&["etcd", "etcdctl", "setpriv"]),
        Capability::Namespaces => missing(&host::TOOLS).or_else(|| {
            tried(&[
                "unshare", "--net", "--mount", "--uts", "ip", "link", "set", "lo", "up",
            ])
        }),
        Capability::PacketFilter => missing(&["nft"])
            .or_else(|| tried(&["unshare", "--net", "nft", "add", "table", "inet", "probe"])),
        Capability::RateLimit => {
            shaping(&["tbf", "rate", "1mbit", "burst", "16kb", "latency", "10ms"])
        }
        Capability::NetworkEmulator => shaping(&["netem", "delay", "1ms"]),
        Capability::MemoryLimit => Controller::Memory.obstacle(),
        Capability::CpuLimit => Controller::Cpu.obstacle(),
        Capability::Freezer => Controller::Freezer.obstacle(),
        Capability::MemoryFileSystem => {
            tried(&["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"])
        }
        Capability::LoopFileSystem => {
            missing(&["mkfs.ext4", "fsfreeze", "umount"]).or_else(loop_device)
        }
        Capability::UserFileSystem => missing(&["umount"]).or_else(user_file_system),
        Capability::FakeNvml => fake_nvml()
            .is_none()
            .then(|| "libnvidia_ml.so is not beside this program".to_owned()),
    }
}

fn shaping(discipline: &[&str]) -> Option<String> {
    let words = [
        "unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root",
    ];
    tried(&[&words, discipline].concat())
}

fn tried(words: &[&str]) -> Option<String> {
    run(words, "").err().map(|failure| failure.to_string())
}

/// Formats and mounts one, in a mount namespace that is gone afterwards.
fn loop_device() -> Option<String> {
    let script = "set -e; d=$(mktemp -d); trap 'umount $d/m 2>/dev/null || :; rm -rf $d' EXIT; mkdir $d/m; \
                  truncate -s 4M $d/i; mkfs.ext4 -q -F $d/i; mount -o loop $d/i $d/m";
    tried(&["unshare", "--mount", "sh", "-c", script])
}

/// Mounts one, writes through it, and unmounts it.
fn user_file_system() -> Option<String> {
    let tried = || -> std::io::Result<bool> {
        let directory = tempfile::tempdir()?;
        let (behind, front) = (directory.path().join("b"), directory.path().join("f"));
        std::fs::create_dir(&behind)?;
        std::fs::create_dir(&front)?;
        let disk = SickDisk::mount(&behind, &front)?;
        let written = std::fs::write(front.join("x"), "x");
        let unmounted = disk.unmount();
        written.and(unmounted)?;
        Ok(behind.join("x").exists())
    };
    match tried() {
        Ok(true) => None,
        Ok(false) => Some("what is written to one does not come through".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

fn fake_nvml() -> Option<PathBuf> {
    let path = std::env::current_exe()
        .ok()?
        .with_file_name("libnvidia_ml.so");
    path.is_file().then_some(path)
}
