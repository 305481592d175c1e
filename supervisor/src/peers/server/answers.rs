// SPDX-License-Identifier: Apache-2.0
//! Puts the pieces of a node's answers together, within what was asked for.

use std::collections::BTreeMap;

use steadfast_proto::v1::EvidenceChunk;
use tokio::sync::OwnedSemaphorePermit;

use super::registry::Ask;
use crate::peers::violation::cut_short;
use crate::peers::{EvidenceBundle, EvidenceFailure, MOST_OPEN_REQUESTS, Violation};

/// How many characters of a node's excuse are kept.
const LONGEST_EXCUSE: usize = 500;

/// An answer, and the number of its request.
pub(super) type Answer = (u64, Result<EvidenceBundle, EvidenceFailure>);

/// The answers that one node owes.
#[derive(Debug, Default)]
pub(super) struct Answers {
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    most: u64,
    data: Vec<u8>,
    room: OwnedSemaphorePermit,
}

impl Answers {
    /// Whether one more may be asked for.
    pub(super) fn has_room(&self) -> bool {
        self.open.len() < MOST_OPEN_REQUESTS
    }

    /// Expects the answer to a request that is being made.
    pub(super) fn expect(&mut self, ask: Ask) {
        let open = Open {
            most: ask.bounds.max_bytes,
            data: Vec::new(),
            room: ask.room,
        };
        self.open.insert(ask.id, open);
    }

    /// Takes a piece. Returns the answer that it completes, if it does.
    ///
    /// # Errors
    ///
    /// A [`Violation`]: the node has sent what was not asked for.
    pub(super) fn take(&mut self, piece: &EvidenceChunk) -> Result<Option<Answer>, Violation> {
        let id = piece.id;
        let Some(open) = self.open.get_mut(&id) else {
            return Err(Violation::NotAsked { id });
        };
        if !piece.failure.is_empty() {
            self.open.remove(&id);
            let excuse = cut_short(&piece.failure, LONGEST_EXCUSE);
            return Ok(Some((id, Err(EvidenceFailure(excuse)))));
        }
        if piece.data.is_empty() && !piece.last {
            return Err(Violation::Empty);
        }
        let length = open.data.len().saturating_add(piece.data.len());
        if u64::try_from(length).unwrap_or(u64::MAX) > open.most {
            return Err(Violation::TooMuchEvidence {
                id,
                most: open.most,
            });
        }
        open.data.extend_from_slice(&piece.data);
        if !piece.last {
            return Ok(None);
        }
        Ok(self.open.remove(&id).map(|open| {
            let bundle = EvidenceBundle {
                data: open.data,
                _room: open.room,
            };
            (id, Ok(bundle))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use steadfast_core::Generation;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::peers::EvidenceBounds;

    fn expecting(id: u64, max_bytes: u64, rooms: &Arc<Semaphore>) -> Answers {
        let bounds = EvidenceBounds {
            generation: Generation(1),
            max_bytes,
            within: Duration::from_secs(1),
        };
        let permits = u32::try_from(max_bytes).unwrap();
        let room = Arc::clone(rooms).try_acquire_many_owned(permits).unwrap();
        let mut answers = Answers::default();
        answers.expect(Ask { id, bounds, room });
        answers
    }

    fn piece(id: u64, data: &[u8], last: bool) -> EvidenceChunk {
        EvidenceChunk {
            id,
            data: data.to_vec(),
            last,
            failure: String::new(),
        }
    }

    #[test]
    fn pieces_make_an_answer_and_its_room_is_kept_until_it_is_dropped() {
        let rooms = Arc::new(Semaphore::new(10));
        let mut answers = expecting(7, 10, &rooms);
        assert!(answers.take(&piece(7, b"hello", false)).unwrap().is_none());
        let (id, answer) = answers.take(&piece(7, b"world", true)).unwrap().unwrap();
        let bundle = answer.unwrap();
        assert_eq!((id, bundle.data.as_slice()), (7, &b"helloworld"[..]));
        assert_eq!(rooms.available_permits(), 0);
        drop(bundle);
        assert_eq!(rooms.available_permits(), 10);
        assert_eq!(
            answers.take(&piece(7, b"more", true)).unwrap_err(),
            Violation::NotAsked { id: 7 }
        );
    }

    #[test]
    fn more_than_asked_for_is_a_violation_and_an_excuse_is_none() {
        let rooms = Arc::new(Semaphore::new(100));
        let mut answers = expecting(1, 4, &rooms);
        assert_eq!(
            answers.take(&piece(1, b"12345", true)).unwrap_err(),
            Violation::TooMuchEvidence { id: 1, most: 4 }
        );
        drop(answers);
        let mut answers = expecting(1, 4, &rooms);
        let empty = answers.take(&piece(1, b"", false)).unwrap_err();
        assert_eq!(empty, Violation::Empty);
        let excuse = EvidenceChunk {
            failure: "x".repeat(5_000),
            ..piece(1, b"", true)
        };
        let (_, answer) = answers.take(&excuse).unwrap().unwrap();
        assert!(answer.unwrap_err().0.len() <= LONGEST_EXCUSE + 3);
        assert!(answers.has_room());
        drop(answers);
        assert_eq!(rooms.available_permits(), 100);
    }

    proptest! {
        #[test]
        fn whatever_comes_no_answer_is_larger_than_asked_for(
            pieces in prop::collection::vec(
                (0..3_u64, prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..40),
            most in 0..100_u64,
        ) {
            let rooms = Arc::new(Semaphore::new(100));
            let mut answers = expecting(1, most, &rooms);
            for (id, data, last) in pieces {
                match answers.take(&piece(id, &data, last)) {
                    Ok(Some((_, answer))) => prop_assert!(answer.unwrap().data.len() as u64 <= most),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
