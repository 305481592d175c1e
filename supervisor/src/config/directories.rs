// SPDX-License-Identifier: Apache-2.0
//! The directories of a job: defaults that follow the XDG rules, and whether they can be used.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::values::Values;

/// Where the workers start.
pub(crate) fn working_dir(host: &Host, values: &Values) -> Result<PathBuf, ConfigError> {
    let Some(text) = values.text(Key::WorkingDir) else {
        return Ok(host.working_dir.clone());
    };
    let path = host.working_dir.join(text);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(unusable(
            values,
            Key::WorkingDir,
            path,
            "it is not a directory",
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(unusable(
            values,
            Key::WorkingDir,
            path,
            "there is no such directory",
        )),
        Err(error) => Err(unusable(values, Key::WorkingDir, path, &error.to_string())),
    }
}

/// The directory for the logs of all jobs.
pub(crate) fn log_dir(host: &Host, values: &Values) -> Result<PathBuf, ConfigError> {
    let path = match values.text(Key::LogDir) {
        Some(text) => host.working_dir.join(text),
        None => absolute(host, "XDG_STATE_HOME")
            .or_else(|| Some(absolute(host, "HOME")?.join(".local/state")))
            .map_or_else(|| temporary(host), |state| state.join("steadfast")),
    };
    can_be_made(values, Key::LogDir, &path)?;
    Ok(path)
}

/// The journal's file.
pub(crate) fn journal(
    host: &Host,
    values: &Values,
    run_dir: &Path,
) -> Result<PathBuf, ConfigError> {
    let Some(text) = values.text(Key::Journal) else {
        return Ok(run_dir.join("journal.jsonl"));
    };
    let path = host.working_dir.join(text);
    if path.is_dir() {
        return Err(unusable(values, Key::Journal, path, "it is a directory"));
    }
    if let Some(parent) = path.parent() {
        can_be_made(values, Key::Journal, parent)?;
    }
    Ok(path)
}

/// The directory of the control sockets. It is not checked: what only asks a job for its state need not write there.
pub(crate) fn runtime_root(host: &Host, values: &Values) -> PathBuf {
    match values.text(Key::RuntimeDir) {
        Some(text) => host.working_dir.join(text),
        None => absolute(host, "XDG_RUNTIME_DIR").map_or_else(
            || {
                if host.uid == 0 {
                    PathBuf::from("/run/steadfast")
                } else {
                    temporary(host)
                }
            },
            |runtime| runtime.join("steadfast"),
        ),
    }
}

/// Checks that the directory is there and writable, or that its nearest ancestor that is there is.
pub(crate) fn can_be_made(values: &Values, key: Key, path: &Path) -> Result<(), ConfigError> {
    let Some(present) = path.ancestors().find(|ancestor| ancestor.exists()) else {
        return Ok(());
    };
    let reason = if !present.is_dir() {
        format!("{} is not a directory", present.display())
    } else if access(present, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        format!("{} is not writable", present.display())
    } else {
        return Ok(());
    };
    Err(unusable(values, key, path.to_owned(), &reason))
}

fn absolute(host: &Host, variable: &str) -> Option<PathBuf> {
    host.variable(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

fn temporary(host: &Host) -> PathBuf {
    PathBuf::from(format!("/tmp/steadfast-{}", host.uid))
}

fn unusable(values: &Values, key: Key, path: PathBuf, reason: &str) -> ConfigError {
    ConfigError::Directory {
        what: values.given(key).to_string(),
        path,
        reason: reason.to_owned(),
    }
}
