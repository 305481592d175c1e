// SPDX-License-Identifier: Apache-2.0
//! Which checks are made of which node, and what holds where nobody says otherwise.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use steadfast_checks::{Nvml, Profile};

use crate::config::Host;
use crate::fault_book;

/// The configuration where nobody names another.
const CONFIG: &str = "etc/steadfast/checks.toml";
const CONFIG_VARIABLE: &str = "STEADFAST_CHECK_CONFIG";
const STATE_VARIABLE: &str = "STEADFAST_CHECK_STATE";
const NVML_VARIABLE: &str = "STEADFAST_NVML";
/// What checks remember, for root.
const STATE: &str = "/var/lib/steadfast/checks.json";
/// The same for others, below their own directory for such files.
const OWN_STATE: &str = "steadfast/checks.json";

/// Which checks are made of which node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inquiry {
    /// The occasion.
    pub(crate) profile: Profile,
    /// Only these checks; all of the profile if there are none.
    pub(crate) only: Vec<String>,
    /// Not these.
    pub(crate) skip: Vec<String>,
    /// The configuration.
    pub(crate) config: ConfigFile,
    /// Name of the node.
    pub(crate) node: String,
    /// What stands for `/`.
    pub(crate) root: PathBuf,
    /// Where checks remember what they have seen; absent for nowhere.
    pub(crate) state: Option<PathBuf>,
    /// NVIDIA's library.
    pub(crate) nvml: Nvml,
    /// Where the node service remembers faults of GPUs.
    pub(crate) gpu_faults: PathBuf,
    /// The GPUs that matter, by index, UUID or PCI address; absent for all.
    pub(crate) gpus: Option<Vec<String>>,
}

/// Where the configuration is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConfigFile {
    /// It must be here.
    Named(PathBuf),
    /// It may be here.
    IfThere(PathBuf),
}

/// What was given instead of a default, on a command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given<'a> {
    /// The configuration.
    pub(crate) config: Option<&'a str>,
    /// Where checks remember what they have seen, or `off`.
    pub(crate) state: Option<&'a str>,
    /// NVIDIA's library, `auto` or `off`.
    pub(crate) nvml: Option<&'a str>,
}

impl Inquiry {
    /// All checks of a profile, of this machine: as was given, else as variables say, else as usual.
    pub(crate) fn new(host: &Host, profile: Profile, given: Given<'_>) -> Self {
        let or = |given: Option<&str>, variable: &str| {
            given.or_else(|| host.variable(variable)).map(str::to_owned)
        };
        let state = or(given.state, STATE_VARIABLE);
        Self {
            profile,
            only: Vec::new(),
            skip: Vec::new(),
            config: or(given.config, CONFIG_VARIABLE).map_or_else(
                || ConfigFile::IfThere(host.root.join(CONFIG)),
                |file| ConfigFile::Named(host.working_dir.join(file)),
            ),
            node: host.hostname.clone(),
            root: host.root.clone(),
            state: match state.as_deref() {
                Some("off") => None,
                Some(file) => Some(host.working_dir.join(file)),
                None => default_state(host),
            },
            nvml: match or(given.nvml, NVML_VARIABLE).as_deref() {
                Some("off") => Nvml::Off,
                Some("auto") | None => Nvml::Installed,
                Some(file) => Nvml::At(host.working_dir.join(file)),
            },
            gpu_faults: fault_book::place(host, None),
            gpus: None,
        }
    }
}

fn default_state(host: &Host) -> Option<PathBuf> {
    if host.uid == 0 {
        return Some(PathBuf::from(STATE));
    }
    let own = host.variable("XDG_STATE_HOME").map(PathBuf::from);
    let own = own.filter(|path| path.is_absolute());
    let own = own.or_else(|| Some(Path::new(host.variable("HOME")?).join(".local/state")));
    own.map(|directory| directory.join(OWN_STATE))
}
