// SPDX-License-Identifier: Apache-2.0
//! The thread that looks at the checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc as commands};
use std::time::Duration;

use steadfast_checkpoints::{
    Boot, Catalogue, Depth, FindError, Found, Known, Listing, Manifest, Retention, directory_id,
};
use steadfast_core::{CheckpointReport, WholeCheckpoint};
use tokio::sync::mpsc;

use super::choosing::{self, Choice, Resume, Task};
use super::chores::{Chore, Chores, flush_for_good};
use super::request_file::RequestFile;
use super::{Awaited, CheckpointEvent, LastLook, Order};
use crate::settings::Checkpoints;

/// How often the directory is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// The same while a checkpoint is waited for: the workers may stand still for it.
const EVERY_WHILE_AWAITED: Duration = Duration::from_millis(100);
/// Looks within which one that is waited for must not have changed, if nobody has said that it is done.
const UNCHANGED_LOOKS: u32 = 5;
/// How long workers that share the directory with others are held back until these have cleared it.
const CLEARED_WITHIN: Duration = Duration::from_millis(1_500);
/// How many looks later those delete old checkpoints who share the directory with one that does: usually they find nothing.
const LOOKS_OF_OTHERS: u32 = 5;
const LOOK_WHETHER_CLEARED: Duration = Duration::from_millis(50);
/// How long workers are held back because something cannot be read: often it can be a moment later.
const READ_WITHIN: Duration = Duration::from_millis(500);

pub(super) struct Watch {
    settings: Checkpoints,
    catalogue: Catalogue,
    events: mpsc::UnboundedSender<CheckpointEvent>,
    /// The whole ones that were there before, or have been told of, as they were then.
    told: BTreeMap<PathBuf, Listing>,
    /// Whether the directory has been looked at before.
    has_looked: bool,
    /// Why the directory itself could not be read at the last look, in words.
    unread: Option<String>,
    last_look: Arc<Mutex<LastLook>>,
    said: Said,
    /// The name of the directory, once it has one.
    name: Option<String>,
    reported: Option<CheckpointReport>,
    awaited: Option<Awaited>,
    request_file: Option<RequestFile>,
    /// The whole ones that were there when it was asked for.
    before: BTreeSet<PathBuf>,
    /// The one that may be it, and for how many looks it has not changed.
    candidate: Option<(PathBuf, u32)>,
    chores: Option<Chores>,
    /// What the workers of this generation were prepared with.
    running: Running,
    /// The step that is committed, and after how many more looks what it makes superfluous is deleted.
    retiring: Option<(u64, u32)>,
}

/// The generation whose workers run, as far as its checkpoints are concerned.
#[derive(Debug, Default)]
struct Running {
    world_size: Option<u32>,
    /// Whether this node looks after the directory, or another does.
    clears: bool,
    /// What the workers resumed from.
    resumed_from: Option<PathBuf>,
}

/// What can be wrong at the same time as something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Matter {
    Directory,
    Name,
    Chores,
    Flush,
    RequestFile,
}

/// What was said last of what is wrong with each matter.
#[derive(Debug, Default)]
struct Said(BTreeMap<Matter, String>);

impl Said {
    /// What is wrong now, unless that was said already. Once it was right in between, it is said again.
    fn news(&mut self, matter: Matter, wrong: Option<String>) -> Option<String> {
        let text = wrong.clone();
        let before = match wrong {
            Some(wrong) => self.0.insert(matter, wrong),
            None => self.0.remove(&matter),
        };
        text.filter(|text| before.as_ref() != Some(text))
    }
}

