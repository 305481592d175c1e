// SPDX-License-Identifier: Apache-2.0
//! What one end of a stream must not do. It ends that stream, and nothing else.

use std::time::Duration;

use tonic::{Code, Status};

use super::{LARGEST_MESSAGE, PEER_PROTOCOL_VERSION};

/// What the other end did. Texts of its making are quoted and cut short.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// Another version of the messages.
    #[error(
        "it speaks version {theirs} of the messages between agents, this end version {PEER_PROTOCOL_VERSION}; run the \
         same version of steadfast on every node"
    )]
    Version {
        /// The other end's version.
        theirs: u32,
    },
    /// Another job.
    #[error("it belongs to the job {theirs:?}, and this is another one")]
    Job {
        /// The other end's job.
        theirs: String,
    },
    /// It claims to be another node than its certificate says.
    #[error("it says that it is the node {claimed:?}, but its certificate belongs to {owner:?}")]
    Node {
        /// The node that it claims to be.
        claimed: String,
        /// The node that its certificate belongs to.
        owner: String,
    },
    /// Nothing came.
    #[error("it did not introduce itself within {0:?}")]
    NoIntroduction(Duration),
    /// A message that has no place there.
    #[error("it sent {0} where that does not belong")]
    Unexpected(&'static str),
    /// A message without anything that this version knows.
    #[error("it sent a message that says nothing")]
    Empty,
    /// A message that cannot be decoded.
    #[error("it sent what is no message")]
    Garbage,
    /// A message that is too large.
    #[error("it sent a message of more than {LARGEST_MESSAGE} bytes")]
    Oversize,
    /// Far more heartbeats than agreed.
    #[error("it sends far more heartbeats than agreed")]
    Flood,
    /// Orders pile up.
    #[error("it does not read what it is sent")]
    NotReading,
    /// An answer that nobody asked for.
    #[error("it answered the request {id}, which was not made")]
    NotAsked {
        /// Number of the request.
        id: u64,
    },
    /// An answer that is larger than asked for.
    #[error("its answer to the request {id} is larger than the {most} bytes asked for")]
    TooMuchEvidence {
        /// Number of the request.
        id: u64,
        /// How large it may be.
        most: u64,
    },
}

impl Violation {
    /// What a failed read means, if it means that the other end misbehaved and not that the connection broke.
    pub(super) fn of_read(status: &Status) -> Option<Self> {
        // What has a source comes from the connection.
        if std::error::Error::source(status).is_some() {
            return None;
        }
        match status.code() {
            Code::OutOfRange => Some(Self::Oversize),
            Code::Internal | Code::InvalidArgument | Code::Unimplemented => Some(Self::Garbage),
            _ => None,
        }
    }

    /// As the other end hears it.
    pub(super) fn to_status(&self) -> Status {
        let code = match self {
            Self::Version { .. } => Code::FailedPrecondition,
            Self::Job { .. } => Code::NotFound,
            Self::Node { .. } => Code::PermissionDenied,
            Self::NoIntroduction(_) => Code::DeadlineExceeded,
            Self::Oversize | Self::Flood | Self::NotReading | Self::TooMuchEvidence { .. } => {
                Code::ResourceExhausted
            }
            Self::Unexpected(_) | Self::Empty | Self::Garbage | Self::NotAsked { .. } => {
                Code::InvalidArgument
            }
        };
        Status::new(code, format!("the leader does not take this node: {self}"))
    }
}

/// The beginning of a text of the other end's making, up to so many characters.
pub(super) fn cut_short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_texts_are_quoted_and_cut_short() {
        let job = cut_short(&"é\n".repeat(1_000), 64);
        let text = Violation::Job { theirs: job }.to_string();
        assert!(text.len() < 250, "{text}");
        assert!(!text.contains('\n'));
        assert_eq!(cut_short("tiny", 4), "tiny");
    }

    #[test]
    fn a_broken_connection_is_no_violation() {
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(Violation::of_read(&broken), None);
        assert_eq!(Violation::of_read(&Status::cancelled("")), None);
        let garbage = Status::internal("failed to decode");
        assert_eq!(Violation::of_read(&garbage), Some(Violation::Garbage));
    }
}
