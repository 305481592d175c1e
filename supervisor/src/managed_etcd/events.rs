// SPDX-License-Identifier: Apache-2.0
//! What a managed etcd wants of the agent.

use std::os::fd::OwnedFd;

use tokio::sync::mpsc;

use crate::keeper::protocol::Request;

/// Something for the agent to do.
#[derive(Debug)]
pub(crate) enum Event {
    /// To be passed on to the keeper, with these descriptors.
    Ask(Request, Vec<OwnedFd>),
    /// To be said to the user and written into the journal.
    News {
        /// Its name in the journal.
        name: &'static str,
        /// A whole message.
        text: String,
    },
}

/// Where the tasks put them.
#[derive(Debug, Clone)]
pub(super) struct Events(pub(super) mpsc::UnboundedSender<Event>);

impl Events {
    pub(super) fn ask(&self, request: Request, descriptors: Vec<OwnedFd>) {
        self.put(Event::Ask(request, descriptors));
    }

    pub(super) fn news(&self, name: &'static str, text: String) {
        self.put(Event::News { name, text });
    }

    fn put(&self, event: Event) {
        // An agent that does not listen any more is about to end, and its tasks with it.
        drop(self.0.send(event));
    }
}
