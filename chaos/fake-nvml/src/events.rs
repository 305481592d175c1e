// SPDX-License-Identifier: Apache-2.0
//! Event sets: which GPUs and kinds each one takes, and how far it has got.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::abi::{INVALID_ARGUMENT, Return};
use crate::state::{Event, State};

#[derive(Debug, Default)]
struct Set {
    /// Kinds of events, by GPU.
    registered: BTreeMap<usize, u64>,
    /// The last event that was delivered, or was there when the set was made.
    last: u64,
}

#[derive(Debug, Default)]
struct Sets {
    sets: BTreeMap<usize, Set>,
    made: usize,
}

static SETS: Mutex<Option<Sets>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Sets) -> T) -> T {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    act(sets.get_or_insert_default())
}

/// Makes a set. Gives its number, which is never 0.
pub(crate) fn create(state: &State) -> usize {
    let last = state.events.iter().map(|event| event.id).max();
    with(|sets| {
        sets.made += 1;
        let set = Set {
            last: last.unwrap_or_default(),
            ..Set::default()
        };
        sets.sets.insert(sets.made, set);
        sets.made
    })
}

/// Adds kinds of events of a GPU.
pub(crate) fn register(number: usize, gpu: usize, kinds: u64) -> Result<(), Return> {
    with(|sets| {
        let set = sets.sets.get_mut(&number).ok_or(INVALID_ARGUMENT)?;
        *set.registered.entry(gpu).or_default() |= kinds;
        Ok(())
    })
}

/// The GPUs of a set.
pub(crate) fn gpus(number: usize) -> Result<Vec<usize>, Return> {
    with(|sets| {
        let set = sets.sets.get(&number).ok_or(INVALID_ARGUMENT)?;
        Ok(set.registered.keys().copied().collect())
    })
}

/// The next event for a set, if there is one.
pub(crate) fn next(number: usize, state: &State) -> Result<Option<Event>, Return> {
    let age = u64::try_from(crate::state::age().as_millis()).unwrap_or(u64::MAX);
    with(|sets| {
        let set = sets.sets.get_mut(&number).ok_or(INVALID_ARGUMENT)?;
        let mut due = state.events.iter().filter(|event| {
            let kinds = set.registered.get(&event.gpu).copied().unwrap_or_default();
            event.id > set.last && event.after_ms <= age && kinds & event.kind != 0
        });
        let found = due.next().copied();
        if let Some(event) = found {
            set.last = event.id;
        }
        Ok(found)
    })
}

/// Forgets a set.
pub(crate) fn free(number: usize) -> Result<(), Return> {
    let known = with(|sets| sets.sets.remove(&number).is_some());
    known.then_some(()).ok_or(INVALID_ARGUMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(events: &str) -> State {
        serde_json::from_str(&format!(
            r#"{{"gpus": [{{}}, {{}}], "events": [{events}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_set_gets_what_was_registered_with_it_once_and_nothing_older() {
        let set = create(&state(r#"{"id": 1, "gpu": 0, "xid": 13}"#));
        register(set, 0, 8).unwrap();
        let other = create(&state(""));
        register(other, 1, 8).unwrap();
        let now = state(
            r#"{"id": 1, "gpu": 0, "xid": 13}, {"id": 2, "gpu": 1, "xid": 31},
               {"id": 3, "gpu": 0, "kind": 2}, {"id": 4, "gpu": 0, "xid": 79}"#,
        );
        let delivered = next(set, &now).unwrap().map(|event| event.xid);
        assert_eq!(delivered, Some(79));
        assert!(next(set, &now).unwrap().is_none());
        let delivered = next(other, &now).unwrap().map(|event| event.xid);
        assert_eq!(delivered, Some(31));
        free(set).unwrap();
        assert!(next(set, &now).is_err());
        free(other).unwrap();
    }
}
