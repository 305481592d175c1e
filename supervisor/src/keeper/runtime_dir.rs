// SPDX-License-Identifier: Apache-2.0
//! The private directory of a job on this node: control socket and lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest path that a Unix socket can have, without the final NUL.
const LONGEST_SOCKET_PATH: usize = 107;
/// Name of the control socket in the directory.
pub(crate) const SOCKET_NAME: &str = "control.sock";
const LOCK_NAME: &str = "keeper.lock";

/// The directory, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    path: PathBuf,
    _lock: File,
}

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeDirError {
    /// A keeper of a job of this name lives on this node.
    #[error(
        "a job called `{job}` is already running on this node (keeper pid {keeper}): choose another --job, or end it with `steadfast stop --job {job}`"
    )]
    Taken {
        /// Name of the job.
        job: String,
        /// What the lock says of its holder.
        keeper: String,
    },
    /// The path is too long for a socket.
    #[error(
        "the path {0} is too long for a Unix socket (107 bytes): choose a shorter --runtime-dir or --job"
    )]
    TooLong(PathBuf),
    /// Somebody else could put things into it.
    #[error(
        "the directory {0} is not private to this user: remove it, or choose another --runtime-dir"
    )]
    NotPrivate(PathBuf),
    /// The file system refused.
    #[error("could not make the runtime directory {path}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl RuntimeDir {
    /// Makes and locks the directory of `job` below `root`. What a dead keeper left there is removed.
    pub(crate) fn create(
        root: &Path,
        job: &str,
        node: &str,
    ) -> Result<RuntimeDir, RuntimeDirError> {
        let path = root.join(format!("{job}@{node}"));
        if path.join(SOCKET_NAME).as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(RuntimeDirError::TooLong(path.join(SOCKET_NAME)));
        }
        make_private(root)?;
        make_private(&path)?;
        let at = |source| RuntimeDirError::Io {
            path: path.clone(),
            source,
        };
        let lock_path = path.join(LOCK_NAME);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&lock_path)
            .map_err(at)?;
        if lock.try_lock().is_err() {
            let keeper = fs::read_to_string(&lock_path)
                .unwrap_or_default()
                .trim()
                .to_owned();
            return Err(RuntimeDirError::Taken {
                job: job.to_owned(),
                keeper,
            });
        }
        lock.set_len(0).map_err(at)?;
        writeln!(lock, "{}", std::process::id()).map_err(at)?;
        match fs::remove_file(path.join(SOCKET_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(error)),
            _ => Ok(RuntimeDir { path, _lock: lock }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

/// Whether a live keeper holds the directory at `path`.
pub(crate) fn is_alive(path: &Path) -> bool {
    File::open(path.join(LOCK_NAME))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

fn make_private(path: &Path) -> Result<(), RuntimeDirError> {
    let at = |source| RuntimeDirError::Io {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(at)?;
    let ours = found.uid() == nix::unistd::geteuid().as_raw();
    if found.is_dir() && ours && found.mode().trailing_zeros() >= 6 {
        Ok(())
    } else {
        Err(RuntimeDirError::NotPrivate(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_second_keeper_of_the_same_job_is_refused_and_a_dead_one_leaves_no_trace() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().join("private");
        let first = RuntimeDir::create(&root, "job", "node").unwrap();
        assert!(is_alive(first.path()));
        let refused = RuntimeDir::create(&root, "job", "node").unwrap_err();
        assert!(matches!(refused, RuntimeDirError::Taken { .. }));
        let path = first.path().to_owned();
        fs::write(path.join(SOCKET_NAME), "stale").unwrap();
        drop(first);
        assert!(!is_alive(&path));
        let again = RuntimeDir::create(&root, "job", "node").unwrap();
        assert!(!again.path().join(SOCKET_NAME).exists());
        again.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = RuntimeDir::create(&open, "job", "node").unwrap_err();
        assert!(matches!(refused, RuntimeDirError::NotPrivate(path) if path == open));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused_in_words() {
        let refused = RuntimeDir::create(Path::new("/tmp"), &"x".repeat(120), "node").unwrap_err();
        assert!(refused.to_string().contains("too long"));
    }
}
