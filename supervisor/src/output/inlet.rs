// SPDX-License-Identifier: Apache-2.0
//! Knowing when a worker's pipe has news, at little cost.
//!
//! A stream that prints a few lines per second is looked at on the beat of a clock that all streams share, so that one
//! awakening serves them all. One that prints much, or nothing, is watched through epoll. Nothing beats while all are
//! quiet.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two looks at a stream that prints now and then.
const BEAT: Duration = Duration::from_millis(100);
/// A stream that prints this much in one beat is watched: its pipe would fill up before the next.
const MUCH: usize = 16 * 1024;
/// After so many beats without news a stream counts as quiet.
const QUIET_BEATS: u32 = 5;

/// When the clock that all streams share began.
static FIRST_BEAT: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The read end of a worker's pipe.
#[derive(Debug)]
pub(super) struct Inlet {
    pipe: Arc<OwnedFd>,
    watched: Option<AsyncFd<Arc<OwnedFd>>>,
    generation: u64,
    /// The highest generation whose end is awaited.
    ending: watch::Receiver<u64>,
    hurried: bool,
    busy: bool,
    taken: usize,
    beat_ends: Instant,
    quiet_beats: u32,
}

impl Inlet {
    pub(super) fn new(
        pipe: OwnedFd,
        generation: u64,
        ending: watch::Receiver<u64>,
    ) -> io::Result<Self> {
        let pipe = Arc::new(pipe);
        let watched = Some(register(&pipe)?);
        Ok(Self {
            pipe,
            watched,
            generation,
            ending,
            hurried: false,
            busy: false,
            taken: 0,
            beat_ends: next_beat(),
            quiet_beats: 0,
        })
    }

    /// The pipe.
    pub(super) fn pipe(&self) -> &OwnedFd {
        &self.pipe
    }

    /// How many bytes are in the pipe.
    pub(super) fn waiting(&self) -> io::Result<u64> {
        Ok(rustix::io::ioctl_fionread(&*self.pipe)?)
    }

    /// Forgets the news so far. To be called before a look, so that what arrives after it is news again.
    pub(super) fn clear(&self) {
        if let Some(watched) = &self.watched {
            let _cleared = watched.try_io(Interest::READABLE, |_| {
                io::Result::<()>::Err(io::ErrorKind::WouldBlock.into())
            });
        }
    }

    /// Says how much a look found, and so how the pipe is attended to from now on.
    pub(super) fn looked(&mut self, bytes: usize) -> io::Result<()> {
        let now = Instant::now();
        if now >= self.beat_ends {
            self.busy = self.taken >= MUCH;
            (self.taken, self.beat_ends) = (0, next_beat());
        }
        self.taken += bytes;
        self.busy |= self.taken >= MUCH;
        self.quiet_beats = if bytes > 0 {
            0
        } else {
            self.quiet_beats.saturating_add(1)
        };
        let watch = self.hurried || self.busy || self.quiet_beats >= QUIET_BEATS;
        if !watch && bytes > 0 {
            self.watched = None;
        } else if watch && self.watched.is_none() {
            self.watched = Some(register(&self.pipe)?);
        }
        Ok(())
    }

    /// Waits until a look is worth while. Returns whether nobody can write any more, as far as is known.
    pub(super) async fn news(&mut self) -> bool {
        let (generation, hurried) = (self.generation, self.hurried);
        let hurry = async {
            // The sender is gone only when the streams are about to be as well.
            if hurried
                || self
                    .ending
                    .wait_for(|ending| *ending >= generation)
                    .await
                    .is_err()
            {
                std::future::pending::<()>().await;
            }
        };
        let beat = async {
            let Some(watched) = &self.watched else {
                tokio::time::sleep_until(next_beat()).await;
                return false;
            };
            match watched.readable().await {
                Ok(guard) => guard.ready().is_read_closed(),
                // The runtime is shutting down.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            hung_up = beat => hung_up,
            () = hurry => {
                self.hurried = true;
                false
            }
        }
    }
}

fn next_beat() -> Instant {
    let first = *FIRST_BEAT;
    let beats = first.elapsed().as_millis() / BEAT.as_millis() + 1;
    first + BEAT * u32::try_from(beats).unwrap_or(u32::MAX)
}

#[expect(
    deprecated,
    reason = "the replacement is unsafe, and an owned descriptor keeps the promise that it asks for"
)]
fn register(pipe: &Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(Arc::clone(pipe), Interest::READABLE)
}
