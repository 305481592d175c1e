// SPDX-License-Identifier: Apache-2.0
//! `steadfast health serve` and `steadfast health show`.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use steadfast_health::kernel_log::{KernelLog, Next};
use steadfast_health::nvml::Report;
use steadfast_process::exit::reap;
use steadfast_process::signals::Signals;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::client::{ServiceError, ServiceLog, ServiceNews};
use super::log_reader;
use super::server::Server;
use crate::agent::nvml_watch::NvmlWatch;
use crate::clock;
use crate::config::Host;
use crate::console_line::say;
use crate::exit_code::ExitCode;
use crate::fault_book;
use crate::settings::NvmlUse;

/// Exit code when the service cannot be reached, or cannot serve.
const FAILED: u8 = 1;
/// How long a detached service may take to listen.
const BEGINNING: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Be the service.
    Serve(Serve),
    /// Show what the service tells this user.
    Show {
        /// Where it listens.
        socket: PathBuf,
    },
}

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// Where to listen.
    pub(crate) socket: PathBuf,
    /// The kernel log.
    pub(crate) kernel_log: PathBuf,
    /// Where Slurm's prolog leaves its records of jobs.
    pub(crate) state_dir: PathBuf,
    /// Name of the node.
    pub(crate) node: String,
    /// Where faults of GPUs are remembered.
    pub(crate) gpu_faults: PathBuf,
    /// NVIDIA's library.
    pub(crate) nvml: NvmlUse,
    /// Whether to leave a process behind that serves, and to end when it does.
    pub(crate) detach: bool,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// Another one serves this socket.
    #[error("a service runs already at {}", .0.display())]
    Taken(PathBuf),
    /// The file system refused.
    #[error("cannot make {}", path.display())]
    Make {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something that every process may have was refused.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The process that was left behind does not serve.
    #[error("the service does not come up at {}; start it without --detach to see why", .0.display())]
    Silent(PathBuf),
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(host: &Host, request: &Request) -> u8 {
    let done = match request {
        Request::Serve(serve) if serve.detach => detach(host, serve),
        Request::Serve(serve) => be_the_service(serve),
        Request::Show { socket } => {
            return match show(socket) {
                Ok(()) => ExitCode::Success as u8,
                Err(error) => fail(&error),
            };
        }
    };
    match done {
        Ok(()) => ExitCode::Success as u8,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> u8 {
    let cause = error.source().map(|cause| format!(": {cause}"));
    say(&format!("error: {error}{}", cause.unwrap_or_default()));
    FAILED
}

fn be_the_service(serve: &Serve) -> Result<(), ServeError> {
    let system = |what| move |source| ServeError::System { what, source };
    // Before any thread is started: they inherit that these are blocked.
    let signals = Signals::take_over(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
        .map_err(system("read signals"))?;
    let _lock = lock(&serve.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("start the runtime"))?;
    // For `ps` and `top`.
    let _only_a_name = nix::sys::prctl::set_name(c"steadfast-node");
    let (sender, end) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            wait_for_signal(&signals);
            // The server may have ended by itself.
            let _is_ending = sender.blocking_send(());
        })
        .map_err(system("start a thread"))?;
    let news = log_reader::start(serve.kernel_log.clone()).map_err(system("start a thread"))?;
    let server = Server::new(
        serve.kernel_log.clone(),
        serve.state_dir.clone(),
        NvmlWatch::new(&serve.nvml),
        fault_book::Keeper::open(serve.gpu_faults.clone(), serve.node.clone()),
    );
    let served = runtime.block_on(async {
        let listener = listen(&serve.socket)?;
        say(&format!(
            "serving at {}; the kernel log is {}",
            serve.socket.display(),
            serve.kernel_log.display()
        ));
        tokio::task::LocalSet::new()
            .run_until(server.run(listener, news, end))
            .await;
        Ok(())
    });
    runtime.shutdown_background();
    if served.is_ok() {
        // Whoever comes next finds it gone, or in the way and takes it.
        let _is_gone = fs::remove_file(&serve.socket);
    }
    served
}

/// Holds the lock that says that this process serves the socket.
fn lock(socket: &Path) -> Result<File, ServeError> {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let failed = |source| ServeError::Make {
        path: path.clone(),
        source,
    };
    if let Some(directory) = socket.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(failed)?;
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(ServeError::Taken(socket.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// The lock is held: a socket that is there is a dead service's.
fn listen(socket: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Make {
        path: socket.to_owned(),
        source,
    };
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    // Everybody may come in; what they see depends on who they are.
    fs::set_permissions(socket, Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}

fn wait_for_signal(signals: &Signals) {
    loop {
        let mut ready = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
        match signals.next() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return,
        }
    }
}

/// Starts the service as a process that nobody waits for, and waits until it listens.
fn detach(host: &Host, serve: &Serve) -> Result<(), ServeError> {
    if ServiceLog::connect(&serve.socket).is_ok() {
        say(&format!(
            "a service runs already at {}",
            serve.socket.display()
        ));
        return Ok(());
    }
    let mut words: Vec<OsString> = ["health", "serve"].map(Into::into).to_vec();
    for (flag, path) in [
        ("--socket", &serve.socket),
        ("--kernel-log", &serve.kernel_log),
        ("--state-dir", &serve.state_dir),
        ("--gpu-faults", &serve.gpu_faults),
    ] {
        words.extend([flag.into(), path.into()]);
    }
    words.push("--nvml".into());
    words.push(match &serve.nvml {
        NvmlUse::Auto => "auto".into(),
        NvmlUse::Off => "off".into(),
        NvmlUse::Path(library) => library.into(),
    });
    let environment = host
        .environment
        .iter()
        .map(|(name, value)| (name.into(), value.clone()));
    let pid = crate::detach::start(&words, environment.collect()).map_err(|source| {
        ServeError::System {
            what: "start a process",
            source,
        }
    })?;
    if comes_up(&serve.socket, pid) {
        say(&format!(
            "serving at {} (pid {pid})",
            serve.socket.display()
        ));
        Ok(())
    } else {
        Err(ServeError::Silent(serve.socket.clone()))
    }
}

fn comes_up(socket: &Path, pid: Pid) -> bool {
    let patience = u64::try_from(BEGINNING.as_nanos()).unwrap_or(u64::MAX);
    let deadline = clock::monotonic_ns().saturating_add(patience);
    while clock::monotonic_ns() < deadline {
        if ServiceLog::connect(socket).is_ok() {
            return true;
        }
        if !matches!(reap(pid), Ok(None)) {
            // It may have found another one that was quicker.
            return ServiceLog::connect(socket).is_ok();
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    false
}

/// Prints what the service has to say to this user so far.
fn show(socket: &Path) -> Result<(), ServiceError> {
    let mut service = ServiceLog::connect(socket)?;
    let mut text = format!(
        "{} reads {} and shows you {}\n",
        socket.display(),
        service.log().display(),
        service.sees()
    );
    let mut log = KernelLog::new();
    loop {
        match service.next(Duration::ZERO)? {
            ServiceNews::Log(Next::Line(line)) => {
                if let Some(event) = log.push(&line.bytes) {
                    // Jobs ignore it, unless they are told to trust anyone.
                    let by = if event.header.injected() {
                        " (written by a program, not by the kernel)"
                    } else {
                        ""
                    };
                    text.extend([format!("{}: {}{by}\n", event.title(), event.message)]);
                }
            }
            ServiceNews::Log(Next::Gap { lost }) => {
                let lost = lost.map_or_else(|| "some".to_owned(), |lost| lost.to_string());
                text.extend([format!("({lost} lines were lost)\n")]);
            }
            ServiceNews::Nvml(Report::Opened { driver, gpus, .. }) => {
                text.extend([format!("NVML: driver {driver}, {} GPUs\n", gpus.len())]);
            }
            ServiceNews::Nvml(Report::Conditions {
                gpu, conditions, ..
            }) => {
                let lines = conditions.iter();
                text.extend(lines.map(|condition| format!("GPU {gpu}: {condition}\n")));
            }
            ServiceNews::Nvml(_) => {}
            ServiceNews::NoNvml(reason) => text.extend([format!("NVML is not used: {reason}\n")]),
            ServiceNews::Log(Next::Nothing) => break,
        }
    }
    // A reader that went away (`| head`) is no failure.
    drop(io::stdout().write_all(text.as_bytes()));
    Ok(())
}
