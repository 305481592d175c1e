// SPDX-License-Identifier: Apache-2.0
//! What many streams cost the leader's agent. Ignored by default; to measure, with as many nodes as wanted:
//!
//! ```text
//! STEADFAST_LOAD_NODES=4000 cargo test --release -p steadfast what_many_streams_cost -- --ignored --nocapture
//! ```
//!
//! The nodes live in a process of their own, so that memory and time are those of the leader's end alone.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use super::*;

const NODES: &str = "STEADFAST_LOAD_NODES";
const TARGET: &str = "STEADFAST_LOAD_TARGET";
const CHILD: &str = "peers::tests::load::the_other_ends";
const WINDOW: Duration = Duration::from_secs(20);

fn node_count() -> usize {
    let text = std::env::var(NODES).unwrap_or_default();
    text.parse().unwrap_or(1_000)
}

#[tokio::test]
#[ignore = "a measurement, which wants the machine for itself"]
async fn what_many_streams_cost() {
    let count = node_count();
    let mut leader = Leader::new().await;
    let mut nodes = OtherEnds::start(&leader.target(), count);
    let members = nodes.fingerprints(count);
    leader.server.set_members(members);
    let memory_before = memory_kib();
    let (began, cpu_before) = (now(), cpu_ms());
    let mut connected = BTreeSet::new();
    while connected.len() < count {
        let event = timeout(PATIENCE, leader.events.recv()).await;
        match event.expect("all connect").unwrap() {
            PeerEvent::Connected { node, .. } => {
                connected.insert(node);
            }
            PeerEvent::Closed { node, .. } => {
                connected.remove(&node);
            }
            _ => {}
        }
    }
    let connecting = cpu_ms() - cpu_before;
    println!(
        "{count} nodes connected within {:?} and {connecting} ms of CPU, {} us each",
        now().saturating_since(began),
        connecting * 1_000 / count as u64
    );
    let (began, cpu_before) = (now(), cpu_ms());
    let mut digests = 0_u64;
    let steady = async {
        loop {
            match leader.events.recv().await.unwrap() {
                PeerEvent::Digest { .. } => digests += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    drop(timeout(WINDOW, steady).await);
    let window = now().saturating_since(began);
    let cpu = cpu_ms() - cpu_before;
    let memory = memory_kib().saturating_sub(memory_before);
    println!(
        "{digests} digests in {window:?}: {cpu} ms of CPU, {} us each; {} KiB of memory per stream",
        cpu * 1_000 / digests.max(1),
        memory / count as u64
    );
    // Half of what was agreed would already be a failure.
    assert!(digests > count as u64 * 20);
}

/// The process with the nodes.
struct OtherEnds(Child);

impl OtherEnds {
    #[expect(clippy::disallowed_methods, reason = "a helper of this measurement")]
    fn start(target: &PeerTarget, count: usize) -> Self {
        let target = serde_json::to_string(&target.endpoint).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--ignored", "--nocapture"])
            .env(NODES, count.to_string())
            .env(TARGET, target)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn fingerprints(&mut self, count: usize) -> Vec<(NodeName, Fingerprint)> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let member = |line: std::io::Result<String>| {
            let line = line.unwrap();
            let (name, fingerprint) = line.split_once('=')?;
            Some((NodeName::from(name), fingerprint.parse().ok()?))
        };
        lines.filter_map(member).take(count).collect()
    }
}

impl Drop for OtherEnds {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: the nodes of the measurement, until the process is killed or its parent is gone.
#[test]
#[ignore = "the other half of a measurement"]
fn the_other_ends() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let endpoint = serde_json::from_str(&target).unwrap();
    std::thread::spawn(|| {
        let mut line = String::new();
        drop(std::io::stdin().read_line(&mut line));
        std::process::abort();
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = "leader".into();
        let target = PeerTarget { node, endpoint };
        let mut nodes = Vec::new();
        for at in 0..node_count() {
            let node = Node::new(&format!("n{at}"));
            println!("{}={}", node.name, node.identity.fingerprint());
            node.follow(target.clone());
            nodes.push(node);
        }
        std::future::pending::<()>().await;
    });
}

fn cpu_ms() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let total = usage.user_time() + usage.system_time();
    u64::try_from(total.num_milliseconds()).unwrap()
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let digits = line.unwrap().trim().trim_end_matches(" kB");
    digits.parse().unwrap()
}
