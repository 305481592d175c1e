// SPDX-License-Identifier: Apache-2.0
//! What a test needs of the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Something that not every machine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The right to mount file systems and to make namespaces.
    Root,
    /// Network namespaces, and what connects and cuts them.
    Namespaces,
    /// A cgroup v2 in which this user may make others.
    CgroupTwo,
    /// The freezer controller of cgroup v1, writable.
    FreezerOne,
    /// A file system in a file, which can be frozen.
    FreezableDisk,
    /// The process ids of the kernel log: no container of one's own.
    FirstPidNamespace,
    /// The right to read the machine's kernel log, and to write to it.
    KernelLog,
    /// etcd and its client on the `PATH`.
    Etcd,
    /// Python 3 (`/usr/bin/python3`).
    Python,
    /// `PyTorch` for `/usr/bin/python3`.
    Torch,
    /// A program that says which system calls a job makes.
    Strace,
    /// Slurm, and the right to start it.
    Slurm,
}

impl Requirement {
    /// Whether the test can run. If not, says so loudly; where `CI` is `true`, that is a failure.
    pub fn met(self) -> bool {
        let Some(missing) = self.missing() else {
            return true;
        };
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "{test} needs {missing}"
        );
        eprintln!("SKIPPED: {test} needs {missing}");
        false
    }

    /// What is missing, in words.
    fn missing(self) -> Option<&'static str> {
        let (there, what) = match self {
            Self::Root => (nix::unistd::geteuid().is_root(), "root"),
            Self::Namespaces => (
                nix::unistd::geteuid().is_root() && on_path(&NETWORK_TOOLS),
                "root, and ip, nft, nsenter, setpriv and unshare (Debian: iproute2, nftables, util-linux)",
            ),
            Self::CgroupTwo => (cgroup_two_is_writable(), "a writable cgroup v2"),
            Self::FreezerOne => (
                is_writable(Path::new("/sys/fs/cgroup/freezer")),
                "a writable cgroup v1 with the freezer controller",
            ),
            Self::FreezableDisk => (
                Path::new("/dev/loop-control").exists() && on_path(&DISK_TOOLS),
                "loop devices, and mkfs.ext4, mount, umount and fsfreeze (Debian: e2fsprogs, util-linux)",
            ),
            Self::FirstPidNamespace => (
                fs::read_link("/proc/self/ns/pid")
                    .is_ok_and(|namespace| namespace == Path::new("pid:[4026531836]")),
                "the machine's first namespace of process ids",
            ),
            Self::KernelLog => (
                fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open("/dev/kmsg")
                    .is_ok(),
                "access to /dev/kmsg",
            ),
            Self::Etcd => (
                on_path(&["etcd", "etcdctl"]),
                "etcd and etcdctl on the PATH (Debian: etcd-server, etcd-client)",
            ),
            Self::Python => (Path::new(python()).exists(), "/usr/bin/python3"),
            Self::Strace => (on_path(&["strace"]), "strace (Debian: strace)"),
            Self::Slurm => (
                nix::unistd::geteuid().is_root()
                    && on_path(&[
                        "slurmctld",
                        "slurmd",
                        "sbatch",
                        "srun",
                        "scontrol",
                        "munged",
                    ]),
                "root, and Slurm (Debian: slurmctld, slurmd, slurm-client, munge)",
            ),
            Self::Torch => (
                has_torch(),
                "PyTorch for /usr/bin/python3 (Debian: python3-torch)",
            ),
        };
        (!there).then_some(what)
    }
}

const DISK_TOOLS: [&str; 4] = ["mkfs.ext4", "mount", "umount", "fsfreeze"];
const NETWORK_TOOLS: [&str; 5] = ["ip", "nft", "nsenter", "setpriv", "unshare"];

/// Whether all of these programs are there.
fn on_path(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path).collect();
    let is_there = |program: &&str| directories.iter().any(|d| d.join(program).is_file());
    programs.iter().all(is_there)
}

/// The interpreter that the tests use.
pub fn python() -> &'static str {
    "/usr/bin/python3"
}

/// Whether the long variants of tests are wanted (`STEADFAST_LONG_TESTS=1`).
pub fn long_tests() -> bool {
    std::env::var("STEADFAST_LONG_TESTS").as_deref() == Ok("1")
}

fn cgroup_two_is_writable() -> bool {
    crate::leftovers::own_cgroup().is_some_and(|path| is_writable(&path))
}

fn is_writable(directory: &Path) -> bool {
    let probe = directory.join(format!("steadfast-test-probe-{}", std::process::id()));
    fs::create_dir(&probe)
        .and_then(|()| fs::remove_dir(&probe))
        .is_ok()
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn has_torch() -> bool {
    let probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)";
    Command::new(python())
        .args(["-c", probe])
        .status()
        .is_ok_and(|status| status.success())
}
