// SPDX-License-Identifier: Apache-2.0
//! What there is to be explained.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use steadfast_core::RankSigns;
use steadfast_health::flight_recorder::{Dump, DumpError};

const INDEX: &str = "index.json";
/// An index has a few kilobytes for each rank.
const LARGEST_INDEX: u64 = 64 * 1024 * 1024;
/// More files are not looked at.
const MOST_FILES: usize = 100_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) evidence: Option<Evidence>,
    pub(super) dumps: Vec<Dump>,
    /// Files that look like a dump and could not be read, and why.
    pub(super) notes: Vec<String>,
}

/// The index of a directory of evidence.
#[derive(Debug, Deserialize)]
pub(super) struct Evidence {
    pub(super) incident: Value,
    pub(super) ranks: Vec<RankSigns>,
}

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no index of evidence: {source}")]
    Index {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path}: {reason}")]
    Dump { path: PathBuf, reason: String },
    #[error(
        "there is nothing to explain in {0}: neither evidence (index.json) nor dumps of the flight recorder, whose names end \
         in the number of a rank"
    )]
    Nothing(PathBuf),
}

/// Reads what is at a path.
pub(super) fn read(path: &Path) -> Result<Sources, SourceError> {
    let failed = |source| SourceError::Read {
        path: path.to_owned(),
        source,
    };
    let mut sources = Sources::default();
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        if path.file_name().is_some_and(|name| name == INDEX) {
            sources.evidence = Some(read_index(path)?);
        } else {
            let dump = Dump::read(path).map_err(|error| SourceError::Dump {
                path: path.to_owned(),
                reason: in_full(&error),
            })?;
            sources.dumps.push(dump);
        }
        return Ok(sources);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(path)
        .map_err(failed)?
        .flatten()
        .take(MOST_FILES)
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    for file in files {
        if file.file_name().is_some_and(|name| name == INDEX) {
            sources.evidence = Some(read_index(&file)?);
            continue;
        }
        match Dump::read(&file) {
            Ok(dump) if sources.dumps.iter().all(|other| other.rank != dump.rank) => {
                sources.dumps.push(dump);
            }
            Ok(dump) => sources.notes.push(format!(
                "{} is passed over: there is another dump of rank {}",
                file.display(),
                dump.rank
            )),
            // Whatever else is in the directory.
            Err(DumpError::NoRank) => {}
            Err(error) => sources.notes.push(format!(
                "{} is passed over: {}",
                file.display(),
                in_full(&error)
            )),
        }
    }
    if sources.evidence.is_none() && sources.dumps.is_empty() && sources.notes.is_empty() {
        return Err(SourceError::Nothing(path.to_owned()));
    }
    Ok(sources)
}

fn read_index(path: &Path) -> Result<Evidence, SourceError> {
    let failed = |source| SourceError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = fs::File::open(path).map_err(failed)?;
    let text =
        steadfast_process::memory_file::read_all(&mut file, LARGEST_INDEX).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|source| SourceError::Index {
        path: path.to_owned(),
        source,
    })
}

fn in_full(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}
