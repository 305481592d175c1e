// SPDX-License-Identifier: Apache-2.0
//! One request: within its time, on whichever endpoint answers, and never done twice unless that does no harm.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::endpoints::Endpoints;
use super::failure::Failure;
use crate::retry::RetryPolicy;

const SILENCE: &str = "no answer in time";
/// More than this comes in only where etcd sends what was asked for; less may be answers to pings, which etcd gives even
/// when it can do nothing else.
const SIGN_OF_WORK_BYTES: u64 = 1024;

/// Whether a request may be sent again when it is not known what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or the same thing once more.
    Harmless,
    /// The second time would see what the first one did.
    Never,
}

/// What came of a request.
pub(super) struct Answer<T> {
    pub(super) value: Result<T, Failure>,
    /// An earlier try may have been carried out as well.
    pub(super) is_repetition: bool,
}

/// Does a request within `timeout`, other endpoints included. `what` completes "no answer to ...".
pub(super) async fn request<T, F, R>(
    endpoints: &Arc<Endpoints>,
    repeat: Repeat,
    timeout: Duration,
    what: &str,
    call: F,
) -> Answer<T>
where
    F: Fn(Client, Arc<Connection>) -> R + Send + Sync,
    R: Future<Output = Result<T, Failure>> + Send,
{
    let mut request = Request {
        endpoints,
        repeat,
        what,
        timeout,
        deadline: Instant::now() + timeout,
        logged_in_again: false,
        is_repetition: false,
        trouble: String::new(),
    };
    let mut delays = RetryPolicy::EndpointsWithinRequest.delays();
    let value = loop {
        let connection = match request.connection().await {
            Ok(connection) => connection,
            Err(failure) => break Err(failure),
        };
        let logins = connection.logins();
        let received = connection.received_bytes();
        let began = Instant::now();
        let limit = request.end_of_try(began);
        let answer = timeout_at(limit, call(connection.client(), Arc::clone(&connection))).await;
        let failure = match answer {
            Ok(Ok(value)) => break Ok(value),
            Ok(Err(failure)) => {
                request.leave_if_broken(&connection, &failure);
                failure
            }
            Err(_) => {
                let came = connection.received_bytes().saturating_sub(received);
                if came < SIGN_OF_WORK_BYTES {
                    request.leave_silent(&connection, limit.duration_since(began));
                }
                Failure::Unknown(SILENCE.to_owned())
            }
        };
        if let Some(failure) = request.take_in(failure, &connection, logins).await {
            break Err(failure);
        }
        // Past the deadline the next round says what went wrong.
        drop(timeout_at(request.deadline, sleep(delays.next_delay())).await);
    };
    Answer {
        value,
        is_repetition: request.is_repetition,
    }
}

struct Request<'a> {
    endpoints: &'a Arc<Endpoints>,
    repeat: Repeat,
    what: &'a str,
    timeout: Duration,
    deadline: Instant,
    logged_in_again: bool,
    is_repetition: bool,
    /// What went wrong last.
    trouble: String,
}

impl Request<'_> {
    async fn connection(&mut self) -> Result<Arc<Connection>, Failure> {
        let reason = match self.endpoints.connection(self.deadline).await {
            Ok(connection) if Instant::now() < self.deadline => return Ok(connection),
            Ok(_) => std::mem::take(&mut self.trouble),
            Err(Failure::NotDone(reason)) => reason,
            Err(failure) => return Err(failure),
        };
        Err(if self.is_repetition {
            Failure::Unknown(format!("no answer to {} in time ({reason})", self.what))
        } else {
            Failure::NotDone(format!("{} could not be sent ({reason})", self.what))
        })
    }

    /// Half of what is left while another endpoint could do it just as well; all of it for what is sent only once.
    fn end_of_try(&self, began: Instant) -> Instant {
        if self.repeat == Repeat::Never || self.endpoints.count() < 2 {
            return self.deadline;
        }
        began + self.deadline.saturating_duration_since(began) / 2
    }

    fn leave_if_broken(&self, connection: &Arc<Connection>, failure: &Failure) {
        if let Failure::NotDone(reason) | Failure::Unknown(reason) = failure {
            self.endpoints.abandon(connection, reason);
        }
    }

    /// A connection that had a fair time to answer is no good. One that had hardly any gets its chance with the next
    /// request; else a slow etcd would be connected to over and over. So would one that is busy sending, and each time it
    /// would begin anew with what it sends.
    fn leave_silent(&self, connection: &Arc<Connection>, waited: Duration) {
        if waited >= self.timeout / 4 {
            self.endpoints.abandon(connection, SILENCE);
        }
    }

    /// Prepares another try; returns the failure if there shall be none.
    async fn take_in(
        &mut self,
        failure: Failure,
        connection: &Arc<Connection>,
        logins: u64,
    ) -> Option<Failure> {
        match failure {
            Failure::LoginNeeded(reason) if connection.can_log_in() && !self.logged_in_again => {
                self.logged_in_again = true;
                self.trouble = format!("{}: {reason}", connection.url);
                let login = timeout_at(self.deadline, connection.log_in(logins)).await;
                let failure = login.ok()?.err()?;
                self.leave_if_broken(connection, &failure);
                // Nothing was done of the request itself, so another endpoint may have it.
                let is_final = matches!(failure, Failure::Refused(_) | Failure::LoginNeeded(_));
                is_final.then_some(failure)
            }
            Failure::NotDone(reason) => {
                self.trouble = format!("{}: {reason}", connection.url);
                None
            }
            Failure::Unknown(reason) => {
                self.trouble = format!("{}: {reason}", connection.url);
                self.is_repetition = true;
                (self.repeat == Repeat::Never).then(|| {
                    Failure::Unknown(format!(
                        "no answer to {} from {} ({reason}); it may or may not have been carried out",
                        self.what, connection.url
                    ))
                })
            }
            failure => Some(failure),
        }
    }
}
