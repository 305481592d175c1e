// SPDX-License-Identifier: Apache-2.0
//! One request: within its time, on whichever endpoint answers, and never done twice unless that does no harm.

use std::future::Future;
use std::sync::Arc;

use etcd_client::Client;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::endpoints::Endpoints;
use super::failure::Failure;
use crate::retry::RetryPolicy;

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

/// Does a request within the time that the settings give it. `what` completes "no answer to ...".
pub(super) async fn request<T, F, R>(
    endpoints: &Endpoints,
    repeat: Repeat,
    what: &str,
    call: F,
) -> Answer<T>
where
    F: Fn(Client, Arc<Connection>) -> R + Send + Sync,
    R: Future<Output = Result<T, Failure>> + Send,
{
    let deadline = Instant::now() + endpoints.settings().request_timeout;
    let mut delays = RetryPolicy::EndpointsWithinRequest.delays();
    let mut logged_in_again = false;
    let mut is_repetition = false;
    loop {
        let connection = match endpoints.connection(deadline).await {
            Ok(connection) => connection,
            Err(failure) => {
                let value = Err(with_request(failure, what, is_repetition));
                return Answer {
                    value,
                    is_repetition,
                };
            }
        };
        let logins = connection.logins().await;
        let limit = time_for_one_try(endpoints, repeat, deadline);
        let answer = timeout_at(limit, call(connection.client(), Arc::clone(&connection))).await;
        let failure = match answer {
            Ok(Err(failure)) => failure,
            Ok(value) => {
                return Answer {
                    value,
                    is_repetition,
                };
            }
            Err(_) => Failure::Unknown("no answer in time".to_owned()),
        };
        let again = match &failure {
            Failure::LoginNeeded(_) if connection.can_log_in() && !logged_in_again => {
                logged_in_again = true;
                match timeout_at(deadline, connection.log_in(logins)).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(failure)) => Some(failure),
                    Err(_) => None,
                }
            }
            Failure::NotDone(reason) => {
                endpoints.abandon(&connection, reason);
                None
            }
            Failure::Unknown(reason) => {
                endpoints.abandon(&connection, reason);
                is_repetition = true;
                (repeat == Repeat::Never).then_some(failure)
            }
            _ => Some(failure),
        };
        if let Some(failure) = again {
            let value = Err(with_url(failure, &connection.url, what));
            return Answer {
                value,
                is_repetition,
            };
        }
        // Past the deadline the next round says what went wrong.
        drop(timeout_at(deadline, sleep(delays.next_delay())).await);
    }
}

/// Half of what is left while another endpoint could do it just as well; all of it for what is sent only once.
fn time_for_one_try(endpoints: &Endpoints, repeat: Repeat, deadline: Instant) -> Instant {
    if repeat == Repeat::Never || endpoints.settings().endpoints.len() < 2 {
        return deadline;
    }
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

fn with_url(failure: Failure, url: &str, what: &str) -> Failure {
    match failure {
        Failure::Unknown(reason) => Failure::Unknown(format!(
            "no answer to {what} from {url} ({reason}); it may or may not have been carried out"
        )),
        other => other,
    }
}

fn with_request(failure: Failure, what: &str, is_repetition: bool) -> Failure {
    match failure {
        Failure::NotDone(reason) if is_repetition => {
            Failure::Unknown(format!("no answer to {what} in time ({reason})"))
        }
        Failure::NotDone(reason) => {
            Failure::NotDone(format!("{what} could not be sent ({reason})"))
        }
        other => other,
    }
}
