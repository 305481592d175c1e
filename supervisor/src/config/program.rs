// SPDX-License-Identifier: Apache-2.0
//! Finds the program of a command as execvp would, before anything is started.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::error::ConfigError;
use super::host::Host;

/// Where execvp looks when PATH is unset.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The absolute path of `program`, which exists and may be executed. A name without a slash is searched in PATH; a
/// relative path starts from `working_dir`.
pub(crate) fn resolve(
    host: &Host,
    program: &OsStr,
    working_dir: &Path,
) -> Result<PathBuf, ConfigError> {
    let shown = || program.to_string_lossy().into_owned();
    if program.is_empty() {
        return Err(ConfigError::CommandUnusable {
            program: shown(),
            reason: "its name is empty".to_owned(),
        });
    }
    if program.as_bytes().contains(&b'/') {
        let path = working_dir.join(program);
        return match unusable(&path) {
            None => Ok(path),
            Some(reason) => Err(ConfigError::CommandUnusable {
                program: shown(),
                reason,
            }),
        };
    }
    search(host, program, working_dir)
}

/// The first of `names` that PATH has.
pub(crate) fn first_of(host: &Host, names: &[&str], working_dir: &Path) -> Option<PathBuf> {
    names
        .iter()
        .find_map(|name| search(host, OsStr::new(name), working_dir).ok())
}

fn search(host: &Host, program: &OsStr, working_dir: &Path) -> Result<PathBuf, ConfigError> {
    let path = host
        .environment
        .get("PATH")
        .map_or(OsStr::new(DEFAULT_PATH), |path| path);
    let directories: Vec<PathBuf> = std::env::split_paths(path).collect();
    let mut found_unusable = None;
    for directory in &directories {
        let candidate = working_dir.join(directory).join(program);
        match unusable(&candidate) {
            None => return Ok(candidate),
            // Like the shell: go on looking, but say so if there is nothing better.
            Some(reason) if candidate.exists() => {
                found_unusable.get_or_insert_with(|| format!("{}: {reason}", candidate.display()));
            }
            Some(_) => {}
        }
    }
    let program = program.to_string_lossy().into_owned();
    Err(match found_unusable {
        Some(reason) => ConfigError::CommandUnusable { program, reason },
        None => ConfigError::CommandNotFound {
            program,
            searched: describe(&directories),
        },
    })
}

/// Why `path` cannot be executed.
fn unusable(path: &Path) -> Option<String> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Some("there is no such file".to_owned())
        }
        Err(error) => Some(error.to_string()),
        Ok(metadata) if metadata.is_dir() => Some("it is a directory".to_owned()),
        Ok(_) => match access(path, AccessFlags::X_OK) {
            Ok(()) => None,
            Err(_) => Some("it is not executable (chmod +x makes it so)".to_owned()),
        },
    }
}

fn describe(directories: &[PathBuf]) -> String {
    const SHOWN: usize = 6;
    let mut distinct: Vec<String> = Vec::new();
    for directory in directories {
        let directory = directory.display().to_string();
        if !distinct.contains(&directory) {
            distinct.push(directory);
        }
    }
    let more = distinct.len().saturating_sub(SHOWN);
    distinct.truncate(SHOWN);
    if more > 0 {
        distinct.push(format!("and {more} more"));
    }
    distinct.join(", ")
}
