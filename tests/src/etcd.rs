// SPDX-License-Identifier: Apache-2.0
//! A cluster of real etcd servers, each on a host of its own, that can be killed, paused and cut off.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::netns::Host;
use crate::patience::eventually;
use crate::processes::send;

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// A cluster of etcd.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    directory: TempDir,
}

#[derive(Debug)]
struct Member {
    host: Host,
    process: Option<Child>,
}

impl Etcd {
    /// Starts one member on each of the hosts, and waits until they have a leader.
    pub fn start(hosts: &[Host]) -> Etcd {
        let members = hosts.iter().map(|host| Member {
            host: host.clone(),
            process: None,
        });
        let mut etcd = Etcd {
            members: members.collect(),
            directory: tempfile::Builder::new().prefix("etcd-").tempdir().unwrap(),
        };
        etcd.start_again();
        etcd
    }

    /// For `--coord`.
    pub fn uri(&self) -> String {
        let addresses = self.members.iter().map(|member| member.host.address());
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        format!("etcd://{}", addresses.join(","))
    }

    /// The hosts of the members.
    pub fn hosts(&self) -> Vec<&Host> {
        self.members.iter().map(|member| &member.host).collect()
    }

    /// The host of a member.
    pub fn host(&self, member: usize) -> &Host {
        &self.members[member].host
    }

    /// Index of the member that leads.
    #[track_caller]
    pub fn leader(&self) -> usize {
        eventually("a leader of etcd", || {
            let mut seen = Vec::new();
            for index in 0..self.members.len() {
                let status = self.status(index);
                let of_it = &status[0]["Status"];
                if of_it["leader"].is_u64() && of_it["leader"] == of_it["header"]["member_id"] {
                    return Ok(index);
                }
                seen.push(status);
            }
            Err(format!("{seen:?}"))
        })
    }

    /// SIGKILL to a member.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// SIGKILL to all of them.
    pub fn kill_all(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }

    /// Starts those that do not run, on the data that they had, and waits until all answer.
    #[track_caller]
    pub fn start_again(&mut self) {
        for index in 0..self.members.len() {
            if self.members[index].process.is_none() {
                self.members[index].process = Some(self.spawn(index));
            }
        }
        for index in 0..self.members.len() {
            self.wait_for(index);
        }
    }

    /// SIGSTOP, SIGCONT.
    #[track_caller]
    pub fn signal(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().unwrap();
        assert!(send(i32::try_from(process.id()).unwrap(), signal));
    }

    /// Waits until a member answers and knows a leader.
    #[track_caller]
    pub fn wait_for(&self, member: usize) {
        eventually("a member of etcd", || {
            let answer = self.ask(member, &["endpoint", "health"]);
            if answer.contains("is healthy") {
                Ok(())
            } else {
                Err(format!("{answer}; {}", self.describe()))
            }
        });
    }

    /// The keys that begin so, as `etcdctl` lists them.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let listed = self.ask(self.leader(), &["get", "--prefix", "--keys-only", prefix]);
        let keys = listed.lines().filter(|line| !line.is_empty());
        keys.map(str::to_owned).collect()
    }

    /// The value of a key, if it is there.
    pub fn value(&self, key: &str) -> Option<Value> {
        let value = self.ask(self.leader(), &["get", "--print-value-only", key]);
        serde_json::from_str(value.lines().next()?).ok()
    }

    /// The last words of each member.
    pub fn describe(&self) -> String {
        let last_lines = |index: usize| {
            let log = std::fs::read_to_string(self.log(index)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(8)..];
            format!("--- etcd {index} ---\n{}\n", last.join("\n"))
        };
        (0..self.members.len()).map(last_lines).collect()
    }

    fn status(&self, member: usize) -> Value {
        let answer = self.ask(member, &["endpoint", "status", "--write-out", "json"]);
        let json = answer.lines().find(|line| line.starts_with('['));
        json.and_then(|json| serde_json::from_str(json).ok())
            .unwrap_or_default()
    }

    /// Asks one member from its own host, so that cuts are not in the way.
    fn ask(&self, member: usize, arguments: &[&str]) -> String {
        let host = &self.members[member].host;
        let mut words = host.inside();
        words.push("etcdctl".to_owned());
        words.push(format!(
            "--endpoints=http://{}:{CLIENT_PORT}",
            host.address()
        ));
        words.extend(["--dial-timeout=1s", "--command-timeout=2s"].map(str::to_owned));
        words.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let output = command(&words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn spawn(&self, index: usize) -> Child {
        let url = |host: &Host, port: u16| format!("http://{}:{port}", host.address());
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(index, member)| format!("m{index}={}", url(&member.host, PEER_PORT)))
            .collect();
        let host = &self.members[index].host;
        let mut words = host.inside();
        let data = self.directory.path().join(format!("m{index}"));
        for word in [
            "etcd",
            "--name",
            &format!("m{index}"),
            "--data-dir",
            data.to_str().unwrap(),
            "--listen-client-urls",
            &url(host, CLIENT_PORT),
            "--advertise-client-urls",
            &url(host, CLIENT_PORT),
            "--listen-peer-urls",
            &url(host, PEER_PORT),
            "--initial-advertise-peer-urls",
            &url(host, PEER_PORT),
            "--initial-cluster",
            &all.join(","),
        ] {
            words.push(word.to_owned());
        }
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log(index))
            .unwrap();
        let mut command = command(&words);
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .env("ETCD_LOGGER", "zap");
        command.spawn().unwrap()
    }

    fn log(&self, index: usize) -> std::path::PathBuf {
        Path::new(self.directory.path()).join(format!("m{index}.log"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                // A failure could only hide the test's own message.
                drop(process.kill());
                drop(process.wait());
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env("ETCDCTL_API", "3")
        .stdin(Stdio::null());
    command
}
