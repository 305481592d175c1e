// SPDX-License-Identifier: Apache-2.0
//! The service's end of the socket.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use steadfast_health::gpus::NodeGpus;
use steadfast_health::incidents::{Incidents, Reporter, Sighting};
use steadfast_health::kernel_log::{PciAddress, Stamp};
use steadfast_health::nvml::{self, Report};
use steadfast_health::xid::{Judge, Policy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::access::{Node, Viewer, groups_of, open_devices};
use super::log_reader::{FromLog, Item};
use super::protocol::{Hello, LONGEST_HELLO, Message, VERSION};
use crate::agent::nvml_watch::{FromProbe, NvmlWatch};
use crate::fault_book;
use crate::slurm::hooks::JobRecord;

/// Lines that are kept for clients that come later.
const HISTORY: usize = 4096;
/// News that a client may be behind; one that is further behind loses its line.
const BEHIND: usize = 1024;
/// Clients at once, of all users and of one.
const CLIENTS: (usize, usize) = (512, 64);
/// How long a client may take for its first word, and for taking each of ours.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at the probe.
const BEAT: Duration = Duration::from_secs(1);

/// What is known, and who listens.
#[derive(Debug)]
pub(super) struct Server {
    log: PathBuf,
    state_dir: PathBuf,
    history: VecDeque<Arc<Item>>,
    /// Lines that were dropped from the history, and records that were lost before they could be read.
    lost: u64,
    caught_up: bool,
    failed: Option<String>,
    nvml: NvmlWatch,
    /// What the driver's library has said and still holds.
    gpus: GpuState,
    /// Judges what is reported: to know which GPUs are not to be asked about, and what is to be remembered of them.
    incidents: Incidents,
    faults: fault_book::Keeper,
    /// It was said that faults are not remembered.
    forgets: bool,
    live: broadcast::Sender<Live>,
    clients: Rc<std::cell::RefCell<BTreeMap<u32, usize>>>,
}

/// What the driver's library has said and still holds.
#[derive(Debug, Default)]
struct GpuState {
    opened: Option<Arc<Report>>,
    conditions: BTreeMap<String, Arc<Report>>,
    absent: Option<String>,
}

/// What a client is told beside the history.
#[derive(Clone, Debug)]
enum Live {
    Nvml(Arc<Report>),
    NoNvml(String),
    Item(Arc<Item>),
    Gap(Option<u64>),
    CaughtUp,
    Failed(String),
}

/// What is said to a client at its beginning, and what comes then.
struct Opening {
    viewer: Viewer,
    first: Vec<Message>,
    live: broadcast::Receiver<Live>,
}

/// The place of one client; given back when it is dropped.
struct Place {
    uid: u32,
    clients: Rc<std::cell::RefCell<BTreeMap<u32, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.clients.borrow_mut();
        if let Some(count) = clients.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.uid);
            }
        }
    }
}

impl Server {
    pub(super) fn new(
        log: PathBuf,
        state_dir: PathBuf,
        nvml: NvmlWatch,
        faults: fault_book::Keeper,
    ) -> Server {
        let driver = NodeGpus::read(Path::new("/")).driver;
        Server {
            nvml,
            faults,
            forgets: false,
            gpus: GpuState::default(),
            incidents: Incidents::new(Judge::new(Policy::default()), driver),
            log,
            state_dir,
            history: VecDeque::new(),
            lost: 0,
            caught_up: false,
            failed: None,
            live: broadcast::channel(BEHIND).0,
            clients: Rc::default(),
        }
    }

