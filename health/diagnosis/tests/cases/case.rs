// SPDX-License-Identifier: Apache-2.0
//! Reading kept cases, and comparing answers with the right ones.

use std::fs;
use std::path::Path;

use serde_json::Value;
use steadfast_diagnosis::{Action, Evidence, EvidenceFile, Rules, diagnose};
use toml::Table;

/// The kinds of cases that are judged from text alone.
const KINDS: [&str; 3] = ["logs", "kmsg", "hang"];

/// A case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) files: Vec<EvidenceFile>,
    pub(crate) expected: Table,
}

impl Case {
    /// The names of its nodes.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let tables = ["context.toml", "state.toml"].map(|name| {
            let file = self.files.iter().find(|file| file.name == name);
            file.map(|file| file.text.parse::<Table>().unwrap())
        });
        let mut names: Vec<String> = tables
            .iter()
            .flatten()
            .flat_map(|table| [("node", "name"), ("rank", "node")].map(|keys| (table, keys)))
            .filter_map(|(table, (list, key))| Some((table.get(list)?.as_array()?, key)))
            .flat_map(|(list, key)| list.iter().map(move |entry| &entry[key]))
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names.dedup();
        // One letter may be anything.
        names.retain(|name| name.len() > 1);
        names
    }
}

/// Every case of these kinds.
pub(crate) fn all() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut cases = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let expected: Table = fs::read_to_string(path.join("expected.toml"))
            .unwrap()
            .parse()
            .unwrap();
        if !KINDS.contains(&expected["kind"].as_str().unwrap()) {
            continue;
        }
        let mut files = Vec::new();
        for file in fs::read_dir(&path).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            if !["expected.toml", "source.txt"].contains(&name.as_str()) {
                files.push(EvidenceFile {
                    text: String::from_utf8_lossy(&fs::read(file.path()).unwrap()).into_owned(),
                    name,
                    skipped_lines: 0,
                });
            }
        }
        cases.push(Case {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            files,
            expected,
        });
    }
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    cases
}

/// What is wrong with the answer for these files of a case.
pub(crate) fn judge(case: &Case, files: &[EvidenceFile]) -> Vec<String> {
    let answer = diagnose(&Evidence::new(files.to_vec()), Rules::built_in());
    let json = answer.json();
    let expected = &case.expected;
    let mut wrong = Vec::new();
    let is_fault = expected["fault"].as_bool().unwrap();
    if answer.fault != is_fault {
        wrong.push(format!("fault is {}: {}", answer.fault, answer.summary));
    }
    if is_fault {
        let culprit = &json["culprit"];
        let pairs = [
            ("class", &json["class"], one_of(expected, "class")),
            ("action", &json["action"], one_of(expected, "action")),
            (
                "culprit_rank",
                &culprit["rank"],
                one_of(expected, "culprit_rank"),
            ),
            (
                "culprit_node",
                &culprit["node"],
                one_of(expected, "culprit_node"),
            ),
            ("gpu", &culprit["gpu"], one_of(expected, "gpu")),
        ];
        for (name, given, allowed) in pairs {
            if !allowed.is_empty() && !allowed.contains(given) {
                wrong.push(format!("{name} is {given}, not {allowed:?}"));
            }
        }
        for innocent in texts(expected, "must_not_blame") {
            if is_blamed(&json, &innocent) {
                wrong.push(format!("{innocent} is blamed"));
            }
        }
    }
    let most = expected
        .get("confidence_max")
        .and_then(toml::Value::as_float);
    if most.is_some_and(|most| is_fault && answer.confidence > most) {
        wrong.push(format!("confidence is {}", answer.confidence));
    }
    let acts = answer.fault && answer.action != Action::ReportOnly;
    if expected.get("must_not_act").is_some() && acts {
        wrong.push("it acts".to_owned());
    }
    let incidents = expected.get("incidents").and_then(toml::Value::as_integer);
    if incidents.is_some_and(|incidents| json["incidents"] != incidents) {
        wrong.push(format!("incidents are {}", json["incidents"]));
    }
    if let Some(events) = expected.get("event").and_then(toml::Value::as_array) {
        wrong.extend(compare_events(events, &answer.events));
    }
    wrong
}

fn compare_events(expected: &[toml::Value], given: &[Value]) -> Vec<String> {
    if expected.len() != given.len() {
        return vec![format!("{} events, not {}", given.len(), expected.len())];
    }
    let pairs = expected.iter().zip(given);
    pairs
        .flat_map(|(expected, given)| {
            let fields = expected.as_table().unwrap().iter();
            fields.filter_map(|(name, value)| {
                let value = as_json(value);
                let given = &given[name.as_str()];
                (*given != value).then(|| format!("event's {name} is {given}, not {value}"))
            })
        })
        .collect()
}

fn one_of(expected: &Table, name: &str) -> Vec<Value> {
    let mut allowed: Vec<Value> = expected.get(name).map(as_json).into_iter().collect();
    allowed.extend(texts(expected, &format!("{name}_also")).map(Value::String));
    allowed
}

fn texts(expected: &Table, name: &str) -> impl Iterator<Item = String> {
    let list = expected.get(name).and_then(toml::Value::as_array);
    let texts = list.into_iter().flatten();
    texts
        .map(|text| text.as_str().unwrap().to_owned())
        .collect::<Vec<String>>()
        .into_iter()
}

fn as_json(value: &toml::Value) -> Value {
    match value {
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Boolean(truth) => Value::from(*truth),
        other => Value::from(other.as_str().unwrap()),
    }
}

fn is_blamed(json: &Value, innocent: &str) -> bool {
    let (kind, name) = innocent.split_once(':').unwrap();
    let culprit = &json["culprit"];
    let among = |list: &Value| {
        list.as_array()
            .is_some_and(|list| list.iter().any(|one| one == name))
    };
    match kind {
        "rank" => culprit["rank"] == name.parse::<u32>().unwrap(),
        "node" => culprit["node"] == name || among(&culprit["nodes"]),
        "gpu" => culprit["gpu"] == name || among(&culprit["gpus"]),
        _ => json["class"] == name,
    }
}

/// Replaces a name where it is a word of its own.
pub(crate) fn replace_word(text: &str, word: &str, by: &str) -> String {
    let pattern = format!(r"(^|[^A-Za-z0-9]){}($|[^A-Za-z0-9])", regex::escape(word));
    let pattern = regex::Regex::new(&pattern).unwrap();
    // Neighbours share the character between them.
    let once = pattern.replace_all(text, format!("${{1}}{by}${{2}}"));
    pattern
        .replace_all(&once, format!("${{1}}{by}${{2}}"))
        .into_owned()
}
