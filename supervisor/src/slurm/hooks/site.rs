// SPDX-License-Identifier: Apache-2.0
//! What a site has decided about the hooks: `/etc/steadfast/slurm.toml`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// The file that is read when none is named. It need not be there.
pub(crate) const USUAL_FILE: &str = "/etc/steadfast/slurm.toml";

/// The settings of all hooks. Every one has a default that works.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Site {
    /// Where the hooks remember jobs and drains; gone with the next start of the machine.
    pub(crate) state_dir: PathBuf,
    /// Gets a line for each thing that a hook found or did.
    pub(crate) log_file: PathBuf,
    /// Name or path of Slurm's `scontrol`.
    pub(crate) scontrol: PathBuf,
    /// Slurm's own configuration, for `scontrol`: not all hooks are told where it is. Absent for the usual place.
    pub(crate) slurm_conf: Option<PathBuf>,
    /// How long one call of `scontrol` may take.
    #[serde(deserialize_with = "duration")]
    pub(crate) call_timeout: Duration,
    /// The kernel log: `auto` is `/dev/kmsg`, `off` is none, anything else is a file, in which `%n` is the node's name.
    pub(crate) kernel_log: String,
    /// Whether lines of the kernel log count that programs wrote there; for tests.
    pub(crate) kernel_log_trust: Trust,
    /// The checks: `auto` are those of `/etc/steadfast/checks.toml` if that is there, `off` are none, anything else is their
    /// configuration.
    pub(crate) checks: String,
    /// NVIDIA's library, for the checks: `auto`, `off` or a file.
    pub(crate) nvml: String,
    /// File that changes what is done about XIDs.
    pub(crate) xid_policy: Option<PathBuf>,
    /// Before a job.
    pub(crate) prolog: Prolog,
    /// After a job.
    pub(crate) epilog: Epilog,
    /// From time to time.
    pub(crate) health: Health,
    /// Before each task of a job.
    pub(crate) task_prolog: TaskProlog,
}

/// Whose lines of the kernel log count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Trust {
    /// The kernel's.
    #[default]
    Kernel,
    /// Everybody's.
    Anyone,
}

/// What the prolog does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Prolog {
    /// Whether a node that is proven sick fails the prolog.
    pub(crate) gate: bool,
    /// Whether the reason is given to the controller. That is a call of `scontrol` for each sick node, none for a well one.
    pub(crate) drain: bool,
    /// Whether the node service is started where it does not run.
    pub(crate) start_service: bool,
    /// Where it listens. Jobs look for it at the usual place.
    pub(crate) service_socket: PathBuf,
    /// After this time the prolog lets the job start, whatever is still missing.
    #[serde(deserialize_with = "duration")]
    pub(crate) deadline: Duration,
}

/// What the epilog does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Epilog {
    /// Whether processes that the job has left are killed.
    pub(crate) kill: bool,
    /// What becomes of processes of the job's user that nothing but the user ties to the job.
    pub(crate) user_processes: UserProcesses,
    /// Whether a node that the job leaves sick is drained.
    pub(crate) drain: bool,
    /// Whether a job that was put back into the queue starts again at once rather than after two minutes.
    pub(crate) hasten_requeue: bool,
    /// How often one job is hastened at most.
    pub(crate) hasten_at_most: u32,
    /// After this time the epilog ends, whatever is still missing.
    #[serde(deserialize_with = "duration")]
    pub(crate) deadline: Duration,
}

/// What becomes of processes of a user whose last job on the node has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UserProcesses {
    /// Nothing.
    Ignore,
    /// They are named in the log.
    #[default]
    Report,
    /// They are killed, if they are younger than the job.
    Kill,
}

/// What the health program does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Health {
    /// Whether a sick node is drained.
    pub(crate) drain: bool,
    /// Whether a node that was drained here is resumed when it is well.
    pub(crate) resume: bool,
    /// After this time it ends; Slurm kills it after 60 s.
    #[serde(deserialize_with = "duration")]
    pub(crate) deadline: Duration,
}

/// What the task prolog does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct TaskProlog {
    /// Whether PyTorch's flight recorder is turned on.
    pub(crate) flight_recorder: bool,
    /// More variables for the tasks. What the job sets itself stays.
    pub(crate) export: BTreeMap<String, String>,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/steadfast/slurm"),
            log_file: PathBuf::from("/var/log/steadfast/slurm.log"),
            scontrol: PathBuf::from("scontrol"),
            slurm_conf: None,
            call_timeout: Duration::from_secs(5),
            kernel_log: "auto".to_owned(),
            kernel_log_trust: Trust::Kernel,
            checks: "auto".to_owned(),
            nvml: "auto".to_owned(),
            xid_policy: None,
            prolog: Prolog::default(),
            epilog: Epilog::default(),
            health: Health::default(),
            task_prolog: TaskProlog::default(),
        }
    }
}

