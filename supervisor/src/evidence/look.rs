// SPDX-License-Identifier: Apache-2.0
//! One worker, looked at several times in a row.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use steadfast_core::{Doing, KernelState};
use steadfast_health::stacks::{Place, main_thread, parse_stacks};
use steadfast_health::task_state::{ProcessState, Task, WaitsFor, catches, look_at};
use steadfast_health::{Socket, sockets_of};
use steadfast_process::tree::Process;

use super::{RankEvidence, Subject, not_seen, training_process};
use crate::hook::STACK_SIGNAL;

/// How often, and how far apart.
const LOOKS: usize = 3;
const APART: Duration = Duration::from_millis(200);
/// How long a process may take to write its stacks. It does so in its signal handler, at once.
const STACKS_WITHIN: Duration = Duration::from_millis(180);
/// A file that has not grown for that long is complete.
const SETTLED: Duration = Duration::from_millis(15);
const LARGEST_STACKS: u64 = 256 * 1024;
/// Whoever waits for Python's lock asks for it every 5 ms; on a node with too few processors, not quite as often.
const ASKS_A_SECOND: f64 = 40.0;
/// As often as that the kernel sends again what is not acknowledged before it is more than a packet that was lost.
const RETRANSMITS: u64 = 2;
/// A processor's time is counted in hundredths of a second on every architecture that trains.
const TICKS_PER_SECOND: f64 = 100.0;

/// What one look has shown.
struct Sight {
    process: ProcessState,
    at: Instant,
    stacks: Option<String>,
}

/// Looks at a worker.
pub(super) fn at(subject: &Subject) -> RankEvidence {
    let mut evidence = not_seen(subject);
    let Some((process, has_page)) = training_process::find(subject) else {
        evidence.signs.kernel = KernelState::Dead;
        return evidence;
    };
    let Ok(pid) = u32::try_from(process.pid) else {
        return evidence;
    };
    evidence.signs.pid = pid;
    let file = subject.pages.join(format!("{pid}.stacks"));
    let shown = subject.trains.and_then(|(_, signal)| signal);
    // The hook makes the file at the start, and a page only when there is something to show.
    let before_page = open(&file).is_ok().then_some(STACK_SIGNAL);
    let stacks = Stacks {
        signal: shown.filter(|_| has_page).or(before_page),
        file,
    };
    let mut sights: Vec<Sight> = Vec::new();
    for look in 0..LOOKS {
        let began = Instant::now();
        let Some(state) = look_at(Path::new("/proc"), pid) else {
            evidence.signs.kernel = KernelState::Dead;
            return evidence;
        };
        let stacks = stacks.take(&process, &state);
        sights.push(Sight {
            process: state,
            at: began,
            stacks,
        });
        if look + 1 < LOOKS {
            pause(APART.saturating_sub(began.elapsed()));
        }
    }
    sum_up(&mut evidence, sights);
    evidence.sockets = sockets_of(Path::new("/proc"), pid);
    evidence.signs.unheard_by = unheard_by(&evidence.sockets);
    evidence
}

/// Where a process writes its stacks, and upon which signal.
struct Stacks {
    signal: Option<u32>,
    file: PathBuf,
}

impl Stacks {
    /// Has the process write down its stacks. `None` when it does not.
    fn take(&self, process: &Process, state: &ProcessState) -> Option<String> {
        let signal = self.signal?;
        let main = state.tasks.first()?;
        // It would act on the signal when it goes on, and then once for each look.
        let cannot = matches!(main.state, 'T' | 't' | 'Z' | 'X' | 'D') || state.frozen;
        let pid = u32::try_from(process.pid).ok()?;
        if cannot || !catches(Path::new("/proc"), pid, signal) {
            return None;
        }
        let before = open(&self.file).ok()?.metadata().ok()?.len();
        if !process.signal_real_time(i32::try_from(signal).ok()?) {
            return None;
        }
        self.wait_beyond(before)
    }

    fn wait_beyond(&self, before: u64) -> Option<String> {
        let deadline = Instant::now() + STACKS_WITHIN;
        let (mut length, mut settled) = (before, Instant::now());
        while Instant::now() < deadline && (length == before || settled.elapsed() < SETTLED) {
            pause(Duration::from_millis(3));
            let now = open(&self.file).ok()?.metadata().ok()?.len();
            if now != length {
                (length, settled) = (now, Instant::now());
            }
        }
        let mut file = open(&self.file).ok()?;
        file.seek(SeekFrom::Start(before)).ok()?;
        let mut text = Vec::new();
        file.take(LARGEST_STACKS).read_to_end(&mut text).ok()?;
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}

/// On a thread that is there for nothing else.
#[expect(
    clippy::disallowed_methods,
    reason = "looks have to lie apart, and a file tells nobody that it has grown"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Opens a plain file that somebody else writes: never a link, and without waiting for the writer of a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(std::io::Error::other("not a plain file"))
    }
}