impl Watch {
    pub(super) fn new(
        settings: Checkpoints,
        boot: Option<Boot>,
        events: mpsc::UnboundedSender<CheckpointEvent>,
        last_look: Arc<Mutex<LastLook>>,
    ) -> Self {
        let selection = settings.layout.selection();
        let catalogue = Catalogue::new(settings.directory.clone(), selection);
        Self {
            catalogue: match boot {
                Some(boot) => catalogue.seen_in(boot),
                None => catalogue,
            },
            events,
            told: BTreeMap::new(),
            has_looked: false,
            unread: None,
            last_look,
            said: Said::default(),
            name: None,
            reported: None,
            awaited: None,
            request_file: settings.file.clone().map(RequestFile::new),
            before: BTreeSet::new(),
            candidate: None,
            chores: None,
            running: Running::default(),
            retiring: None,
            settings,
        }
    }

    pub(super) fn run(mut self, orders: &commands::Receiver<Order>) {
        loop {
            let every = match self.awaited {
                Some(_) => EVERY_WHILE_AWAITED,
                None => EVERY,
            };
            match orders.recv_timeout(every) {
                Ok(Order::Prepare { task, reply }) => {
                    // What is there now was made by nobody who is still to come.
                    let wanted = || !reply.is_closed();
                    let choice = self.prepare(&task, &wanted);
                    self.running = Running {
                        world_size: Some(task.world_size),
                        clears: task.clears,
                        resumed_from: choice.resume.as_ref().map(|from| from.path.clone()),
                    };
                    self.retiring = None;
                    self.tell_nothing_of_these();
                    let _impatient = reply.send(choice);
                }
                Ok(Order::Report(reply)) => {
                    self.look();
                    self.tell();
                    let _impatient = reply.send(self.report());
                }
                Ok(Order::Await(awaited)) => self.wait_for(awaited),
                Ok(Order::Retire(committed)) => {
                    let looks = if self.running.clears {
                        0
                    } else {
                        LOOKS_OF_OTHERS
                    };
                    self.retiring = Some((committed, looks));
                    self.retire();
                }
                Err(commands::RecvTimeoutError::Timeout) => {
                    self.look();
                    self.tell();
                    self.tell_report();
                    self.tell_awaited();
                    self.retire();
                }
                Err(commands::RecvTimeoutError::Disconnected) => return,
            }
            self.show_wish();
        }
    }

    fn look(&mut self) {
        self.unread = None;
        let wrong = match self.catalogue.look() {
            Ok(_) => self.catalogue.leave_mark().err().map(|error| {
                let directory = self.catalogue.directory().display();
                format!(
                    "no mark can be left in {directory} ({error}): after a power cut it cannot be told which checkpoints \
                     may have lost something"
                )
            }),
            Err(FindError { path, source }) => {
                let shown = path.display();
                let text = format!("the checkpoint directory {shown} cannot be read: {source}");
                self.unread = Some(format!("{text}, so nobody can say where to resume"));
                Some(text)
            }
        };
        self.say_once(Matter::Directory, wrong);
        let last = match self.unread() {
            Some(why) => LastLook::Unread(why),
            None => LastLook::Whole(self.whole().map(as_resume).collect()),
        };
        *self
            .last_look
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = last;
        if !self.has_looked {
            self.has_looked = true;
            self.tell_nothing_of_these();
        }
    }

    fn say_once(&mut self, matter: Matter, wrong: Option<String>) {
        if let Some(text) = self.said.news(matter, wrong) {
            self.note(text);
        }
    }

    fn note(&self, text: String) {
        // The agent is about to end.
        drop(self.events.send(CheckpointEvent::Note(text)));
    }

    fn tell_nothing_of_these(&mut self) {
        let as_told = |known: &Known| (known.found.path.clone(), known.checked.listing.clone());
        self.told = self.whole().map(as_told).collect();
    }

    fn whole(&self) -> impl Iterator<Item = &Known> {
        let all = self.catalogue.all().into_iter();
        all.filter(|known| known.is_whole())
    }