    /// Serves until `end` is told something. To be run within a `LocalSet`.
    pub(super) async fn run(
        mut self,
        listener: UnixListener,
        mut news: mpsc::Receiver<FromLog>,
        mut end: mpsc::Receiver<()>,
    ) {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(news) = news.recv() => self.note(news),
                said = self.nvml.next() => self.on_probe(said),
                _ = beat.tick() => self.look_after_probe(),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream),
                    // Out of descriptors: those that there are will be given back.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                _ = end.recv() => {
                    self.nvml.close();
                    return;
                }
            }
        }
    }

    fn look_after_probe(&mut self) {
        for news in self.nvml.look() {
            if let Some(text) = news.say {
                crate::console_line::say(&text);
            }
        }
        // Nobody has to be told of it: it dies with this process.
        let _its_pid = self.nvml.start_if_due();
    }

    fn on_probe(&mut self, said: FromProbe) {
        let live = match said {
            FromProbe::Says(report) => {
                if let Some(text) = self.nvml.note(&report).and_then(|news| news.say) {
                    crate::console_line::say(&text);
                }
                if let Some(sighting) = self.sighting(&report) {
                    self.judge(sighting);
                }
                self.gpus.note(report)
            }
            FromProbe::Gone(reason) => {
                let _only_for_a_journal = self.nvml.gone(&reason);
                self.gpus = GpuState::default();
                Live::NoNvml(reason)
            }
        };
        // Nobody may be listening.
        let _heard = self.live.send(live);
    }

    fn note(&mut self, news: FromLog) {
        let live = match news {
            FromLog::Line(item) => {
                self.judge_line(&item);
                if self.history.len() >= HISTORY {
                    self.history.pop_front();
                    self.lost += 1;
                }
                self.history.push_back(Arc::clone(&item));
                Live::Item(item)
            }
            FromLog::Gap(lost) => {
                self.lost += lost.unwrap_or(1);
                Live::Gap(lost)
            }
            FromLog::CaughtUp => {
                self.caught_up = true;
                Live::CaughtUp
            }
            FromLog::Failed(reason) => {
                crate::console_line::say(&format!("the kernel log is not watched: {reason}"));
                self.failed = Some(reason.clone());
                Live::Failed(reason)
            }
        };
        // Nobody may be listening.
        let _heard = self.live.send(live);
    }

    fn judge_line(&mut self, item: &Item) {
        if item.event.header.injected() {
            return;
        }
        let stamp = match item.event.header.stamp {
            Some(Stamp::SinceBoot(time)) => u64::try_from(time.as_nanos()).unwrap_or(0),
            _ => item.line.read_ns,
        };
        self.judge(Sighting {
            event: item.event.clone(),
            at_ns: stamp,
            reporter: Reporter::KernelLog,
        });
    }

    /// What the driver's library says that the kernel log says as well.
    fn sighting(&self, report: &Report) -> Option<Sighting> {
        match report {
            Report::Xid { gpu, code, at_ns } => nvml::xid(self.nvml.identity(gpu)?, *code, *at_ns),
            Report::Lost { gpu, at_ns } => nvml::lost(self.nvml.identity(gpu)?, *at_ns),
            _ => None,
        }
    }

    fn judge(&mut self, mut sighting: Sighting) {
        if sighting.event.uuid.is_none() {
            sighting.event.uuid = self.uuid_of(sighting.event.pci());
        }
        if let Some(judged) = self.incidents.take(sighting)
            && let Err(error) = self.faults.note(&judged)
            && !std::mem::replace(&mut self.forgets, true)
        {
            crate::console_line::say(&format!(
                "faults of GPUs are not remembered beyond this service: {error}"
            ));
        }
        self.nvml.keep_quiet_about(&self.incidents.unresponsive());
    }

    fn uuid_of(&self, pci: Option<PciAddress>) -> Option<String> {
        let pci = pci?;
        let told = self.nvml.identity(&pci.to_string());
        let told = told.map(|gpu| gpu.uuid.clone());
        let told = told.filter(|uuid| !uuid.is_empty());
        told.or_else(|| NodeGpus::read(Path::new("/")).by_pci(pci)?.uuid.clone())
    }

    /// Lets a client in, or tells it why not.
    fn admit(&self, stream: UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return };
        let (reader, writer) = stream.into_split();
        let uid = peer.uid();
        let Some(place) = self.place(uid) else {
            tokio::task::spawn_local(refuse(writer, "there are too many clients"));
            return;
        };
        let groups = groups_of(peer.pid().unwrap_or(0), peer.gid());
        let opening = self.open(uid, &groups);
        tokio::task::spawn_local(async move {
            let _place = place;
            // Whoever is gone, or does not read, has lost its line.
            let _is_over = talk(reader, writer, opening).await;
        });
    }

    fn place(&self, uid: u32) -> Option<Place> {
        let mut clients = self.clients.borrow_mut();
        let all: usize = clients.values().sum();
        let own = clients.entry(uid).or_default();
        // Root is never kept out by users.
        if (all >= CLIENTS.0 || *own >= CLIENTS.1) && uid != 0 {
            return None;
        }
        *own += 1;
        Some(Place {
            uid,
            clients: Rc::clone(&self.clients),
        })
    }

    /// What a client is told. Taken together with the beginning of what comes live, so that nothing is missing or twice.
    fn open(&self, uid: u32, groups: &[u32]) -> Opening {
        let root = Path::new("/");
        let viewer = Viewer::new(
            uid,
            &Node {
                gpus: &NodeGpus::read(root),
                jobs: &JobRecord::of_all_nodes(&self.state_dir),
                open_devices: open_devices(root, uid, groups),
            },
        );
        let mut first = vec![Message::Welcome {
            version: VERSION,
            log: self.log.display().to_string(),
            sees: viewer.describe(),
        }];
        if self.lost > 0 {
            first.push(Message::Gap {
                lost: Some(self.lost),
            });
        }
        first.extend(self.gpus.said(&viewer));
        let seen = self.history.iter().filter(|item| viewer.sees_item(item));
        first.extend(seen.map(|item| Message::Line(item.line.clone())));
        if let Some(reason) = self.failed.clone() {
            first.push(Message::Failed { reason });
        } else if self.caught_up {
            first.push(Message::CaughtUp);
        }
        Opening {
            viewer,
            first,
            live: self.live.subscribe(),
        }
    }
}

