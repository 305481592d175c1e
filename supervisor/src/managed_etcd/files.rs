// SPDX-License-Identifier: Apache-2.0
//! What a managed etcd keeps on this node: a directory in the job's runtime directory, which goes with it.
//!
//! The directory belongs to one keeper. What an earlier one left behind is no use: its etcd may have been replaced in the
//! cluster meanwhile. It is removed, but remembered: who has been a member before must not begin once more as if it
//! never had.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use steadfast_coord::etcd::EtcdEndpoint;

use super::certificates::CertificateFiles;

const PREFIX: &str = "etcd-";

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    directory: PathBuf,
    /// Whether an earlier keeper of this job had one here.
    pub(crate) had_predecessor: bool,
}

/// What a new agent must know of what its predecessors did. In `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// This node's place in the cluster, if it has one.
    pub(crate) place: Option<Place>,
    /// How many places it has had.
    pub(crate) places: u32,
    /// Host and client port of the members when they were last seen.
    pub(crate) endpoints: Vec<(String, u16)>,
}

/// A place in the cluster: what an etcd on this node is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Tells the places apart that this node has had; each has data of its own.
    pub(crate) number: u32,
    /// Whether the cluster is there already.
    pub(crate) cluster_exists: bool,
    /// Names and peer URLs of all members, as etcd's `--initial-cluster` takes them.
    pub(crate) initial_cluster: String,
    /// Whether etcd has had data for this place. If they are gone, so is the place.
    pub(crate) has_had_data: bool,
}

impl Files {
    /// The directory of the keeper with this token, which is made if it is not there; those of others are removed.
    pub(crate) fn open(runtime_dir: &Path, keeper_token: &str) -> io::Result<Files> {
        let name = format!("{PREFIX}{keeper_token}");
        let directory = runtime_dir.join(&name);
        let mut had_predecessor = directory.join("predecessor").exists();
        let mut stale = Vec::new();
        for entry in fs::read_dir(runtime_dir)? {
            let found = entry?.file_name();
            if found.to_string_lossy().starts_with(PREFIX) && found.to_string_lossy() != name {
                stale.push(runtime_dir.join(found));
            }
        }
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !stale.is_empty() {
            had_predecessor = true;
            fs::write(directory.join("predecessor"), "")?;
        }
        for path in stale {
            fs::remove_dir_all(path)?;
        }
        Ok(Files {
            directory,
            had_predecessor,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn certificates(&self) -> CertificateFiles {
        CertificateFiles::inside(&self.directory)
    }

    /// What etcd prints, near at hand; see [`super::log`].
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The data of a place.
    pub(crate) fn data(&self, place: &Place) -> PathBuf {
        self.directory.join(format!("data-{}", place.number))
    }

    /// Whether etcd has data for this place.
    pub(crate) fn has_data(&self, place: &Place) -> bool {
        let log = self.data(place).join("member/wal");
        fs::read_dir(log).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Removes the data of all places but this one.
    pub(crate) fn remove_other_data(&self, place: Option<&Place>) -> io::Result<()> {
        let kept = place.map(|place| self.data(place));
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let is_data = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("data-"));
            if is_data && Some(&path) != kept.as_ref() {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// What was written last; nothing if nothing was.
    pub(crate) fn read_state(&self) -> io::Result<State> {
        match fs::read(self.directory.join("state.json")) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write_state(&self, state: &State) -> io::Result<()> {
        let draft = self.directory.join("state.draft");
        fs::write(&draft, serde_json::to_vec(state).map_err(io::Error::other)?)?;
        fs::rename(draft, self.directory.join("state.json"))
    }
}

impl State {
    /// The members when they were last seen.
    pub(crate) fn endpoints(&self) -> Vec<EtcdEndpoint> {
        let each = self.endpoints.iter();
        each.map(|(host, port)| EtcdEndpoint {
            host: host.clone(),
            port: *port,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> Place {
        Place {
            number,
            cluster_exists: false,
            initial_cluster: "a=https://a:1".to_owned(),
            has_had_data: false,
        }
    }

    #[test]
    fn a_new_agent_finds_what_its_predecessor_knew_and_a_new_keeper_does_not() {
        let runtime_dir = tempfile::tempdir().unwrap();
        let files = Files::open(runtime_dir.path(), "one").unwrap();
        assert_eq!(files.read_state().unwrap(), State::default());
        let state = State {
            place: Some(place(1)),
            places: 1,
            endpoints: vec![("a".to_owned(), 1)],
        };
        files.write_state(&state).unwrap();
        let again = Files::open(runtime_dir.path(), "one").unwrap();
        assert!(!again.had_predecessor);
        assert_eq!(again.read_state().unwrap(), state);
        for _ in 0..2 {
            let next = Files::open(runtime_dir.path(), "two").unwrap();
            assert!(next.had_predecessor, "for every agent of that keeper");
            assert_eq!(next.read_state().unwrap(), State::default());
        }
        assert!(!files.directory().exists());
    }

    #[test]
    fn data_belong_to_a_place() {
        let runtime_dir = tempfile::tempdir().unwrap();
        let files = Files::open(runtime_dir.path(), "one").unwrap();
        for number in 1..=3 {
            let place = place(number);
            assert!(!files.has_data(&place));
            let wal = files.data(&place).join("member/wal");
            fs::create_dir_all(&wal).unwrap();
            assert!(!files.has_data(&place), "an empty log is none");
            fs::write(wal.join("0.wal"), "x").unwrap();
            assert!(files.has_data(&place));
        }
        files.remove_other_data(Some(&place(2))).unwrap();
        let left: Vec<_> = (1..=3)
            .map(|number| files.has_data(&place(number)))
            .collect();
        assert_eq!(left, [false, true, false]);
    }
}