    /// Tells of what is new, whole, and does not change any more.
    fn tell(&mut self) {
        let mut is_news = false;
        let mut newest = None;
        for known in self.catalogue.all() {
            if !known.is_whole() {
                // It is being written again, and will be news once more.
                self.told.remove(&known.found.path);
                continue;
            }
            let listing = &known.checked.listing;
            if !known.settled || self.told.get(&known.found.path) == Some(listing) {
                continue;
            }
            self.told.insert(known.found.path.clone(), listing.clone());
            is_news = true;
            let written = Manifest::of(&known.found, &known.checked, Depth::Metadata)
                .and_then(|manifest| manifest.write_if_news(&known.found));
            if let Err(error) = written {
                self.note(format!(
                    "no manifest of {} is kept: {error}",
                    known.found.name
                ));
            }
            drop(self.events.send(CheckpointEvent::Made {
                step: known.found.step,
                path: known.found.path.clone(),
            }));
            newest = Some(known.clone());
        }
        if let Some(known) = newest {
            self.give_chore(Chore::Flush(Box::new(known)));
        }
        if is_news {
            Manifest::prune(self.catalogue.directory());
        }
    }

    fn give_chore(&mut self, chore: Chore) {
        if self.chores.is_none() {
            match Chores::start(self.settings.directory.clone(), self.events.clone()) {
                Ok(chores) => self.chores = Some(chores),
                Err(error) => self.say_once(Matter::Chores, Some(format!(
                    "no thread can be started that flushes checkpoints ({error}): none is committed"
                ))),
            }
        }
        if let Some(chores) = &self.chores {
            chores.give(chore);
        }
    }

    /// Has deleted what the committed checkpoint makes superfluous, if it is this node's turn.
    fn retire(&mut self) {
        let Some(keep) = self.settings.keep else {
            self.retiring = None;
            return;
        };
        match &mut self.retiring {
            None => return,
            Some((_, looks)) if *looks > 0 => {
                *looks -= 1;
                return;
            }
            Some(_) => {}
        }
        let Some((committed, _)) = self.retiring.take() else {
            return;
        };
        let policy = Retention {
            keep,
            committed,
            world_size: self.running.world_size,
            in_use: self.running.resumed_from.as_deref(),
        };
        let superseded = policy.superseded(&self.catalogue);
        let superseded: Vec<Found> = superseded
            .into_iter()
            .map(|known| known.found.clone())
            .collect();
        for found in superseded {
            self.told.remove(&found.path);
            self.give_chore(Chore::Delete(found));
        }
    }

    /// What this node can vouch for, as of the last look.
    fn report(&mut self) -> CheckpointReport {
        let newest = self.whole().collect::<Vec<_>>().into_iter().rev();
        let whole = newest.take(CheckpointReport::MOST);
        let whole = whole.map(|known| WholeCheckpoint {
            step: known.found.step,
            name: known.found.name.clone(),
            only_for: known.checked.only_for(),
        });
        let whole = whole.collect();
        CheckpointReport {
            directory: self.name(),
            whole,
        }
    }

    /// The name of the directory. One without checkpoints is left as it is: some programs want it empty.
    fn name(&mut self) -> String {
        if self.name.is_none() && !self.catalogue.all().is_empty() {
            match directory_id(self.catalogue.directory()) {
                Ok(name) => self.name = Some(name),
                Err(error) => {
                    let directory = self.catalogue.directory().display();
                    self.say_once(Matter::Name, Some(format!(
                        "{directory} cannot be given a name ({error}), so nobody can tell whether the nodes share it"
                    )));
                }
            }
        }
        self.name.clone().unwrap_or_default()
    }

    fn tell_report(&mut self) {
        let report = self.report();
        if self.reported.as_ref() != Some(&report) {
            self.reported = Some(report.clone());
            drop(self.events.send(CheckpointEvent::Report(report)));
        }
    }

    fn wait_for(&mut self, awaited: Option<Awaited>) {
        let same = |before: &Awaited| {
            awaited
                .is_some_and(|now| (now.generation, now.step) == (before.generation, before.step))
        };
        if !self.awaited.as_ref().is_some_and(same) {
            self.look();
            self.before = self.whole().map(|known| known.found.path.clone()).collect();
            self.candidate = None;
        }
        self.awaited = awaited;
        self.tell_awaited();
    }

