// SPDX-License-Identifier: Apache-2.0
//! The files of a folder, as far as they can be evidence.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use steadfast_diagnosis::EvidenceFile;

use super::sources::SourceError;

/// How deep folders are looked into: torchrun's own logs lie four deep.
const DEEPEST: usize = 6;
/// More files are not read.
const MOST_FILES: usize = 20_000;
/// Of a longer file, the end is read.
const LONGEST: u64 = 96 << 20;
/// So many bytes tell whether a file is text.
const PROBED: usize = 4096;
/// Names that are no evidence: answers, descriptions, programs.
const NO_EVIDENCE: [&str; 12] = [
    "expected.toml",
    "source.txt",
    ".md",
    ".py",
    ".sh",
    ".pt",
    ".pth",
    ".safetensors",
    ".ckpt",
    ".bin",
    ".png",
    ".gz",
];
/// Folders that hold checkpoints, and nothing that anybody printed.
const CHECKPOINTS: [&str; 4] = ["ckpt", "ckpts", "checkpoint", "checkpoints"];

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) evidence: Vec<EvidenceFile>,
    /// The files of host lists.
    pub(super) hostlists: Vec<EvidenceFile>,
    /// Whether there is a description of how to bring something about.
    pub(super) describes_behaviour: bool,
    /// What was left out.
    pub(super) notes: Vec<String>,
}

/// Reads a folder, or one file.
pub(super) fn read(path: &Path) -> Result<Files, SourceError> {
    let failed = |source| SourceError::Read {
        path: path.to_owned(),
        source,
    };
    let mut files = Files::default();
    if fs::metadata(path).map_err(failed)?.is_dir() {
        folder(path, "", 0, &mut files).map_err(failed)?;
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        take(path, &name, &mut files);
    }
    Ok(files)
}

fn folder(path: &Path, prefix: &str, depth: usize, files: &mut Files) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let kind = entry.file_type()?;
        if name.starts_with('.') || files.evidence.len() >= MOST_FILES {
            continue;
        }
        let full = format!("{prefix}{name}");
        if kind.is_dir() {
            let is_checkpoint = CHECKPOINTS.iter().any(|other| name == *other);
            if depth < DEEPEST && !is_checkpoint {
                folder(&entry.path(), &format!("{full}/"), depth + 1, files)?;
            }
        } else if kind.is_file() {
            take(&entry.path(), &full, files);
        }
    }
    Ok(())
}

fn take(path: &Path, name: &str, files: &mut Files) {
    files.describes_behaviour |= name.ends_with("scenario.md");
    if NO_EVIDENCE.iter().any(|end| name.ends_with(end)) {
        return;
    }
    match text(path) {
        Ok(Some((text, skipped_lines))) => {
            if skipped_lines > 0 {
                let note = format!("{name} is long: its first {skipped_lines} lines are left out");
                files.notes.push(note);
            }
            let file = EvidenceFile {
                name: name.to_owned(),
                text,
                skipped_lines,
            };
            let base = name.rsplit('/').next().unwrap_or(name);
            if base.starts_with("hostlist") {
                files.hostlists.push(file);
            } else {
                files.evidence.push(file);
            }
        }
        Ok(None) => {}
        Err(error) => files.notes.push(format!("{name} is passed over: {error}")),
    }
}

/// The text of a file, or of its end, and the lines before that. `None` for what is no text.
fn text(path: &Path) -> io::Result<Option<(String, u32)>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut skipped = 0;
    if size > LONGEST {
        let mut rest = size - LONGEST;
        let mut buffer = vec![0; 1 << 20];
        while rest > 0 {
            let most = usize::try_from(rest)
                .unwrap_or(buffer.len())
                .min(buffer.len());
            let Some(part) = buffer.get_mut(..most) else {
                break;
            };
            file.read_exact(part)?;
            let lines = memchr::memchr_iter(b'\n', part).count();
            skipped += u32::try_from(lines).unwrap_or(u32::MAX);
            rest -= part.len() as u64;
        }
        file.seek(SeekFrom::Start(size - LONGEST))?;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    let probe = bytes.get(..PROBED).unwrap_or(&bytes);
    if memchr::memchr(0, probe).is_some() {
        return Ok(None);
    }
    Ok(Some((
        String::from_utf8_lossy(&bytes).into_owned(),
        skipped,
    )))
}
