// SPDX-License-Identifier: Apache-2.0
//! One file descriptor of the console, and the thread that writes to it. It may hang: nobody waits for it for ever.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::super::dropped::Ledger;
use super::super::{OutputError, lock};
use super::screen::Screen;

/// Most bytes given to one call, so that progress shows.
const CHUNK_BYTES: usize = 16 * 1024;
/// Most lines of the supervisor's own that wait for a stalled console.
const WAITING_LINES: usize = 1000;
/// The thread calls the system and little else.
const STACK_BYTES: usize = 128 * 1024;

/// The door to one writing thread.
#[derive(Debug)]
pub(super) struct Sink {
    screen: Mutex<Screen>,
    blocks: blocking::Sender<Block>,
    progress: Arc<AtomicU64>,
    said: Arc<AtomicUsize>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    /// Told when the block is written. The supervisor's own lines have nobody to tell.
    done: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Writer {
    name: &'static str,
    target: OwnedFd,
    progress: Arc<AtomicU64>,
    said: Arc<AtomicUsize>,
    ledger: Arc<Ledger>,
    /// Why nothing can be written any more.
    broken: Option<Errno>,
}

impl Sink {
    pub(super) fn start(
        name: &'static str,
        target: OwnedFd,
        ledger: Arc<Ledger>,
    ) -> Result<Self, OutputError> {
        let (blocks, incoming) = blocking::channel();
        let progress = Arc::new(AtomicU64::new(0));
        let said = Arc::new(AtomicUsize::new(0));
        let screen = Mutex::new(Screen::new(target.is_terminal()));
        let writer = Writer {
            name,
            target,
            progress: Arc::clone(&progress),
            said: Arc::clone(&said),
            ledger: Arc::clone(&ledger),
            broken: None,
        };
        std::thread::Builder::new()
            .name("console".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || writer.serve(&incoming))
            .map_err(|source| OutputError::Thread {
                what: name.to_owned(),
                source,
            })?;
        Ok(Self {
            screen,
            blocks,
            progress,
            said,
            ledger,
        })
    }

    /// Queues what `render` makes of the screen as it will be then. The receiver is told when it is written.
    pub(super) fn submit(
        &self,
        render: impl FnOnce(&mut Screen) -> Vec<u8>,
    ) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let mut screen = lock(&self.screen);
        let bytes = render(&mut screen);
        // If the thread is gone, the sender is dropped with the block, which the receiver sees as done.
        let _gone = self.blocks.send(Block {
            bytes,
            done: Some(done),
        });
        receiver
    }

    /// Queues a line of the supervisor's own, unless too many wait already.
    pub(super) fn say(&self, line: &str) {
        if self.said.fetch_add(1, Ordering::Relaxed) >= WAITING_LINES {
            self.said.fetch_sub(1, Ordering::Relaxed);
            self.ledger.add(
                "from the supervisor's own messages (the console was stalled)",
                line.len() as u64 + 1,
                1,
            );
            return;
        }
        let bytes = lock(&self.screen).own_line(line);
        let _gone = self.blocks.send(Block { bytes, done: None });
    }

    /// Waits until everything queued so far is written.
    pub(super) async fn flushed(&self) {
        // An error means that the thread is gone: nothing will be written any more.
        let _gone = self.submit(|_| Vec::new()).await;
    }

    /// Bytes written so far.
    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

impl Writer {
    fn serve(mut self, blocks: &blocking::Receiver<Block>) {
        while let Ok(block) = blocks.recv() {
            self.write(&block.bytes);
            match block.done {
                // The stream may have stopped waiting.
                Some(done) => drop(done.send(())),
                None => drop(self.said.fetch_sub(1, Ordering::Relaxed)),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(error) = self.broken {
                let what = format!("from {} ({})", self.name, std::io::Error::from(error));
                self.ledger.add(
                    &what,
                    rest.len() as u64,
                    memchr::memchr_iter(b'\n', rest).count() as u64,
                );
                return;
            }
            match rustix::io::write(&self.target, &rest[..rest.len().min(CHUNK_BYTES)]) {
                Ok(written) => {
                    rest = &rest[written..];
                    self.progress.fetch_add(written as u64, Ordering::Relaxed);
                }
                Err(Errno::INTR) => {}
                // Whoever shares the terminal with us made it non-blocking.
                Err(Errno::AGAIN) => {
                    let _interrupted = poll(&mut [PollFd::new(&self.target, PollFlags::OUT)], None);
                }
                Err(error) => self.broken = Some(error),
            }
        }
    }
}
