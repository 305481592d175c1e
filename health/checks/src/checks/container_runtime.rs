// SPDX-License-Identifier: Apache-2.0
//! Whether the container runtime answers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::BUT_EPILOG;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Spec, Threshold, Words};

/// The runtimes, their sockets, and whether they speak HTTP.
const RUNTIMES: [(&str, &str, bool); 3] = [
    ("docker", "run/docker.sock", true),
    ("containerd", "run/containerd/containerd.sock", false),
    ("crio", "run/crio/crio.sock", false),
];
const NAMES: &[&str] = &["docker", "containerd", "crio"];

static REQUIRED: Words = Words {
    name: "required",
    default: &[],
    choices: NAMES,
    doc: "Runtimes that must answer. Others are a warning when their socket is there and nobody answers.",
};

pub(crate) static SPEC: Spec = Spec {
    name: "container-runtime",
    doc: "Connects to the sockets of Docker, containerd and CRI-O, and asks Docker for a sign of life.",
    profiles: BUT_EPILOG,
    deadline: Duration::from_secs(4),
    thresholds: &[Threshold::Words(&REQUIRED)],
    needs_gpus: false,
    look,
};

/// For one answer.
const PATIENCE: Duration = Duration::from_secs(2);
const NEXT: &str = "see what its service says (`systemctl status NAME`), and restart it";

const REQUEST: &[u8] = b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// How a runtime is.
enum Answer {
    Well,
    /// May not be asked by this user.
    Denied(String),
    Ill(String),
}

fn look(context: &Context<'_>) -> Outcome {
    let required = context.words(&REQUIRED);
    let mut outcome = Outcome::default();
    let mut well = Vec::new();
    for (name, socket, speaks_http) in RUNTIMES {
        let is_required = required.iter().any(|required| required == name);
        if !context.exists(socket) {
            if is_required {
                outcome.fail(format!("{name} is not here (no /{socket})"), NEXT);
            }
            continue;
        }
        match ask(context, socket, speaks_http) {
            Answer::Well => well.push(name),
            Answer::Denied(why) => outcome.unsure(format!("{name} cannot be asked: {why}")),
            Answer::Ill(how) if is_required => {
                outcome.fail(format!("{name} does not answer: {how}"), NEXT);
            }
            Answer::Ill(how) => outcome.warn(format!("{name} does not answer: {how}"), NEXT),
        }
    }
    if well.is_empty() && outcome.problems.is_empty() {
        return Outcome::unknown("there is no container runtime");
    }
    outcome.fine = format!("{} answers", well.join(", "));
    outcome
}

fn ask(context: &Context<'_>, socket: &str, speaks_http: bool) -> Answer {
    let stream = match UnixStream::connect(context.path(socket)) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Answer::Denied(error.to_string());
        }
        Err(error) => return Answer::Ill(error.to_string()),
    };
    if !speaks_http {
        return Answer::Well;
    }
    match ping(stream, context.until.min(Instant::now() + PATIENCE)) {
        Ok(line) if line.starts_with("HTTP/1.") && line.contains(" 200 ") => Answer::Well,
        Ok(line) => Answer::Ill(format!("it says `{line}`")),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Answer::Ill("it takes the question, and says nothing".to_owned())
        }
        Err(error) => Answer::Ill(error.to_string()),
    }
}

/// The first line of the answer.
fn ping(mut stream: UnixStream, until: Instant) -> std::io::Result<String> {
    let left = until.saturating_duration_since(Instant::now());
    let left = left.max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    stream.write_all(REQUEST)?;
    let mut answer = [0; 128];
    let length = stream.read(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..length]).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::{NAMES, REQUEST, RUNTIMES};
    use crate::outcome::Status;
    use crate::testing::Made;

    /// Docker that gives one answer.
    fn docker(made: &Made, answer: &'static str) -> std::thread::JoinHandle<()> {
        let path = made.path("run/docker.sock");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // One that closes before it has read all looks like one that crashed.
            let mut asked = [0; REQUEST.len()];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked, REQUEST);
            stream.write_all(answer.as_bytes()).unwrap();
        })
    }

    #[test]
    fn docker_gives_a_sign_of_life_or_not() {
        for (answer, status, said) in [
            ("HTTP/1.0 200 OK\r\n\r\nOK", Status::Ok, "docker answers"),
            (
                "HTTP/1.0 500 Oh\r\n\r\n",
                Status::Warn,
                "it says `HTTP/1.0 500 Oh`",
            ),
            ("", Status::Warn, "it says ``"),
        ] {
            let made = Made::empty();
            let thread = docker(&made, answer);
            made.expect("container-runtime", status, said);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_socket_without_anybody_behind_it_is_a_warning_until_it_is_required() {
        let made = Made::empty();
        let path = made.path("run/containerd/containerd.sock");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        made.expect(
            "container-runtime",
            Status::Warn,
            "containerd does not answer",
        );
        let made =
            made.settings("[check.container-runtime]\nrequired = [\"containerd\", \"docker\"]");
        let result = made.expect(
            "container-runtime",
            Status::Fail,
            "containerd does not answer",
        );
        assert!(
            result
                .summary
                .contains("docker is not here (no /run/docker.sock)"),
            "{result:#?}"
        );
    }

    #[test]
    fn no_runtime_is_unknown() {
        Made::empty().expect("container-runtime", Status::Unknown, "no container runtime");
        assert_eq!(RUNTIMES.map(|(name, _, _)| name), *NAMES);
    }
}
