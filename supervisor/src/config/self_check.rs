// SPDX-License-Identifier: Apache-2.0
//! `--self-check` and what goes with it.

use std::path::Path;

use steadfast_checks::{Nvml, Profile};

use super::duration;
use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::values::Values;
use crate::check_command::{ConfigFile, Given, Inquiry};
use crate::settings::{NvmlUse, SelfChecks};

/// Whether the node is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Auto,
    On,
    Off,
}

/// Reads the options; `nvml` is what `--nvml` says.
pub(super) fn read(
    host: &Host,
    values: &Values,
    nvml: &NvmlUse,
) -> Result<Option<SelfChecks>, ConfigError> {
    let mode = values.require(Key::SelfCheck, mode)?;
    let every = values.require(Key::SelfCheckEvery, duration::parse)?;
    let wait = values.require(Key::SelfCheckWait, duration::parse)?;
    let mut inquiry = Inquiry::new(host, Profile::Job, Given::default());
    // Rates since the last look belong to those who look at all of the node.
    inquiry.state = None;
    inquiry.nvml = match nvml {
        NvmlUse::Auto => Nvml::Installed,
        NvmlUse::Off => Nvml::Off,
        NvmlUse::Path(library) => Nvml::At(library.clone()),
    };
    let looks = match mode {
        Mode::On => true,
        Mode::Off => false,
        Mode::Auto => has_something_to_see(&host.root, nvml) || is_configured(&inquiry.config),
    };
    Ok(looks.then_some(SelfChecks {
        inquiry,
        every,
        wait,
    }))
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "auto" => Ok(Mode::Auto),
        "on" => Ok(Mode::On),
        "off" => Ok(Mode::Off),
        _ => Err("must be `auto`, `on` or `off`".to_owned()),
    }
}

/// Whether the node has GPUs or InfiniBand: there is nothing else that this profile looks at by default.
fn has_something_to_see(root: &Path, nvml: &NvmlUse) -> bool {
    let has_gpus = match nvml {
        NvmlUse::Path(_) => true,
        NvmlUse::Auto => root.join("proc/driver/nvidia/version").exists(),
        NvmlUse::Off => false,
    };
    let ports = std::fs::read_dir(root.join("sys/class/infiniband"));
    has_gpus || ports.is_ok_and(|mut ports| ports.next().is_some())
}

fn is_configured(config: &ConfigFile) -> bool {
    match config {
        ConfigFile::Named(_) => true,
        ConfigFile::IfThere(file) => file.exists(),
    }
}