fn sum_up(evidence: &mut RankEvidence, sights: Vec<Sight>) {
    let mut places = Vec::new();
    let mut functions = Vec::new();
    for sight in &sights {
        let threads = parse_stacks(sight.stacks.as_deref().unwrap_or_default());
        if let Some(main) = main_thread(&threads) {
            places.push(main.place());
            functions.push(main.functions());
        }
    }
    let (Some(first), Some(last)) = (sights.first(), sights.last()) else {
        return;
    };
    let Some(main) = last.process.tasks.first() else {
        return;
    };
    let signs = &mut evidence.signs;
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let ticks = |sight: &Sight| sight.process.tasks.first().map_or(0, |task| task.ticks);
    let spent = u32::try_from(ticks(last).saturating_sub(ticks(first))).unwrap_or(u32::MAX);
    if seconds > 0.0 {
        signs.cpu = f64::from(spent) / TICKS_PER_SECOND / seconds;
    }
    signs.kernel = kernel_state(main, last.process.frozen);
    signs.wchan.clone_from(&main.wchan);
    let in_kernel: Vec<_> = sights
        .iter()
        .filter_map(|sight| sight.process.tasks.first())
        .map(|task| (task.state, task.call.clone()))
        .collect();
    let stacks_alike = functions.windows(2).all(|pair| pair[0] == pair[1]);
    // On a node with too few processors, one that wants to run is seldom on one.
    let busy = signs.cpu >= 0.5 || in_kernel.iter().all(|(state, _)| *state == 'R');
    // One that runs passes from state to state; its stack alone tells whether it gets on.
    let kernel_alike = in_kernel.windows(2).all(|pair| pair[0] == pair[1]);
    signs.still = stacks_alike
        && if busy {
            functions.len() > 1
        } else {
            kernel_alike
        };
    signs.wants_lock = !busy && wants_lock(&sights, seconds);
    signs.doing = doing(places.last().copied(), main, busy);
    signs.stack = functions.pop().unwrap_or_default();
    evidence.stacks = sights
        .iter()
        .filter_map(|sight| sight.stacks.clone())
        .collect();
    evidence.process = sights.into_iter().last().map(|sight| sight.process);
}

/// Whether the main thread asks for the interpreter's lock again and again: it then sleeps for a few milliseconds at a time,
/// waiting for another thread, and is never seen anywhere else. Threads that wait for anything else sleep through.
fn wants_lock(sights: &[Sight], seconds: f64) -> bool {
    let mains = || {
        sights
            .iter()
            .filter_map(|sight| sight.process.tasks.first())
    };
    let waits = mains().all(|task| {
        let call = task.call.as_ref();
        task.state == 'S' && call.is_some_and(|call| call.waits_for == WaitsFor::Thread)
    });
    let sleeps: Vec<u64> = mains().filter_map(|task| task.sleeps).collect();
    let (Some(first), Some(last)) = (sleeps.first(), sleeps.last()) else {
        return false;
    };
    let slept = u32::try_from(last.saturating_sub(*first)).unwrap_or(u32::MAX);
    waits && sleeps.len() == LOOKS && f64::from(slept) >= ASKS_A_SECOND * seconds
}

/// The other end of a connection on which nothing gets through.
fn unheard_by(sockets: &[Socket]) -> Option<String> {
    let stuck = sockets
        .iter()
        .find(|socket| socket.unsent > 0 && socket.retransmits >= RETRANSMITS);
    stuck.map(|socket| socket.remote.to_string())
}

fn kernel_state(task: &Task, frozen: bool) -> KernelState {
    match task.state {
        _ if frozen => KernelState::Frozen,
        'R' => KernelState::Running,
        'S' | 'I' => KernelState::Sleeping,
        'D' => KernelState::Uninterruptible,
        'T' => KernelState::Stopped,
        't' => KernelState::Traced,
        'Z' | 'X' => KernelState::Dead,
        _ => KernelState::Unknown,
    }
}

/// What the process is doing: by the names on its stack, and where they say nothing by its system call.
fn doing(place: Option<Place>, main: &Task, busy: bool) -> Doing {
    match place {
        Some(Place::Collective) => return Doing::Collective,
        Some(Place::Data) if !busy => return Doing::Data,
        Some(Place::Checkpoint) => return Doing::Storage,
        Some(Place::Data | Place::Other) | None => {}
    }
    match main.call.as_ref().map(|call| call.waits_for) {
        _ if busy || main.state == 'R' => Doing::Computing,
        Some(WaitsFor::Network) => Doing::Network,
        Some(WaitsFor::File) => Doing::Storage,
        Some(WaitsFor::Time) => Doing::Pause,
        Some(WaitsFor::Thread | WaitsFor::Pipe | WaitsFor::Child) => Doing::Waiting,
        Some(WaitsFor::Other) | None => Doing::Unknown,
    }
}
