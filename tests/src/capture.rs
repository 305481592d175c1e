// SPDX-License-Identifier: Apache-2.0
//! Collects what a process writes while it runs.

use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// A stream that is being read to its end by a thread.
#[derive(Debug)]
pub(crate) struct Capture {
    collected: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Reads `stream`; nothing at all when it is absent.
    pub(crate) fn start(stream: Option<impl Read + Send + 'static>) -> Capture {
        let collected = Arc::new(Mutex::new(Vec::new()));
        let thread = stream.map(|mut stream| {
            let collected = Arc::clone(&collected);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    collected
                        .lock()
                        .unwrap()
                        .extend_from_slice(&buffer[..length]);
                }
            })
        });
        Capture { collected, thread }
    }

    /// Whether every process that could write has closed its end.
    pub(crate) fn is_at_end(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub(crate) fn so_far(&self) -> MutexGuard<'_, Vec<u8>> {
        self.collected.lock().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.so_far()).into_owned()
    }
}
