// SPDX-License-Identifier: Apache-2.0
//! What an error of etcd means: for whether the request was carried out, and for the people who must do something.

use std::error::Error;

use etcd_client::Error as ClientError;
use steadfast_core::LeaseId;

use crate::StoreError;

/// Why one try of a request did not work out.
#[derive(Debug)]
pub(super) enum Failure {
    /// The lease has ended. Nothing was done.
    LeaseNotFound,
    /// The revision that was asked for is forgotten.
    Compacted,
    /// etcd wants a login, or a new one. Nothing was done.
    LoginNeeded(String),
    /// etcd said no, and would say it again. Nothing was done. In words, with what to do.
    Refused(String),
    /// Nothing was done, and this endpoint cannot do it now; perhaps another one can.
    NotDone(String),
    /// It may or may not have been done; the connection or the endpoint is in trouble.
    Unknown(String),
}

impl Failure {
    /// For people.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::LeaseNotFound => "the lease has ended".to_owned(),
            Self::Compacted => "etcd has forgotten that revision".to_owned(),
            Self::Refused(reason)
            | Self::LoginNeeded(reason)
            | Self::NotDone(reason)
            | Self::Unknown(reason) => reason,
        }
    }

    /// The error for the caller of the store, where `lease` is what the request was about, if any.
    pub(super) fn into_store_error(self, lease: Option<LeaseId>) -> StoreError {
        match self {
            Self::LeaseNotFound => StoreError::LeaseNotFound(lease.unwrap_or_default()),
            Self::NotDone(reason) | Self::Unknown(reason) => StoreError::Unavailable(reason),
            Self::Compacted | Self::Refused(_) | Self::LoginNeeded(_) => {
                StoreError::Refused(self.into_words())
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            // What etcd answers has this form; what goes wrong on the way has other words.
            ClientError::GRpcStatus(status) => from_etcd(status.message())
                .unwrap_or_else(|| Self::Unknown(chain(&status, status.message()))),
            ClientError::LeaseKeepAliveError(reason) if reason == "lease not found" => {
                Self::LeaseNotFound
            }
            ClientError::TransportError(error) => Self::Unknown(chain(&error, &error.to_string())),
            other => Self::Unknown(other.to_string()),
        }
    }
}

/// What etcd's own message means; `None` if it is not etcd's.
pub(super) fn from_etcd(message: &str) -> Option<Failure> {
    if !message.contains("etcdserver: ") {
        return None;
    }
    let says = |part: &str| message.contains(part);
    let failure = if says("requested lease not found") {
        Failure::LeaseNotFound
    } else if says("required revision has been compacted") {
        Failure::Compacted
    } else if says("invalid auth token")
        || says("user name is empty")
        || says("revision of auth store is old")
    {
        Failure::LoginNeeded(format!(
            "etcd wants a login ({message}): set a user and a password"
        ))
    } else if says("no leader") || says("too many requests") || says("not supported for learner") {
        Failure::NotDone(message.to_owned())
    } else if let Some(advice) = advice(message) {
        Failure::Refused(format!("{advice} ({message})"))
    } else if ["timed out", "leader changed", "stopped", "stopping"]
        .iter()
        .any(|part| says(part))
    {
        Failure::Unknown(message.to_owned())
    } else {
        Failure::Refused(message.to_owned())
    };
    Some(failure)
}

/// What to do about a no of etcd.
fn advice(message: &str) -> Option<&'static str> {
    const ADVICE: [(&str, &str); 7] = [
        (
            "database space exceeded",
            "etcd's database is full, so it takes no writes: compact it (etcdctl compact REVISION), defragment it \
             (etcdctl defrag) and clear the alarm (etcdctl alarm disarm), or start etcd with a larger \
             --quota-backend-bytes",
        ),
        (
            "corrupt",
            "etcd has found its members' data to differ and stopped working: see `etcdctl alarm list`, and replace \
             the member that is wrong",
        ),
        (
            "permission denied",
            "etcd's user may not do this: grant its role reading and writing of all keys under the prefix \
             (etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/)",
        ),
        (
            "authentication failed",
            "etcd does not accept the user or the password: check both",
        ),
        (
            "request is too large",
            "the request is larger than etcd takes: start etcd with a larger --max-request-bytes",
        ),
        (
            "unhealthy cluster",
            "etcd takes no change of its members before all have been connected for some seconds",
        ),
        (
            "too many operations in txn",
            "the transaction has more operations than etcd takes: start etcd with a larger --max-txn-ops",
        ),
    ];
    ADVICE
        .iter()
        .find(|(part, _)| message.contains(part))
        .map(|(_, advice)| *advice)
}

/// An error with its causes, each said once.
pub(super) fn chain(error: &(dyn Error + 'static), first: &str) -> String {
    let mut text = first.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(message: &str) -> String {
        match from_etcd(message) {
            Some(Failure::Refused(text)) => text,
            other => panic!("{message}: {other:?}"),
        }
    }

    #[test]
    fn etcds_refusals_say_what_to_do() {
        for (message, word) in [
            ("etcdserver: mvcc: database space exceeded", "alarm disarm"),
            ("etcdserver: permission denied", "grant-permission"),
            (
                "etcdserver: authentication failed, invalid user ID or password",
                "check both",
            ),
            ("etcdserver: request is too large", "--max-request-bytes"),
            (
                "etcdserver: too many operations in txn request",
                "--max-txn-ops",
            ),
            ("etcdserver: corrupt cluster", "alarm list"),
            ("etcdserver: unhealthy cluster", "some seconds"),
        ] {
            let text = refusal(message);
            assert!(text.contains(word) && text.contains(message), "{text}");
        }
        // Something new is at least passed on.
        assert!(refusal("etcdserver: the moon is full").contains("moon"));
    }

    #[test]
    fn whether_a_request_was_done_is_told_apart() {
        let not_done = ["etcdserver: no leader", "etcdserver: too many requests"];
        for message in not_done {
            assert!(matches!(from_etcd(message), Some(Failure::NotDone(_))));
        }
        let unknown = [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
        ];
        for message in unknown {
            assert!(
                matches!(from_etcd(message), Some(Failure::Unknown(_))),
                "{message}"
            );
        }
        for message in [
            "etcdserver: invalid auth token",
            "etcdserver: user name is empty",
        ] {
            assert!(matches!(from_etcd(message), Some(Failure::LoginNeeded(_))));
        }
        assert!(from_etcd("transport error").is_none());
    }
}
