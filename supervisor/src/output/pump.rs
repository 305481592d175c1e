// SPDX-License-Identifier: Apache-2.0
//! The task of one stream: look, show, move on.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regex::bytes::Regex;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::console::Feed;
use super::dropped::Ledger;
use super::filtered::FilteredLines;
use super::inlet::Inlet;
use super::peek::{Peeked, Peeker};
use super::reader::Reader;
use super::spool::{Spool, split};
use super::tail::Tail;
use super::writers::Writers;
use super::{OutputError, OutputEvent, Stream, StreamPipes, lock};

/// A line without an end is shown when nothing was added to it for this long.
const QUIET: Duration = Duration::from_millis(100);
/// Room that a worker's pipe is given, if the kernel agrees.
const WORKER_BYTES: usize = 256 * 1024;
/// How often a pipe that something was left in is looked at.
const RECHECK: Duration = Duration::from_millis(100);
/// The same while the log file takes nothing and the pipe is all the room there is.
const RECHECK_IN_TROUBLE: Duration = Duration::from_millis(20);
/// Two pages, which a pipe may leave unused.
const SLACK_BYTES: usize = 8192;

/// What a pump is made of.
#[derive(Debug)]
pub(super) struct PumpParts {
    pub(super) stream: Stream,
    pub(super) pipes: StreamPipes,
    pub(super) log: Option<PathBuf>,
    pub(super) console: Option<Feed>,
    pub(super) filtered: Option<FilteredLines>,
    pub(super) progress_regex: Option<Regex>,
    pub(super) peeker: Arc<Mutex<Peeker>>,
    pub(super) writers: Arc<Writers>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) events: mpsc::UnboundedSender<OutputEvent>,
    pub(super) tail: Arc<Mutex<Tail>>,
    /// Kept up to date: bytes of the worker's that are not in the log file yet.
    pub(super) unwritten: Arc<AtomicU64>,
    /// The highest generation whose end is awaited: no time to lose then.
    pub(super) ending: watch::Receiver<u64>,
}

/// One stream. Positions are bytes of the stream, counted from when it was attached.
#[derive(Debug)]
pub(super) struct Pump {
    stream: Stream,
    inlet: Inlet,
    capacity: usize,
    spool: Option<Spool>,
    feed: Option<Feed>,
    reader: Reader,
    peeker: Arc<Mutex<Peeker>>,
    ledger: Arc<Ledger>,
    events: mpsc::UnboundedSender<OutputEvent>,
    unwritten: Arc<AtomicU64>,
    /// Position up to which the worker's pipe was looked at.
    seen: u64,
    /// Position up to which it was emptied.
    consumed: u64,
    /// When the line without an end is shown.
    flush_at: Option<Instant>,
    /// Nobody can write to the pipe any more.
    closed: bool,
    /// The pipe is empty, too.
    ended: bool,
    /// The console's losses of this stall were told.
    told: bool,
}

enum Woken {
    Shown,
    Returned(super::log_file::Reply),
    Readable,
    Expired,
}

impl Pump {
    pub(super) fn new(parts: PumpParts) -> Result<Self, OutputError> {
        let fail = |source| OutputError::Watch {
            local_rank: parts.stream.local_rank,
            source,
        };
        let (worker, spool) = split(parts.pipes);
        if fcntl_getpipe_size(&worker).map_err(|error| fail(error.into()))? < WORKER_BYTES {
            // A user has only so many pipe pages; a smaller pipe does as well.
            let _refused = fcntl_setpipe_size(&worker, WORKER_BYTES);
        }
        let capacity = fcntl_getpipe_size(&worker).map_err(|error| fail(error.into()))?;
        let inlet = Inlet::new(worker, parts.stream.generation, parts.ending).map_err(fail)?;
        // What an earlier process left in the spool goes to the file in any case. Whether it was looked at, nobody knows.
        let left_behind = match lock(&parts.peeker).peek(&spool.0, 0).map_err(fail)? {
            Peeked::Bytes(bytes) => bytes.to_vec(),
            Peeked::Nothing | Peeked::End => Vec::new(),
        };
        let spool = if let Some(path) = parts.log {
            let (ledger, events) = (Arc::clone(&parts.ledger), parts.events.clone());
            Some(Spool::start(
                parts.stream,
                path,
                spool,
                parts.writers,
                ledger,
                events,
            )?)
        } else {
            lock(&parts.peeker)
                .discard(&spool.0, left_behind.len())
                .map_err(fail)?;
            None
        };
        let reader = Reader::new(parts.tail, parts.filtered, parts.progress_regex);
        let mut pump = Self {
            stream: parts.stream,
            inlet,
            capacity,
            spool,
            feed: parts.console,
            reader,
            peeker: parts.peeker,
            ledger: parts.ledger,
            events: parts.events,
            unwritten: parts.unwritten,
            seen: 0,
            consumed: 0,
            flush_at: None,
            closed: false,
            ended: false,
            told: false,
        };
        pump.digest(&left_behind);
        Ok(pump)
    }

