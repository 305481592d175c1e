// SPDX-License-Identifier: Apache-2.0
//! Why a stream to the leader does not stand.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::AlertDescription;
use tonic::{Code, Status};

use crate::peers::PEER_PROTOCOL_VERSION;
use crate::peers::violation::cut_short;

/// What went wrong. Always tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamFailure {
    /// The leader's agent cannot be reached.
    #[error("failed to connect to the leader's agent at {address}")]
    Connect {
        /// Where it should listen.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It did not answer.
    #[error("the leader's agent did not answer within {0:?}")]
    NoAnswer(Duration),
    /// Somebody else answers, or an agent that has been replaced meanwhile.
    #[error("another certificate answers than the one in the leader's record")]
    WrongCertificate,
    /// No encrypted connection could be made.
    #[error("failed to agree on encryption with the leader's agent")]
    Tls(#[source] rustls::Error),
    /// The leader has not seen this node's record yet, or has no member of this name.
    #[error("the leader does not know this agent's certificate (yet)")]
    NotAccepted,
    /// The leader says no.
    #[error("{0}")]
    Refused(String),
    /// Another version of the messages.
    #[error(
        "the leader speaks version {theirs} of the messages between agents, this node version {PEER_PROTOCOL_VERSION}; \
         run the same version of steadfast on every node"
    )]
    Version {
        /// The leader's version.
        theirs: u32,
    },
    /// The leader asks for what it must not ask for.
    #[error("the leader sent an order that makes no sense: {0}")]
    Order(&'static str),
    /// The leader's agent ended it.
    #[error("the leader's agent has ended the stream")]
    Closed,
    /// The connection broke.
    #[error("the connection to the leader's agent broke")]
    Broken(#[source] Status),
}

/// What is said of requests beyond all bounds.
pub(super) const TOO_MANY: &str = "more requests at a time than agreed";
pub(super) const TOO_LARGE: &str = "more evidence than agreed";

impl StreamFailure {
    /// What a failed handshake means.
    pub(super) fn of_handshake(error: io::Error, address: &str) -> Self {
        match inner::<rustls::Error>(&error) {
            Some(rustls::Error::InvalidCertificate(_)) => Self::WrongCertificate,
            Some(error) => Self::Tls(error.clone()),
            None => Self::Connect {
                address: address.to_owned(),
                source: error,
            },
        }
    }

    /// What the end of a stream with that status means.
    pub(super) fn of_status(status: Status) -> Self {
        // The leader's verdict on this node's certificate arrives after the handshake, as the first thing that is read.
        let alert = inner::<rustls::Error>(&status);
        if let Some(rustls::Error::AlertReceived(AlertDescription::AccessDenied)) = alert {
            return Self::NotAccepted;
        }
        match status.code() {
            Code::FailedPrecondition
            | Code::NotFound
            | Code::PermissionDenied
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::InvalidArgument
            | Code::Unimplemented => Self::Refused(cut_short(status.message(), 500)),
            _ => Self::Broken(status),
        }
    }

    /// With all that led to it.
    pub(super) fn in_words(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        cut_short(&text, 1_000)
    }
}

/// The error of that type among all that led to `error`.
fn inner<'a, Wanted: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a Wanted> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(wanted) = error.downcast_ref::<Wanted>() {
            return Some(wanted);
        }
        // An I/O error has what it wraps beside, not among its sources.
        let wrapped = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .map(|wrapped| wrapped as &(dyn Error + 'static));
        current = wrapped.or_else(|| error.source());
    }
    None
}
