// SPDX-License-Identifier: Apache-2.0
//! The node service: what jobs get from it, and what its clients cannot do to it.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use steadfast_tests::{
    Gpus, Job, Launch, Requirement, eventually, fake_nvml, is_alive, send, steadfast,
};
use tempfile::TempDir;

const LOST: &str =
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.";
const FAULT: &str =
    "NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=python, Ch 00000003, MMU Fault: ENGINE GRAPHICS";

/// A service that reads a file.
struct Service {
    directory: TempDir,
    process: Option<Child>,
}

impl Service {
    fn new() -> Service {
        let directory = tempfile::Builder::new()
            .prefix("service-")
            .tempdir()
            .unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut service = Service {
            directory,
            process: None,
        };
        fs::write(service.path("kern.log"), "").unwrap();
        service.start();
        service
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn words(&self, detach: bool) -> Vec<String> {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut words = vec!["health".to_owned(), "serve".to_owned()];
        words.extend(["--socket".to_owned(), path("health.sock")]);
        words.extend(["--kernel-log".to_owned(), path("kern.log")]);
        words.extend(["--state-dir".to_owned(), path("state")]);
        words.extend(["--gpu-faults".to_owned(), path("memory/gpu-faults.json")]);
        let library = if self.path("gpus.json").exists() {
            fake_nvml().to_str().unwrap()
        } else {
            "off"
        };
        words.extend(["--nvml".to_owned(), library.to_owned()]);
        words.extend(detach.then(|| "--detach".to_owned()));
        words
    }

    #[expect(clippy::disallowed_methods, reason = "tests create processes")]
    fn command(words: &[String]) -> Command {
        let mut command = Command::new(steadfast());
        command.args(words).stdin(Stdio::null());
        command
    }

    fn start(&mut self) {
        let child = Self::command(&self.words(false))
            .env("STEADFAST_FAKE_NVML", self.path("gpus.json"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(child);
        eventually("the service", || {
            match UnixStream::connect(self.path("health.sock")) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// As the kernel does, with the time.
    fn kernel_says(&self, line: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        let mut log = OpenOptions::new()
            .append(true)
            .open(self.path("kern.log"))
            .unwrap();
        let (seconds, micros) = (now.tv_sec, now.tv_nsec / 1000);
        log.write_all(format!("[{seconds:>5}.{micros:06}] {line}\n").as_bytes())
            .unwrap();
    }

    /// A job that takes the kernel log from the service.
    fn job(&self, steps: &[&str]) -> Job {
        Launch::run(&["--nproc-per-node", "2"])
            .worker(steps)
            .env(
                "STEADFAST_KERNEL_LOG",
                self.path("health.sock").to_str().unwrap(),
            )
            .start_ready(2)
    }

    fn client(&self) -> UnixStream {
        UnixStream::connect(self.path("health.sock")).unwrap()
    }

    /// What a client is told up to the first message of this kind.
    fn told_until(client: &UnixStream, kind: &str) -> Vec<Value> {
        let mut told = Vec::new();
        for line in BufReader::new(client).lines() {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let is_last = message.get(kind).is_some() || message == json!(kind);
            told.push(message);
            if is_last {
                break;
            }
        }
        told
    }

    fn show(&self, wrapper: &[&str]) -> Output {
        let socket = self.path("health.sock");
        let program = steadfast().to_str().unwrap();
        let words = ["health", "show", "--socket", socket.to_str().unwrap()];
        let all = [wrapper, &[program], &words].concat();
        #[expect(clippy::disallowed_methods, reason = "tests create processes")]
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).output().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// Whether the last that a client hears is a refusal.
fn is_refused(client: &UnixStream) -> bool {
    let told = Service::told_until(client, "refused");
    told.last()
        .is_some_and(|last| last.get("refused").is_some())
}

#[track_caller]
fn health_line(job: &Job, beginning: &str) {
    job.eventually(beginning, |job| {
        let status = job.status()?;
        let lines = status["health"].as_array()?;
        let mut lines = lines.iter().filter_map(Value::as_str);
        lines.any(|line| line.starts_with(beginning)).then_some(())
    });
}

#[test]
fn a_job_takes_the_kernel_log_from_the_service() {
    let service = Service::new();
    let mut job = service.job(&["record:ready", "hang"]);
    let socket = service.path("health.sock");
    health_line(
        &job,
        &format!("the kernel log is watched ({})", socket.display()),
    );
    service.kernel_says(LOST);
    job.wait()
        .ended_with(76)
        .said("XID 79 at 0000:18:00, pid 1 (python): ");
}

#[test]
fn a_job_goes_on_without_the_service_and_takes_it_up_again() {
    let mut service = Service::new();
    let mut job = service.job(&["record:ready", "wait-file:finish"]);
    service.kernel_says(FAULT);
    let events = |job: &Job| job.journal_of("node.event");
    job.eventually("the event", |job| (events(job).len() == 1).then_some(()));
    service.kill();
    health_line(&job, "the kernel log is not watched: ");
    service.kernel_says(&FAULT.replace("18:00", "2a:00"));
    service.start();
    health_line(&job, "the kernel log is watched");
    job.eventually("what came meanwhile", |job| {
        (events(job).len() == 2).then_some(())
    });
    job.touch("finish");
    job.wait().ended_with(0);
    let pci: Vec<Value> = events(&job)
        .iter()
        .map(|event| event["pci"].clone())
        .collect();
    assert_eq!(pci, ["0000:18:00", "0000:2a:00"], "nothing twice");
}

#[test]
fn a_job_hears_of_its_gpus_from_the_service_and_asks_itself_when_that_is_gone() {
    let mut service = Service::new();
    service.kill();
    let gpus = Gpus::new(service.directory.path(), 2);
    gpus.set(1, "links_down", json!([3]));
    service.start();
    let mut job = service.job(&["record:ready", "hang"]);
    health_line(
        &job,
        "NVML is watched by the node service (driver 570.86.15, 2 GPUs)",
    );
    health_line(&job, "GPU 0000:19:00: NVLink 3 is down");
    let probes = job
        .processes()
        .iter()
        .filter(|process| process.is_probe())
        .count();
    assert_eq!(probes, 0, "one probe for the whole node");
    service.kill();
    health_line(&job, "NVML is not used: ");
    service.start();
    health_line(&job, "NVML is watched by the node service");
    gpus.xid(1, 79);
    job.wait().ended_with(76).said("XID 79 at 0000:19:00");
}

#[test]
fn clients_that_misbehave_lose_their_line_and_nothing_else() {
    let service = Service::new();
    service.kernel_says(FAULT);
    let mut garbage = service.client();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let told = Service::told_until(&garbage, "refused");
    assert_eq!(
        told,
        [json!({ "refused": { "reason": "this is another language" } })]
    );
    let mut endless = service.client();
    endless.write_all(&[b'x'; 4096]).unwrap();
    assert!(is_refused(&endless));
    let silent = service.client();
    let mut lazy = service.client();
    lazy.write_all(b"{\"version\":1}\n").unwrap();
    // Far more than the socket holds and the service keeps for one that does not read.
    let long = format!("{FAULT} {}", "x".repeat(4000));
    for _ in 0..3000 {
        service.kernel_says(&long);
    }
    service.kernel_says(LOST);
    let mut client = service.client();
    eventually("the last line", || {
        client = service.client();
        client.write_all(b"{\"version\":1}\n").unwrap();
        let told = Service::told_until(&client, "caught_up");
        let last = told.iter().rev().nth(1);
        let last = last.and_then(|last| last["line"]["text"].as_str());
        if last.is_some_and(|last| last.ends_with(LOST)) {
            Ok(())
        } else {
            Err(format!("{} messages", told.len()))
        }
    });
    // The one that did not read is let go of, and the one that is silent is told so.
    let mut rest = Vec::new();
    lazy.read_to_end(&mut rest).unwrap();
    assert!(is_refused(&silent));
    // What more a client says is thrown away.
    client.write_all(b"more\n").unwrap();
    service.kernel_says(FAULT);
    let told = Service::told_until(&client, "line");
    assert!(
        told[0]["line"]["text"].as_str().unwrap().ends_with(FAULT),
        "{told:?}"
    );
}

#[test]
fn users_see_what_is_theirs() {
    if !Requirement::Root.met() {
        return;
    }
    let service = Service::new();
    service.kernel_says(
        "Out of memory: Killed process 2147483000 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:65533 pgtables:1kB oom_score_adj:0",
    );
    service.kernel_says("nfs: server filer not responding, still trying");
    let shown = |uid: &str| {
        let output = service.show(&["setpriv", "--reuid", uid, "--clear-groups"]);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.code(), said)
    };
    let (code, text) = shown("65533");
    if code == Some(126) || code == Some(127) {
        eprintln!(
            "SKIPPED: other users cannot reach {}",
            steadfast().display()
        );
        return;
    }
    assert!(
        text.contains("filer") && text.contains("Killed process"),
        "{text}"
    );
    let (_, text) = shown("65534");
    assert!(
        text.contains("filer") && !text.contains("Killed process"),
        "{text}"
    );
    let root = service.show(&[]);
    let text = String::from_utf8_lossy(&root.stdout).into_owned();
    assert!(
        text.contains("all GPUs") && text.contains("Killed process"),
        "{text}"
    );
}

#[test]
fn a_detached_service_outlives_its_starter_and_is_there_once() {
    let mut service = Service::new();
    service.kill();
    let words = service.words(true);
    let started = Service::command(&words).output().unwrap();
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(
        started.status.success() && said.contains("serving at"),
        "{said}"
    );
    let pid: i32 = said
        .rsplit("(pid ")
        .next()
        .and_then(|rest| rest.trim().trim_end_matches(')').parse().ok())
        .unwrap();
    let again = Service::command(&words).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        again.status.success() && said.contains("runs already"),
        "{said}"
    );
    let third = Service::command(&service.words(false)).output().unwrap();
    assert_eq!(third.status.code(), Some(1));
    assert!(service.path("health.sock").exists());
    send(pid, Signal::SIGTERM);
    eventually("its end", || {
        if is_alive(pid) || service.path("health.sock").exists() {
            Err(pid.to_string())
        } else {
            Ok(())
        }
    });
}

/// What `steadfast check gpu-history` says, with the service's memory.
fn history(service: &Service) -> Value {
    let words = ["check", "gpu-history", "--json"].map(str::to_owned);
    let output = Service::command(&words)
        .env("STEADFAST_FAKE_NVML", service.path("gpus.json"))
        .env("STEADFAST_NVML", fake_nvml())
        .env(
            "STEADFAST_GPU_FAULTS",
            service.path("memory/gpu-faults.json"),
        )
        .env("STEADFAST_CHECK_STATE", "off")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["checks"][0].clone()
}

#[test]
fn faults_of_a_gpu_are_remembered_over_restarts_of_the_service_and_shown_by_checks() {
    let mut service = Service::new();
    service.kill();
    let gpus = Gpus::new(service.directory.path(), 2);
    gpus.set(0, "links_down", json!([3]));
    service.start();
    // The UUID is the library's to tell. A job shows when the library is listened to.
    let fails = |service: &Service| {
        let mut job = service.job(&["record:ready", "hang"]);
        health_line(&job, "GPU 0000:18:00: NVLink 3 is down");
        gpus.xid(0, 79);
        job.wait().ended_with(76).said("XID 79 at 0000:18:00");
    };
    let remembers = |service: &Service, weight: u64| {
        eventually("the memory", || {
            let text = fs::read_to_string(service.path("memory/gpu-faults.json"));
            let book: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
            let gpus = book["gpus"].as_object().cloned().unwrap_or_default();
            let weights = gpus.values().filter_map(|score| score["weight"].as_u64());
            match weights.max() {
                Some(found) if found + 50 >= weight && found <= weight => Ok(()),
                _ => Err(book.to_string()),
            }
        });
    };
    fails(&service);
    remembers(&service, 1_000);
    assert_eq!(history(&service)["status"], "ok");
    service.kill();
    service.start();
    fails(&service);
    remembers(&service, 2_000);
    let shown = history(&service);
    assert_eq!(shown["status"], "warn", "{shown:#}");
    let summary = shown["summary"].as_str().unwrap();
    assert!(
        summary.contains("GPU 0") && summary.contains("XID 79"),
        "{summary}"
    );
}