    /// Runs until the stream is at its end and everything is written.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.pump().await {
            // Only a kernel that breaks its word on pipes gets here. The worker must not notice.
            let reason = format!(
                "from local rank {}'s {} ({error})",
                self.stream.local_rank,
                self.stream.kind.name()
            );
            let _nobody = self.events.send(OutputEvent::Dropped {
                stream: self.stream,
                reason,
            });
        }
    }

    async fn pump(&mut self) -> io::Result<()> {
        let mut look = true;
        loop {
            if look && self.wants_more() {
                self.take_in()?;
            }
            self.flush_if_due(Instant::now());
            look = self.advance()? && self.has_news()?;
            if self.is_finished() {
                return Ok(());
            }
            if look {
                continue;
            }
            match self.wait().await {
                Woken::Shown => {
                    if let Some(feed) = &mut self.feed {
                        feed.block_written();
                        self.told = false;
                    }
                }
                Woken::Returned(reply) => {
                    if let Some(spool) = &mut self.spool {
                        spool.returned(reply)?;
                    }
                }
                Woken::Readable => look = true,
                Woken::Expired => look = self.has_news()?,
            }
            let now = Instant::now();
            if let Some(feed) = &mut self.feed {
                feed.expire(now);
            }
            if let Some(spool) = &mut self.spool {
                spool.expire(now);
            }
        }
    }
}

impl Pump {
    /// Looks at what is new.
    fn take_in(&mut self) -> io::Result<()> {
        // Cleared first, so that whatever arrives after the look is news.
        self.inlet.clear();
        let peeker = Arc::clone(&self.peeker);
        let mut peeker = lock(&peeker);
        let skip = self.unconsumed();
        let mut found = 0;
        match peeker.peek(self.inlet.pipe(), skip)? {
            Peeked::Bytes(bytes) => {
                found = bytes.len();
                self.seen += bytes.len() as u64;
                self.digest(bytes);
            }
            Peeked::End => self.ended = true,
            Peeked::Nothing => {}
        }
        self.inlet.looked(found)?;
        // Of a closed pipe, whatever is known is all that there will ever be.
        self.ended |= self.closed && self.inlet.waiting()? <= self.unconsumed() as u64;
        Ok(())
    }

    /// Whether the pipe holds more than was seen, or has come to its end.
    ///
    /// The kernel tells us of news only if the pipe was empty before, or when a write is complete: a writer that fills a
    /// pipe which we have left something in sleeps without a word. So we ask whenever we have taken something.
    fn has_news(&self) -> io::Result<bool> {
        Ok(!self.ended && (self.closed || self.inlet.waiting()? > self.unconsumed() as u64))
    }

    /// Shows and remembers what comes next in the stream.
    fn digest(&mut self, bytes: &[u8]) {
        let feed = &mut self.feed;
        let (mut lost_bytes, mut lost_lines) = (0, 0);
        let mut lose = |lost: super::console::Lost| {
            lost_bytes += lost.bytes;
            lost_lines += lost.lines;
        };
        if let Some(feed) = feed.as_mut().filter(|feed| feed.is_raw()) {
            lose(feed.push_raw(bytes));
        }
        let before = self.reader.step();
        self.reader.read(bytes, |piece, end| {
            if let Some(feed) = feed.as_mut().filter(|feed| !feed.is_raw()) {
                lose(feed.push(piece, end));
            }
        });
        if let Some(feed) = feed {
            let held = if feed.is_raw() {
                0
            } else {
                self.reader.held() as u64
            };
            feed.pushed_upto(self.seen.saturating_sub(held));
        }
        self.flush_at = (self.reader.held() > 0).then(|| Instant::now() + QUIET);
        if lost_bytes > 0 {
            self.not_shown(lost_bytes, lost_lines);
        }
        if let Some(step) = self.reader.step().filter(|_| self.reader.step() != before) {
            let Stream {
                generation,
                local_rank,
                ..
            } = self.stream;
            // Nobody listens while the agent shuts down.
            let _nobody = self.events.send(OutputEvent::Step {
                generation,
                local_rank,
                step,
            });
        }
        if let Some(loss) = self.reader.take_loss() {
            let _nobody = self.events.send(OutputEvent::Loss {
                generation: self.stream.generation,
                local_rank: self.stream.local_rank,
                step: self.reader.step(),
                loss,
            });
        }
    }

