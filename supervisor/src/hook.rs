// SPDX-License-Identifier: Apache-2.0
//! The Python that this program carries: the hook, and the module `steadfast`.
//!
//! Its files are laid into the job's private directory, where `PYTHONPATH` leads every Python process of the workers,
//! whatever started it. Each worker has a directory of its own for the progress pages of its processes.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the files go, below the job's directory.
const PYTHON: &str = "python";
/// The directories that `PYTHONPATH` names: `site` has the hook's start, `lib` the modules.
const SITE: &str = "site";
const LIB: &str = "lib";
/// Where the pages are, below the job's directory: by generation, then by local rank.
const PAGES: &str = "pages";

/// Upon this signal, a process with the hook writes its stacks to `PID.stacks` beside its pages, as its page says once it
/// has one (`_SIGNAL` in `_steadfast/stacks.py`).
pub(crate) const STACK_SIGNAL: u32 = 44;

macro_rules! python_files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../python/", $path)))),*]
    };
}

/// Paths and contents, as in `supervisor/python`.
const FILES: &[(&str, &str)] = python_files![
    "site/sitecustomize.py",
    "lib/_steadfast/__init__.py",
    "lib/_steadfast/errors.py",
    "lib/_steadfast/frameworks.py",
    "lib/_steadfast/guard.py",
    "lib/_steadfast/imports.py",
    "lib/_steadfast/keras_hooks.py",
    "lib/_steadfast/page.py",
    "lib/_steadfast/phases.py",
    "lib/_steadfast/recorder.py",
    "lib/_steadfast/stacks.py",
    "lib/_steadfast/startup.py",
    "lib/_steadfast/torch_hooks.py",
    "lib/_steadfast/wrapping.py",
    "lib/steadfast/__init__.py",
    "lib/steadfast/py.typed",
];

/// The places that the workers are told.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    python: PathBuf,
    pages: PathBuf,
}

/// Why the hook is not there for the workers.
#[derive(Debug, thiserror::Error)]
#[error("failed to make {path}")]
pub(crate) struct HookError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Hook {
    /// The hook of the job whose private directory is `runtime_dir`.
    pub(crate) fn new(runtime_dir: &Path) -> Hook {
        Hook {
            python: runtime_dir.join(PYTHON),
            pages: runtime_dir.join(PAGES),
        }
    }

    /// Lays out the files, and directories for the pages of this generation; those of older ones are removed.
    ///
    /// # Errors
    ///
    /// [`HookError`]: the workers had better run without.
    pub(crate) fn prepare(&self, generation: u64, slots: u32) -> Result<(), HookError> {
        for (name, content) in FILES {
            let path = self.python.join(name);
            write_once(&path, content).map_err(|source| HookError { path, source })?;
        }
        let path = self.pages.clone();
        self.remove_older(generation)
            .map_err(|source| HookError { path, source })?;
        for local_rank in 0..slots {
            let path = self.pages_of(generation, local_rank);
            private(&path).map_err(|source| HookError { path, source })?;
        }
        Ok(())
    }

    /// Where the processes of this worker put their pages (`STEADFAST_PAGES`).
    pub(crate) fn pages_of(&self, generation: u64, local_rank: u32) -> PathBuf {
        self.pages
            .join(generation.to_string())
            .join(local_rank.to_string())
    }

    /// `PYTHONPATH` for the workers, before what they would have had.
    pub(crate) fn python_path(&self, inherited: Option<&OsStr>) -> OsString {
        let mut path = self.python.join(SITE).into_os_string();
        path.push(":");
        path.push(self.python.join(LIB));
        // An empty entry would be the current directory.
        if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
            path.push(":");
            path.push(inherited);
        }
        path
    }

    fn remove_older(&self, generation: u64) -> io::Result<()> {
        let entries = match fs::read_dir(&self.pages) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u64>().ok());
            if number.is_some_and(|number| number < generation) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// A file that has the right length was written by us, whole: it was renamed into its place.
fn write_once(path: &Path, content: &str) -> io::Result<()> {
    let expected = content.len() as u64;
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.size() == expected) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        private(parent)?;
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, content)?;
    fs::rename(&fresh, path)
}

fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_python_file_is_carried() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let mut found = Vec::new();
        let mut open = vec![root.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && path.file_name().unwrap() != "__pycache__" {
                    open.push(path);
                } else if path.is_file() {
                    found.push(path.strip_prefix(&root).unwrap().display().to_string());
                }
            }
        }
        // `pip install` leaves its notes there.
        found.retain(|path| path.starts_with(SITE) || path.starts_with(LIB));
        found.retain(|path| !path.contains(".egg-info"));
        found.sort();
        let mut carried: Vec<String> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        carried.sort();
        assert_eq!(carried, found);
    }

    #[test]
    fn the_signal_for_the_stacks_is_the_hooks_own() {
        let stacks = FILES.iter().find(|(path, _)| path.ends_with("stacks.py"));
        let line = format!("_SIGNAL = {STACK_SIGNAL}\n");
        assert!(stacks.unwrap().1.contains(&line));
    }

    #[test]
    fn files_and_pages_are_laid_out_and_older_generations_removed() {
        let root = tempfile::tempdir().unwrap();
        let hook = Hook::new(root.path());
        hook.prepare(1, 2).unwrap();
        fs::write(hook.pages_of(1, 1).join("5.page"), "").unwrap();
        hook.prepare(1, 2).unwrap();
        assert!(hook.pages_of(1, 1).join("5.page").exists(), "as it was");
        let module = root.path().join("python/lib/steadfast/__init__.py");
        fs::write(&module, "torn").unwrap();
        hook.prepare(2, 1).unwrap();
        assert!(!hook.pages_of(1, 1).exists());
        assert!(hook.pages_of(2, 0).is_dir());
        assert!(fs::read_to_string(module).unwrap().contains("def progress"));
    }

    #[test]
    fn the_users_own_python_path_stays() {
        let hook = Hook::new(Path::new("/run/job"));
        let ours = "/run/job/python/site:/run/job/python/lib";
        assert_eq!(hook.python_path(None), ours);
        assert_eq!(hook.python_path(Some("".as_ref())), ours);
        let both = hook.python_path(Some("/home/me:".as_ref()));
        assert_eq!(both.to_str(), Some(&*format!("{ours}:/home/me:")));
    }
}
