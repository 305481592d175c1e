// SPDX-License-Identifier: Apache-2.0
//! The members of etcd that a job meets in: real ones, which can be killed, stopped and emptied.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::host::Host;
use crate::bench::waiting::wait_for;
use crate::failure::Failure;
use crate::tools::{Environment, Started, run, tail};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// Enough for any job here, and soon filled.
const SMALL_QUOTA: &str = "4000000";

/// A cluster of etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    members: Vec<Member>,
    directory: PathBuf,
    environment: Environment,
    small: bool,
}

/// A member.
#[derive(Debug)]
struct Member {
    name: String,
    inside: Vec<OsString>,
    client: SocketAddrV4,
    peer: SocketAddrV4,
    process: Option<Started>,
    /// Joins a cluster that is there already.
    joins: bool,
}

impl Etcd {
    /// Starts so many members, on hosts of their own where there are any, and waits until they have a leader.
    pub(crate) fn start(
        hosts: &[Host],
        members: u32,
        directory: &Path,
        environment: &Environment,
        small: bool,
    ) -> Result<Self, Failure> {
        fs::create_dir_all(directory)
            .map_err(|error| Failure::write(directory.display(), error))?;
        let mut all = Vec::new();
        for (index, number) in (1..=members).enumerate() {
            let (client, peer, inside) = match hosts.get(index) {
                Some(host) => (
                    SocketAddrV4::new(host.address, CLIENT_PORT),
                    SocketAddrV4::new(host.address, PEER_PORT),
                    host.inside(),
                ),
                None => (free_port()?, free_port()?, Vec::new()),
            };
            all.push(Member {
                name: format!("m{number}"),
                inside,
                client,
                peer,
                process: None,
                joins: false,
            });
        }
        let mut etcd = Self {
            members: all,
            directory: directory.to_owned(),
            environment: environment.clone(),
            small,
        };
        etcd.start_again()?;
        Ok(etcd)
    }

    /// For `--coord`.
    pub(crate) fn uri(&self) -> String {
        let clients: Vec<String> = self
            .members
            .iter()
            .map(|member| member.client.to_string())
            .collect();
        format!("etcd://{}", clients.join(","))
    }

    /// The addresses of the members.
    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        self.members
            .iter()
            .map(|member| *member.client.ip())
            .collect()
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Process id of a member that runs.
    pub(crate) fn pid(&self, member: usize) -> Option<u32> {
        Some(self.members.get(member)?.process.as_ref()?.pid())
    }

    /// A member's name.
    pub(crate) fn name(&self, member: usize) -> &str {
        self.members.get(member).map_or("", |member| &member.name)
    }