    /// Shows the line that has no end, if it had time enough to get one, or can get none.
    fn flush_if_due(&mut self, now: Instant) {
        let held = self.reader.held();
        if held == 0 || !(self.ended || self.flush_at.is_some_and(|at| now >= at)) {
            return;
        }
        self.flush_at = None;
        let feed = &mut self.feed;
        self.reader.flush(|piece, end| {
            if let Some(feed) = feed.as_mut().filter(|feed| !feed.is_raw()) {
                // What a stalled console misses of a line without an end is not worth counting.
                let _lost = feed.push(piece, end);
            }
        });
        if let Some(feed) = feed {
            feed.pushed_upto(self.seen);
        }
    }

    /// Hands to the console what it has not, and to the log file what the console is done with. Returns whether anything
    /// was taken from the worker's pipe.
    fn advance(&mut self) -> io::Result<bool> {
        let pressed = !self.has_room();
        if let Some(feed) = &mut self.feed {
            feed.submit();
        }
        let mut settled = self
            .feed
            .as_ref()
            .map_or(self.seen, |feed| feed.settled(self.seen));
        if pressed && self.seen - settled <= self.reader.held() as u64 {
            // The line without an end cannot stay in the pipe while the worker needs the room; it is remembered here.
            settled = self.seen;
        }
        let bytes = usize::try_from(settled.saturating_sub(self.consumed)).unwrap_or(usize::MAX);
        let before = self.consumed;
        if bytes > 0 {
            let peeker = lock(&self.peeker);
            let taken = match &mut self.spool {
                Some(spool) => spool.take(self.inlet.pipe(), bytes, pressed, &peeker)?,
                None => peeker.discard(self.inlet.pipe(), bytes)?,
            };
            self.consumed += taken as u64;
        }
        if let Some(spool) = &mut self.spool {
            if self.ended && self.consumed == self.seen {
                spool.hurry();
            }
            self.unwritten.store(
                spool.unwritten() + self.seen - self.consumed,
                Ordering::Relaxed,
            );
        }
        Ok(self.consumed > before)
    }

    async fn wait(&mut self) -> Woken {
        let deadline = self.deadline();
        let listen = self.wants_more() && !self.closed;
        let Self {
            feed,
            spool,
            inlet,
            closed,
            ..
        } = self;
        let shown = async {
            match feed.as_mut().filter(|feed| feed.is_waiting()) {
                Some(feed) => feed.written().await,
                None => std::future::pending().await,
            }
        };
        let returned = async {
            match spool.as_mut().filter(|spool| spool.is_lent()) {
                Some(spool) => spool.reply().await,
                None => std::future::pending().await,
            }
        };
        let expired = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shown => Woken::Shown,
            reply = returned => Woken::Returned(reply),
            hung_up = inlet.news(), if listen => {
                *closed |= hung_up;
                Woken::Readable
            }
            () = expired => Woken::Expired,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let feed = self.feed.as_ref().and_then(Feed::deadline);
        let spool = self.spool.as_ref().and_then(Spool::deadline);
        [self.flush_at, feed, spool, self.recheck_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// While something stays in the pipe, news may come without a word (see [`Pump::has_news`]).
    fn recheck_at(&self) -> Option<Instant> {
        let often = self.spool.as_ref().is_some_and(Spool::is_in_trouble);
        let pause = if often { RECHECK_IN_TROUBLE } else { RECHECK };
        (self.unconsumed() > 0 && self.wants_more()).then(|| Instant::now() + pause)
    }

    fn is_finished(&self) -> bool {
        self.ended
            && self.consumed == self.seen
            && self.feed.as_ref().is_none_or(Feed::is_idle)
            && self.spool.as_ref().is_none_or(Spool::is_idle)
    }

    fn wants_more(&self) -> bool {
        !self.ended && self.has_room()
    }

    /// Whether the worker's pipe is less than half full, as far as is known.
    fn has_room(&self) -> bool {
        self.unconsumed() < (self.capacity / 2).saturating_sub(SLACK_BYTES).max(1)
    }

    fn unconsumed(&self) -> usize {
        usize::try_from(self.seen - self.consumed).unwrap_or(usize::MAX)
    }

    fn not_shown(&mut self, bytes: u64, lines: u64) {
        let Stream {
            local_rank, kind, ..
        } = self.stream;
        let what = format!(
            "on the console from local rank {local_rank}'s {} (it was stalled)",
            kind.name()
        );
        self.ledger.add(&what, bytes, lines);
        if !self.told {
            self.told = true;
            let _nobody = self.events.send(OutputEvent::Dropped {
                stream: self.stream,
                reason: what,
            });
        }
    }
}
