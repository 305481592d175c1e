// SPDX-License-Identifier: Apache-2.0
//! Events of the node, for people and for the journal.

use serde_json::{Value, json};
use steadfast_health::gpus::Owner;
use steadfast_health::incidents::{Closed, Judged};

/// For a person: what, whose, what it means, and what is to be done.
pub(super) fn words(judged: &Judged, owner: Owner) -> String {
    let whose = match owner {
        Owner::Worker(rank) => format!(" (local rank {rank})"),
        Owner::Job | Owner::Unknown | Owner::Other => String::new(),
    };
    let process = judged
        .event
        .process()
        .map_or_else(String::new, |process| format!(", {process}"));
    format!(
        "{}{whose}{process}: {}. {}",
        judged.event.title(),
        judged.found.meaning,
        judged.found.action.advice()
    )
}

/// For the journal: everything that is known of an event.
pub(super) fn fields(judged: &Judged, owner: Owner) -> Value {
    let mut fields: serde_json::Map<String, Value> = judged
        .event
        .fields()
        .into_iter()
        // Every line of the journal has a kind of its own.
        .map(|(name, value)| {
            (
                if name == "kind" { "event" } else { name }.to_owned(),
                value,
            )
        })
        .collect();
    let found = &judged.found;
    for (name, value) in [
        ("rating", found.severity.name()),
        ("cause", found.cause.name()),
        ("action", found.action.name()),
        ("meaning", found.meaning),
        ("message", judged.event.message.as_str()),
    ] {
        fields.insert(name.to_owned(), value.into());
    }
    fields.insert("at_ns".to_owned(), judged.at_ns.into());
    fields.insert("incident".to_owned(), judged.incident.into());
    let (whose, rank) = match owner {
        Owner::Worker(rank) => ("job", Some(rank)),
        Owner::Job => ("job", None),
        Owner::Unknown => ("unknown", None),
        Owner::Other => ("other", None),
    };
    fields.insert("owner".to_owned(), whose.into());
    fields.insert("local_rank".to_owned(), rank.into());
    Value::Object(fields)
}

/// For the journal: an incident that is over.
pub(super) fn closed_fields(closed: &Closed) -> Value {
    let events: Vec<Value> = closed
        .events
        .iter()
        .map(|(event, count)| json!({ "event": event, "count": count }))
        .collect();
    json!({
        "incident": closed.incident,
        "events": events,
        "action": closed.action.name(),
        "lasted_ms": u64::try_from(closed.lasted.as_millis()).unwrap_or(u64::MAX),
    })
}
