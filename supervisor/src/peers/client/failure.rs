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
pub(in crate::peers) enum StreamFailure {
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
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
        match tls {
            Some(rustls::Error::InvalidCertificate(_)) => Self::WrongCertificate,
            Some(rustls::Error::AlertReceived(AlertDescription::AccessDenied)) => Self::NotAccepted,
            Some(error) => Self::Tls(rustls::Error::clone(error)),
            None => Self::Connect {
                address: address.to_owned(),
                source: error,
            },
        }
    }

    /// What the end of a stream with that status means.
    pub(super) fn of_status(status: Status) -> Self {
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
