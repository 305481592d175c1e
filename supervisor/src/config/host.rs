// SPDX-License-Identifier: Apache-2.0
//! What the configuration takes from the machine and from the process, gathered once so that everything else is a
//! function of its input.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use super::error::ConfigError;
use crate::clock;

/// The surroundings that settings are made in.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Environment variables; those whose name is not UTF-8 are left out.
    pub(crate) environment: BTreeMap<String, OsString>,
    /// Absolute current directory.
    pub(crate) working_dir: PathBuf,
    /// The host's name.
    pub(crate) hostname: String,
    /// Effective user id.
    pub(crate) uid: u32,
    /// Usable CPUs, at least 1.
    pub(crate) cpus: u32,
    /// Directory under which `dev` and `etc` are looked for; `/` except in tests.
    pub(crate) root: PathBuf,
    /// Random bytes for names that must be unique.
    pub(crate) entropy: [u8; 32],
    /// The wall clock, in milliseconds since 1970; only to place what others say in its terms.
    pub(crate) wall_ms: i64,
    /// `CLOCK_MONOTONIC` at the same moment, in nanoseconds.
    pub(crate) monotonic_ns: u64,
}

impl Host {
    /// The machine and the process as they are.
    pub(crate) fn current() -> Result<Self, ConfigError> {
        let failed = |what: &'static str, reason: &dyn std::fmt::Display| ConfigError::Host {
            what,
            reason: reason.to_string(),
        };
        let mut entropy = [0; 32];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut entropy))
            .map_err(|error| failed("/dev/urandom", &error))?;
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_err(|error| failed("the host's name in /proc/sys/kernel/hostname", &error))?;
        Ok(Self {
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .collect(),
            working_dir: std::env::current_dir()
                .map_err(|error| failed("the current directory", &error))?,
            hostname: hostname.trim().to_owned(),
            uid: nix::unistd::geteuid().as_raw(),
            cpus: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            root: PathBuf::from("/"),
            entropy,
            wall_ms: clock::wall_ms(),
            monotonic_ns: clock::monotonic_ns(),
        })
    }

    /// The value of an environment variable; absent when it is unset, empty or not UTF-8.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .get(name)?
            .to_str()
            .filter(|value| !value.is_empty())
    }

    /// `count` (at most 16) random letters and digits; `stream` 0 and 1 give independent ones.
    pub(crate) fn random_name(&self, stream: usize, count: usize) -> String {
        const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        self.entropy
            .iter()
            .skip(stream * 16)
            .take(count.min(16))
            .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
            .collect()
    }

    /// A random (version 4) UUID.
    pub(crate) fn random_uuid(&self) -> String {
        let bytes = self.entropy.iter().rev().take(16);
        let hex = format!(
            "{:032x}",
            bytes.fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        );
        format!(
            "{}-{}-4{}-a{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[13..16],
            &hex[17..20],
            &hex[20..]
        )
    }
}

#[cfg(test)]
impl Host {
    /// A machine with nothing on it, whose files are all below `root`.
    pub(crate) fn for_test(root: &std::path::Path) -> Self {
        let bin = root.join("bin");
        let mut environment = BTreeMap::new();
        environment.insert("PATH".to_owned(), bin.into_os_string());
        environment.insert("HOME".to_owned(), root.join("home").into_os_string());
        Self {
            environment,
            working_dir: root.to_owned(),
            hostname: "host7".to_owned(),
            uid: 1000,
            cpus: 4,
            root: root.to_owned(),
            entropy: [7; 32],
            wall_ms: 1_700_000_000_000,
            monotonic_ns: 5_000_000_000,
        }
    }

    /// The same machine with one more environment variable.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }
}
