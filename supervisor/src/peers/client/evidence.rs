// SPDX-License-Identifier: Apache-2.0
//! The answers that this node owes the leader: what is being collected, and what is on its way piece by piece.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_core::Generation;
use steadfast_proto::v1::{EvidenceChunk, EvidenceRequest};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::PeerOrder;
use super::failure::{StreamFailure, TOO_LARGE, TOO_MANY};
use crate::peers::{EVIDENCE_PIECE, LARGEST_EVIDENCE, MOST_OPEN_REQUESTS};

/// What was collected for a request, or why nothing was.
type Collected = (EvidenceRequest, Result<Vec<u8>, String>);

/// Everything that is owed.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    collecting: JoinSet<Collected>,
    sending: VecDeque<Sending>,
}

#[derive(Debug)]
struct Sending {
    id: u64,
    data: Vec<u8>,
    sent: usize,
    failure: String,
}

impl Evidence {
    /// Has an answer collected.
    ///
    /// # Errors
    ///
    /// When the leader asks for more than agreed.
    pub(super) fn begin(
        &mut self,
        request: EvidenceRequest,
        orders: &mpsc::Sender<PeerOrder>,
    ) -> Result<(), StreamFailure> {
        if self.collecting.len() + self.sending.len() >= MOST_OPEN_REQUESTS {
            return Err(StreamFailure::Order(TOO_MANY));
        }
        if request.max_bytes > LARGEST_EVIDENCE {
            return Err(StreamFailure::Order(TOO_LARGE));
        }
        let within = Duration::from_millis(request.within_ms.into());
        let (answer, collected) = oneshot::channel();
        let order = PeerOrder::Evidence {
            generation: Generation(request.generation),
            max_bytes: request.max_bytes,
            within,
            answer,
        };
        if orders.try_send(order).is_err() {
            self.send(request, Err("its agent is too busy".to_owned()));
            return Ok(());
        }
        self.collecting.spawn(async move {
            let outcome = match timeout(within, collected).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err("its agent has given up collecting".to_owned()),
                Err(_) => Err(format!("nothing was collected within {within:?}")),
            };
            (request, outcome)
        });
        Ok(())
    }

    /// Waits for the next answer that is complete, and takes it up for sending. Pending while nothing is being collected.
    pub(super) async fn collected(&mut self) {
        match self.collecting.join_next().await {
            Some(Ok((request, outcome))) => self.send(request, outcome),
            // The task does nothing but wait, and nobody aborts it.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Whether there is a piece to send.
    pub(super) fn has_piece(&self) -> bool {
        !self.sending.is_empty()
    }

    /// The next piece to send.
    pub(super) fn next_piece(&mut self) -> Option<EvidenceChunk> {
        let sending = self.sending.front_mut()?;
        let rest = sending.data.get(sending.sent..).unwrap_or_default();
        let data = rest[..rest.len().min(EVIDENCE_PIECE)].to_vec();
        sending.sent += data.len();
        let piece = EvidenceChunk {
            id: sending.id,
            data,
            last: sending.sent >= sending.data.len(),
            failure: std::mem::take(&mut sending.failure),
        };
        if piece.last {
            self.sending.pop_front();
        }
        Some(piece)
    }

    fn send(&mut self, request: EvidenceRequest, outcome: Result<Vec<u8>, String>) {
        let size = |data: &Vec<u8>| u64::try_from(data.len()).unwrap_or(u64::MAX);
        let (data, failure) = match outcome {
            Ok(data) if size(&data) > request.max_bytes => {
                let failure = format!(
                    "what was collected has {} bytes, more than the {} asked for",
                    data.len(),
                    request.max_bytes
                );
                (Vec::new(), failure)
            }
            Ok(data) => (data, String::new()),
            Err(mut failure) if failure.is_empty() => {
                failure.push_str("no reason given");
                (Vec::new(), failure)
            }
            Err(failure) => (Vec::new(), failure.chars().take(1_000).collect()),
        };
        self.sending.push_back(Sending {
            id: request.id,
            data,
            sent: 0,
            failure,
        });
    }
}
