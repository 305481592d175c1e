// SPDX-License-Identifier: Apache-2.0
//! The progress pages of the workers, looked at by a thread of its own: nobody knows what disk they are on.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc as commands;
use std::thread;
use std::time::Duration;

use steadfast_health::progress_page::{Page, PageDirectory};
use tokio::sync::{mpsc, oneshot};

use crate::clock;
use crate::hook::Hook;

/// How often the pages are read.
const EVERY: Duration = Duration::from_millis(100);
/// Every so many reads, it is looked whether pages have come or gone.
const SCAN_EVERY: u32 = 5;
/// How long the last look at a generation's pages may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the pages say.
#[derive(Debug)]
pub(super) enum PageEvent {
    /// A worker's page has changed.
    Changed {
        generation: u64,
        local_rank: u32,
        page: Box<Page>,
    },
    /// When workers were asked for a checkpoint at this step, one of them had made it already.
    AskedLate { generation: u64, step: u64 },
    /// Something is wrong with a page, in words.
    Note(String),
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct PageWatch {
    orders: commands::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Watch { generation: u64, local_rank: u32 },
    Look(oneshot::Sender<()>),
    Save(SaveWish),
}

/// A checkpoint that workers are asked for through their pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaveWish {
    /// Their generation.
    pub(super) generation: u64,
    /// The first step that will do; 0: none is wanted any more.
    pub(super) step: u64,
    /// Until when, on the monotonic clock, those that have saved make no further step; 0: they go on.
    pub(super) hold_until_ns: u64,
}

#[derive(Debug)]
struct Watched {
    directory: PageDirectory,
    last: Option<Page>,
}

impl PageWatch {
    /// Starts the thread. It ends when this is dropped.
    pub(super) fn start(hook: Hook, events: mpsc::UnboundedSender<PageEvent>) -> io::Result<Self> {
        let (orders, received) = commands::channel();
        thread::Builder::new()
            .name("pages".to_owned())
            .spawn(move || watch(&hook, &received, &events))?;
        Ok(Self { orders })
    }

    /// Looks at the pages of this worker from now on, and no longer at those of older generations.
    pub(super) fn watch(&self, generation: u64, local_rank: u32) {
        // Without the thread there are no pages, and the steps in the output are left.
        let _output_is_left = self.orders.send(Order::Watch {
            generation,
            local_rank,
        });
    }

    /// Asks the workers for a checkpoint, or takes that back.
    pub(super) fn ask_for_checkpoint(&self, wish: SaveWish) {
        // Without the thread nobody has said that workers can be asked.
        let _nobody_asks = self.orders.send(Order::Save(wish));
    }

    /// Looks once more, now. What there is to tell has been sent when this returns, unless the disk does not answer.
    pub(super) async fn look(&self) {
        let (done, looked) = oneshot::channel();
        if self.orders.send(Order::Look(done)).is_ok() {
            let _late = tokio::time::timeout(PATIENCE, looked).await;
        }
    }
}

fn watch(
    hook: &Hook,
    orders: &commands::Receiver<Order>,
    events: &mpsc::UnboundedSender<PageEvent>,
) {
    let mut watched: BTreeMap<(u64, u32), Watched> = BTreeMap::new();
    let mut reads = 0u32;
    let mut wish: Option<SaveWish> = None;
    loop {
        let order = if watched.is_empty() {
            orders.recv().map_err(commands::RecvTimeoutError::from)
        } else {
            orders.recv_timeout(EVERY)
        };
        let mut is_new_wish = false;
        let asked = match order {
            Ok(Order::Watch {
                generation,
                local_rank,
            }) => {
                watched.retain(|&(older, _), _| older >= generation);
                let path = hook.pages_of(generation, local_rank);
                watched
                    .entry((generation, local_rank))
                    .or_insert_with(|| Watched {
                        directory: PageDirectory::new(path),
                        last: None,
                    });
                continue;
            }
            Ok(Order::Look(done)) => Some(done),
            Ok(Order::Save(new)) => {
                for (&place, watched) in &mut watched {
                    watched.look(place, true, events);
                }
                is_new_wish = !new.is_known(&watched);
                new.write(&watched);
                wish = Some(new);
                None
            }
            Err(commands::RecvTimeoutError::Timeout) => None,
            Err(commands::RecvTimeoutError::Disconnected) => return,
        };
        let scan = asked.is_some() || reads.is_multiple_of(SCAN_EVERY);
        reads = reads.wrapping_add(1);
        for (&place, watched) in &mut watched {
            watched.look(place, scan, events);
        }
        if let Some(wish) = wish.filter(|wish| is_new_wish && wish.came_late(&watched)) {
            let (generation, step) = (wish.generation, wish.step);
            drop(events.send(PageEvent::AskedLate { generation, step }));
        }
        if let Some(wish) = wish.filter(|wish| scan && wish.step > 0) {
            // For pages that have come since.
            wish.write(&watched);
        }
        if let Some(done) = asked {
            let _impatient = done.send(());
        }
    }
}

impl SaveWish {
    /// The newest pages of its generation, one of each worker.
    fn pages<'a>(
        &'a self,
        watched: &'a BTreeMap<(u64, u32), Watched>,
    ) -> impl Iterator<Item = &'a Page> {
        let of_ours = watched
            .iter()
            .filter(|((generation, _), _)| *generation == self.generation);
        of_ours.filter_map(|(_, watched)| watched.last.as_ref())
    }

    /// Whether it has been written to all pages already, by an earlier agent, too.
    fn is_known(&self, watched: &BTreeMap<(u64, u32), Watched>) -> bool {
        let mut pages = self.pages(watched);
        pages.all(|page| page.checkpoint_request == Some(self.step))
    }

    /// Whether a worker has made the step, as seen once the wish was written: it may not have seen the wish in time. One
    /// that makes the step later sees it then.
    fn came_late(&self, watched: &BTreeMap<(u64, u32), Watched>) -> bool {
        let has_made = |page: &Page| page.step.is_some_and(|made| made.number >= self.step);
        self.step > 0 && self.pages(watched).any(has_made)
    }

    fn write(self, watched: &BTreeMap<(u64, u32), Watched>) {
        for ((generation, _), watched) in watched {
            if *generation == self.generation {
                let directory = &watched.directory;
                directory.request_checkpoint(self.step, self.hold_until_ns);
            }
        }
    }
}

impl Watched {
    fn look(
        &mut self,
        (generation, local_rank): (u64, u32),
        scan: bool,
        events: &mpsc::UnboundedSender<PageEvent>,
    ) {
        let mut notes = if scan {
            self.directory.scan()
        } else {
            Vec::new()
        };
        let look = self.directory.look(clock::monotonic_ns());
        notes.extend(look.notes);
        for note in notes {
            // The agent is about to end.
            drop(events.send(PageEvent::Note(note)));
        }
        let leading = Page::leading(&look.pages);
        if let Some(page) = leading.filter(|&page| self.last.as_ref() != Some(page)) {
            self.last = Some(page.clone());
            let page = Box::new(page.clone());
            drop(events.send(PageEvent::Changed {
                generation,
                local_rank,
                page,
            }));
        }
    }
}