impl GpuState {
    /// Keeps what holds on, and gives what clients are told.
    fn note(&mut self, report: Report) -> Live {
        let report = Arc::new(report);
        match &*report {
            Report::Opened { .. } => {
                *self = GpuState {
                    opened: Some(Arc::clone(&report)),
                    ..GpuState::default()
                };
            }
            Report::Conditions { gpu, .. } => {
                self.conditions.insert(gpu.clone(), Arc::clone(&report));
            }
            Report::Absent { reason, .. } => {
                *self = GpuState {
                    absent: Some(reason.clone()),
                    ..GpuState::default()
                };
                return Live::NoNvml(reason.clone());
            }
            _ => {}
        }
        Live::Nvml(report)
    }

    /// What a client that comes now is told.
    fn said(&self, viewer: &Viewer) -> Vec<Message> {
        if let Some(reason) = self.absent.clone() {
            return vec![Message::NoNvml { reason }];
        }
        let all = self.opened.iter().chain(self.conditions.values());
        let seen = all.filter(|report| viewer.sees_report(report));
        seen.map(|report| Message::Nvml(first_look(report)))
            .collect()
    }
}

/// For a client it is the first that it hears of the GPU, however long it has been so.
fn first_look(report: &Report) -> Report {
    let mut report = report.clone();
    if let Report::Conditions { first, .. } = &mut report {
        *first = true;
    }
    report
}

impl Viewer {
    fn sees_item(&self, item: &Item) -> bool {
        self.sees(&item.event, item.process_uid)
    }
}

async fn talk(
    reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    opening: Opening,
) -> io::Result<()> {
    let mut reader = BufReader::new(reader.take(LONGEST_HELLO));
    let mut line = Vec::new();
    let heard = timeout(PATIENCE, reader.read_until(b'\n', &mut line)).await;
    match heard {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            refuse(writer, "nothing was said").await;
            return Ok(());
        }
    }
    if serde_json::from_slice::<Hello>(&line).is_err() {
        refuse(writer, "this is another language").await;
        return Ok(());
    }
    let Opening {
        viewer,
        first,
        mut live,
    } = opening;
    for message in &first {
        say(&mut writer, message).await?;
    }
    let mut reader = reader.into_inner().into_inner();
    let mut ignored = [0; 512];
    loop {
        tokio::select! {
            news = live.recv() => match news {
                Ok(Live::Item(item)) if !viewer.sees_item(&item) => {}
                Ok(Live::Nvml(report)) if !viewer.sees_report(&report) => {}
                Ok(news) => say(&mut writer, &news.message()).await?,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    refuse(writer, "it was not read fast enough").await;
                    return Ok(());
                }
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            },
            // What more a client says is thrown away; that it is gone is seen here.
            length = reader.read(&mut ignored) => if length? == 0 {
                return Ok(());
            },
        }
    }
}

impl Live {
    fn message(self) -> Message {
        match self {
            Live::Item(item) => Message::Line(item.line.clone()),
            Live::Nvml(report) => Message::Nvml((*report).clone()),
            Live::NoNvml(reason) => Message::NoNvml { reason },
            Live::Gap(lost) => Message::Gap { lost },
            Live::CaughtUp => Message::CaughtUp,
            Live::Failed(reason) => Message::Failed { reason },
        }
    }
}

async fn say(writer: &mut OwnedWriteHalf, message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    timeout(PATIENCE, writer.write_all(&line))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn refuse(mut writer: OwnedWriteHalf, reason: &str) {
    let reason = reason.to_owned();
    // It may be gone already.
    let _unheard = say(&mut writer, &Message::Refused { reason }).await;
}