    /// The member that leads; waits for one.
    pub(crate) fn leader(&self) -> Result<usize, Failure> {
        wait_for("a leader of etcd", ANSWER_WITHIN, || {
            for index in 0..self.members.len() {
                let answer = self.ask(index, &["endpoint", "status", "--write-out", "json"]);
                let status: Value = answer
                    .ok()
                    .and_then(|text| {
                        serde_json::from_str(text.lines().find(|line| line.starts_with('['))?).ok()
                    })
                    .unwrap_or_default();
                let status = &status[0]["Status"];
                if status["leader"].is_u64() && status["leader"] == status["header"]["member_id"] {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
    }

    /// Sends a signal to a member; one that is killed is waited for.
    pub(crate) fn signal(&mut self, member: usize, signal: Signal) -> bool {
        let Some(member) = self.members.get_mut(member) else {
            return false;
        };
        let Some(process) = &mut member.process else {
            return false;
        };
        if signal == Signal::KILL {
            process.kill();
            member.process = None;
            return true;
        }
        process.signal(signal)
    }

    /// Starts the members that do not run, on the data that they had, and waits until all answer.
    pub(crate) fn start_again(&mut self) -> Result<(), Failure> {
        for index in 0..self.members.len() {
            let words = self.words(index);
            let log = self.directory.join(format!("{}.txt", self.name(index)));
            let Some(member) = self.members.get_mut(index) else {
                continue;
            };
            if member.process.is_none() {
                member.process = Some(Started::new(
                    &words,
                    &self.environment,
                    &self.directory,
                    (&log, &log),
                )?);
            }
        }
        for index in 0..self.members.len() {
            self.wait_for(index)?;
        }
        Ok(())
    }

    /// Takes a member's data away and lets it join anew, under another name.
    pub(crate) fn wipe(&mut self, member: usize) -> Result<String, Failure> {
        let other = (0..self.members.len())
            .find(|index| *index != member)
            .ok_or_else(|| {
                Failure::Unexpected("a single member of etcd cannot be replaced".to_owned())
            })?;
        let (name, peer) = match self.members.get(member) {
            Some(found) => (found.name.clone(), found.peer),
            None => {
                return Err(Failure::Unexpected(
                    "there is no such member of etcd".to_owned(),
                ));
            }
        };
        let listed = self.ask(other, &["member", "list"])?;
        let id = listed
            .lines()
            .find(|line| line.contains(&format!(", {name}, ")))
            .and_then(|line| line.split(',').next())
            .ok_or_else(|| Failure::Unexpected(format!("{name} is no member of etcd: {listed}")))?
            .to_owned();
        self.signal(member, Signal::KILL);
        self.ask(other, &["member", "remove", &id])?;
        let data = self.directory.join(&name);
        fs::remove_dir_all(&data).map_err(|error| Failure::write(data.display(), error))?;
        let url = format!("--peer-urls=http://{peer}");
        // Those that are left must first agree that it is gone.
        wait_for("the cluster to take a new member", ANSWER_WITHIN, || {
            Ok(self.ask(other, &["member", "add", &name, &url]).ok())
        })?;
        if let Some(member) = self.members.get_mut(member) {
            member.joins = true;
        }
        self.start_again()?;
        Ok(format!("member {id} was removed, and {name} joined anew"))
    }

    /// Fills the database until the cluster raises its alarm.
    pub(crate) fn fill(&self) -> Result<String, Failure> {
        let value = "x".repeat(900_000);
        for round in 0..40_u32 {
            let key = format!("/filling/{round}");
            // Over standard input, since a command line cannot be that long.
            if self.ask_with(0, &["put", &key], &value).is_err() {
                break;
            }
        }
        let alarms = self.ask(0, &["alarm", "list"])?;
        if alarms.contains("NOSPACE") {
            return Ok(alarms.lines().next().unwrap_or_default().to_owned());
        }
        Err(Failure::Unexpected(
            "etcd was not filled: no alarm".to_owned(),
        ))
    }

    /// Empties the database again, and calls the alarm off.
    pub(crate) fn empty(&self) -> Result<(), Failure> {
        self.ask(0, &["del", "--prefix", "/filling/"])?;
        self.compact()?;
        for index in 0..self.members.len() {
            self.ask_with_time(index, &["defrag"])?;
        }
        self.ask(0, &["alarm", "disarm"])?;
        Ok(())
    }

    /// Forgets all revisions but the newest. Gives that.
    pub(crate) fn compact(&self) -> Result<u64, Failure> {
        let index = self.leader()?;
        let answer = self.ask(index, &["get", "/none", "--write-out", "json"])?;
        let answer: Value = serde_json::from_str(answer.lines().next().unwrap_or_default())
            .map_err(|error| Failure::Unexpected(format!("etcdctl printed no JSON: {error}")))?;
        let revision = answer["header"]["revision"].as_u64().unwrap_or(0);
        self.ask(index, &["compact", &revision.to_string()])?;
        Ok(revision)
    }

    /// Revokes the lease of a key. Gives it.
    pub(crate) fn revoke_lease_of(&self, key: &str) -> Result<String, Failure> {
        let index = self.leader()?;
        let answer = self.ask(index, &["get", key, "--write-out", "json"])?;
        let answer: Value = serde_json::from_str(answer.lines().next().unwrap_or_default())
            .map_err(|error| Failure::Unexpected(format!("etcdctl printed no JSON: {error}")))?;
        let lease = answer["kvs"][0]["lease"]
            .as_u64()
            .ok_or_else(|| Failure::Unexpected(format!("{key} has no lease")))?;
        let lease = format!("{lease:x}");
        self.ask(index, &["lease", "revoke", &lease])?;
        Ok(lease)
    }

    /// The last words of each member.
    pub(crate) fn last_words(&self) -> String {
        let words = |member: &Member| {
            let log = self.directory.join(format!("{}.txt", member.name));
            format!("--- etcd {} ---\n{}\n", member.name, tail(&log, 5))
        };
        self.members.iter().map(words).collect()
    }

    fn wait_for(&self, member: usize) -> Result<(), Failure> {
        wait_for("a member of etcd", ANSWER_WITHIN, || {
            let answer = self.ask(member, &["endpoint", "health"]);
            Ok(answer.is_ok().then_some(()))
        })
        .map_err(|error| Failure::Unexpected(format!("{error}\n{}", self.last_words())))
    }

    fn ask(&self, member: usize, words: &[&str]) -> Result<String, Failure> {
        self.ask_with(member, words, "")
    }

    fn ask_with(&self, member: usize, words: &[&str], input: &str) -> Result<String, Failure> {
        self.etcdctl(member, "--command-timeout=2s", words, input)
    }

    fn ask_with_time(&self, member: usize, words: &[&str]) -> Result<String, Failure> {
        self.etcdctl(member, "--command-timeout=30s", words, "")
    }

    /// Asks one member from its own host, so that cuts are not in the way.
    fn etcdctl(
        &self,
        member: usize,
        timeout: &str,
        words: &[&str],
        input: &str,
    ) -> Result<String, Failure> {
        let Some(member) = self.members.get(member) else {
            return Err(Failure::Unexpected(
                "there is no such member of etcd".to_owned(),
            ));
        };
        let inside: Vec<String> = member
            .inside
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let endpoint = format!("--endpoints=http://{}", member.client);
        let mut all: Vec<&str> = inside.iter().map(String::as_str).collect();
        all.extend([
            "env",
            "ETCDCTL_API=3",
            "etcdctl",
            &endpoint,
            "--dial-timeout=1s",
            timeout,
        ]);
        all.extend(words);
        run(&all, input)
    }

    fn words(&self, index: usize) -> Vec<OsString> {
        let Some(member) = self.members.get(index) else {
            return Vec::new();
        };
        let cluster: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}=http://{}", member.name, member.peer))
            .collect();
        let client = format!("http://{}", member.client);
        let peer = format!("http://{}", member.peer);
        let data = self.directory.join(&member.name);
        let mut words = member.inside.clone();
        words.extend(
            [
                "etcd",
                "--name",
                &member.name,
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster",
                &cluster.join(","),
                "--initial-cluster-state",
                if member.joins { "existing" } else { "new" },
                "--data-dir",
            ]
            .map(OsString::from),
        );
        words.push(data.into());
        if self.small {
            words.extend(["--quota-backend-bytes", SMALL_QUOTA].map(OsString::from));
        }
        words
    }
}

fn free_port() -> Result<SocketAddrV4, Failure> {
    let failed = |error| Failure::read("a free port", error);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}
