// SPDX-License-Identifier: Apache-2.0
//! The agent's end of the line to the keeper.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use steadfast_process::channel::{Channel, Received};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::keeper::protocol::{Notice, Request};

/// The line to the keeper.
#[derive(Debug)]
pub(super) struct Link {
    channel: AsyncFd<Channel>,
    backlog: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

/// A notice and what came with it.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) notice: Notice,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Link {
    /// Must be called within a tokio runtime.
    pub(super) fn new(channel: Channel) -> io::Result<Link> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe for types that could change their descriptor; ours owns one for good"
        )]
        let channel = AsyncFd::with_interest(channel, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Link {
            channel,
            backlog: VecDeque::new(),
        })
    }

    /// Waits for the next notice. `None` means that the keeper is dead. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> io::Result<Option<Arrival>> {
        loop {
            self.flush()?;
            let interest = if self.backlog.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let mut guard = self.channel.ready(interest).await?;
            let message = match guard.get_inner().receive()? {
                Received::Message(message) => message,
                Received::Closed => return Ok(None),
                Received::Nothing => {
                    guard.clear_ready();
                    continue;
                }
            };
            let notice = serde_json::from_slice(&message.body).map_err(io::Error::other)?;
            return Ok(Some(Arrival {
                notice,
                descriptors: message.descriptors,
            }));
        }
    }

    /// Asks for something, now or as soon as the keeper reads. A dead keeper is told by [`Link::next`].
    pub(super) fn ask(&mut self, request: &Request, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let body = serde_json::to_vec(request).map_err(io::Error::other)?;
        self.backlog.push_back((body, descriptors));
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some((body, descriptors)) = self.backlog.front() {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match self.channel.get_ref().send(body, &borrowed) {
                Ok(true) => drop(self.backlog.pop_front()),
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.backlog.clear();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
