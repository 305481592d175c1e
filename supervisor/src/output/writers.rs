// SPDX-License-Identifier: Apache-2.0
//! The threads that write log files: one, unless a file makes it hang.
//!
//! Whoever has waited too long while others wait as well asks for another thread ([`Writers::relieve`]). So a file
//! that hangs costs the others a moment, and many files cost one awakening.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::lock;
use super::log_file::{Reply, Writer};

/// The threads call the system and little else.
const STACK_BYTES: usize = 128 * 1024;

/// A way to the threads. They end when the last one is dropped.
#[derive(Debug)]
pub(super) struct Writers {
    pool: Arc<Pool>,
}

/// What a thread is to write, and whom it tells.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) writer: Box<Writer>,
    /// Bytes in the spool.
    pub(super) bytes: u64,
    pub(super) reply: mpsc::UnboundedSender<Reply>,
}

#[derive(Debug, Default)]
struct Pool {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

impl Writers {
    /// Starts the first thread.
    pub(super) fn start() -> io::Result<Self> {
        let writers = Self {
            pool: Arc::default(),
        };
        writers.add_thread()?;
        Ok(writers)
    }

    /// Queues a job.
    pub(super) fn submit(&self, job: Job) {
        lock(&self.pool.queue).jobs.push_back(job);
        self.pool.filled.notify_one();
    }

    /// Starts another thread if jobs wait and no thread does: those that there are hang.
    pub(super) fn relieve(&self) {
        let needed = {
            let queue = lock(&self.pool.queue);
            !queue.jobs.is_empty() && queue.idle == 0
        };
        if needed {
            // Without it the files wait, which is noticed and told as any stall is.
            let _no_thread = self.add_thread();
        }
    }

    fn add_thread(&self) -> io::Result<()> {
        let pool = Arc::clone(&self.pool);
        std::thread::Builder::new()
            .name("log-file".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || pool.serve())
            .map(drop)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let mut queue = lock(&self.pool.queue);
        queue.closed = true;
        // What these were to write stays in the spools.
        queue.jobs.clear();
        self.pool.filled.notify_all();
    }
}

impl Pool {
    fn serve(&self) {
        while let Some(job) = self.next() {
            let Job {
                mut writer,
                bytes,
                reply,
            } = job;
            let (unwritten, error) = writer.write(bytes);
            // The stream may be gone.
            let _gone = reply.send(Reply {
                writer,
                unwritten,
                error,
            });
        }
    }

    /// The next job; `None` if this thread is not needed any more.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.idle > 0 {
                return None;
            }
            queue.idle += 1;
            queue = self
                .filled
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}