impl Default for Prolog {
    fn default() -> Self {
        Self {
            gate: true,
            drain: false,
            start_service: false,
            service_socket: PathBuf::from(crate::health_service::USUAL_SOCKET),
            deadline: Duration::from_secs(20),
        }
    }
}

impl Default for Epilog {
    fn default() -> Self {
        Self {
            kill: true,
            user_processes: UserProcesses::Report,
            drain: true,
            hasten_requeue: false,
            hasten_at_most: 10,
            deadline: Duration::from_secs(40),
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self {
            drain: true,
            resume: true,
            deadline: Duration::from_secs(55),
        }
    }
}

impl Default for TaskProlog {
    fn default() -> Self {
        Self {
            flight_recorder: true,
            export: BTreeMap::new(),
        }
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SiteError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file does not say what it may say.
    #[error("{}:{line}: {reason}", file.display())]
    Content {
        /// Which.
        file: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

impl Site {
    /// Reads the file that was named, or the usual one if it is there.
    pub(crate) fn read(named: Option<&Path>) -> Result<Site, SiteError> {
        let file = named.unwrap_or(Path::new(USUAL_FILE));
        match std::fs::read_to_string(file) {
            Ok(text) => Site::parse(file, &text),
            Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
                Ok(Site::default())
            }
            Err(source) => Err(SiteError::Read {
                file: file.to_owned(),
                source,
            }),
        }
    }

    /// Where to say that the file is wrong: the file may still say that much.
    pub(crate) fn log_file_of(named: Option<&Path>) -> PathBuf {
        let said = std::fs::read_to_string(named.unwrap_or(Path::new(USUAL_FILE)))
            .ok()
            .and_then(|text| text.parse::<toml::Table>().ok())
            .and_then(|table| table.get("log-file")?.as_str().map(PathBuf::from));
        said.unwrap_or_else(|| Site::default().log_file)
    }

    /// With the node's name for `%n`, as slurmd does it in its own paths where several nodes share a machine.
    pub(crate) fn on_node(mut self, node: &str) -> Site {
        self.kernel_log = self.kernel_log.replace("%n", node);
        self
    }

    /// Reads the text of `file`.
    pub(crate) fn parse(file: &Path, text: &str) -> Result<Site, SiteError> {
        let site: Site = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let before = text.get(..offset).unwrap_or(text);
            SiteError::Content {
                file: file.to_owned(),
                line: before.matches('\n').count() + 1,
                reason: error.message().replace('\n', ", "),
            }
        })?;
        for name in site.task_prolog.export.keys() {
            if !is_variable(name) {
                let line = text.lines().position(|line| line.contains(name.as_str()));
                return Err(SiteError::Content {
                    file: file.to_owned(),
                    line: line.map_or(1, |line| line + 1),
                    reason: format!("`{name}` is no name of a variable"),
                });
            }
        }
        Ok(site)
    }
}

/// Letters, digits and underscores, no digit first.
fn is_variable(name: &str) -> bool {
    let mut letters = name.chars();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    crate::config::duration::parse(&text)
        .map_err(|reason| serde::de::Error::custom(format!("`{text}`: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Site, String> {
        Site::parse(Path::new("/etc/s.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_all_defaults() {
        assert_eq!(parse("").unwrap(), Site::default());
    }

    #[test]
    fn every_section_is_read() {
        let site = parse(
            "call-timeout = \"2s\"\nkernel-log-trust = \"anyone\"\n[prolog]\ndrain = true\n[epilog]\nuser-processes = \"kill\"\n\
             [health]\nresume = false\n[task-prolog.export]\nNCCL_DEBUG = \"WARN\"\n",
        )
        .unwrap();
        assert_eq!(site.call_timeout, Duration::from_secs(2));
        assert_eq!(site.kernel_log_trust, Trust::Anyone);
        assert!(site.prolog.drain && site.prolog.gate && !site.health.resume);
        assert_eq!(site.epilog.user_processes, UserProcesses::Kill);
        assert_eq!(site.task_prolog.export["NCCL_DEBUG"], "WARN");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = parse("[prolog]\ndrian = true\n").unwrap_err();
        assert!(
            error.starts_with("/etc/s.toml:2: unknown field `drian`"),
            "{error}"
        );
        let error = parse("\n\ncall-timeout = \"soon\"\n").unwrap_err();
        assert!(error.starts_with("/etc/s.toml:3: `soon`: "), "{error}");
        let error = parse("[health]\nresume = 1\n").unwrap_err();
        assert!(error.starts_with("/etc/s.toml:2: "), "{error}");
        let error = parse("[task-prolog.export]\n\"A B\" = \"x\"\n").unwrap_err();
        assert_eq!(error, "/etc/s.toml:2: `A B` is no name of a variable");
        let error = parse("[prolog\n").unwrap_err();
        assert!(error.starts_with("/etc/s.toml:1: "), "{error}");
    }
}