    /// Tells of the checkpoint that is waited for, once it is there for good.
    fn tell_awaited(&mut self) {
        let Some(awaited) = self.awaited else {
            return;
        };
        let will_do = |known: &&Known| {
            let is_new = awaited.step > 0 || !self.before.contains(&known.found.path);
            is_new && known.found.step >= awaited.step
        };
        let Some(known) = self.whole().filter(will_do).last().cloned() else {
            self.candidate = None;
            return;
        };
        let path = known.found.path.clone();
        let looks = match &self.candidate {
            Some((before, looks)) if *before == path && known.settled => looks + 1,
            _ => 0,
        };
        self.candidate = Some((path.clone(), looks));
        if !awaited.is_said_done && looks < UNCHANGED_LOOKS {
            return;
        }
        // Whoever hears of it may stop the workers, and the machine with them.
        match flush_for_good(&known) {
            Ok(()) => {
                self.awaited = None;
                drop(self.events.send(CheckpointEvent::Awaited {
                    generation: awaited.generation,
                    step: known.found.step,
                    path,
                }));
            }
            // It is looked at again.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => self.say_once(
                Matter::Flush,
                Some(format!(
                    "checkpoint {} is not on stable storage: {error}",
                    known.found.name
                )),
            ),
        }
    }

    /// Asks the program by a file, where it looks for one.
    fn show_wish(&mut self) {
        let is_wanted = self.awaited.is_some_and(|awaited| awaited.step == 0);
        let Some(file) = &mut self.request_file else {
            return;
        };
        let shown = file.show(is_wanted);
        let wrong = shown.err().map(|error| {
            format!("the file of --checkpoint-file cannot be made or removed: {error}")
        });
        self.say_once(Matter::RequestFile, wrong);
    }

    fn prepare(&mut self, task: &Task, wanted: &dyn Fn() -> bool) -> Choice {
        let mut waited = Duration::ZERO;
        loop {
            self.look();
            let (ready, at_most) = if self.unread().is_some() {
                (false, READ_WITHIN)
            } else {
                let ready = choosing::is_ready(&self.catalogue, &self.settings, task);
                (ready, CLEARED_WITHIN)
            };
            if ready || waited >= at_most || !wanted() {
                return match self.unread.clone() {
                    Some(why) => Choice {
                        unreadable: Some(why),
                        ..Choice::default()
                    },
                    None => choosing::choose(&self.catalogue, &self.settings, task, wanted),
                };
            }
            pause(LOOK_WHETHER_CLEARED);
            waited += LOOK_WHETHER_CLEARED;
        }
    }

    /// Why nobody could say at the last look where to resume, in words.
    fn unread(&self) -> Option<String> {
        let newest = self.whole().last().map(|known| known.found.step);
        let unread = choosing::unread(&self.catalogue, newest);
        self.unread.clone().or(unread)
    }
}

fn as_resume(known: &Known) -> (Resume, Option<u32>) {
    let resume = Resume {
        step: known.found.step,
        path: known.found.path.clone(),
    };
    (resume, known.checked.only_for())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the thread has nothing else to do: its one order is to wait for this"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_things_that_are_wrong_at_once_is_said_once_and_again_after_it_was_right() {
        let mut said = Said::default();
        let mut news = |matter, wrong: Option<&str>| said.news(matter, wrong.map(str::to_owned));
        for round in 0..3 {
            let heard = [
                news(Matter::Directory, Some("no mark")),
                news(Matter::Name, Some("no name")),
            ];
            assert_eq!(heard.map(|text| text.is_some()), [round == 0; 2], "{round}");
        }
        assert_eq!(news(Matter::Directory, None), None);
        assert!(news(Matter::Directory, Some("no mark")).is_some());
        assert!(news(Matter::Name, Some("no name")).is_none());
        assert!(news(Matter::Name, Some("another name")).is_some());
    }
}
