// SPDX-License-Identifier: Apache-2.0
//! Changes that a case may go through on its way, such as by another logger, launcher or clock, and that say nothing.

use std::collections::BTreeMap;

use regex::{Captures, Regex};
use serde_json::Value;
use steadfast_diagnosis::{Evidence, EvidenceFile, Rules, diagnose};

use crate::case::Case;
use crate::{changed, ends, with_texts};

const DAY_S: u32 = 86_400;
/// Neither a whole number of minutes nor of hours.
const SHIFT_S: u32 = 2_221;

fn is_log(file: &EvidenceFile) -> bool {
    ends(file, &["log"])
}

/// The rank of `rank-N.log`.
fn rank_of(file: &EvidenceFile) -> Option<u32> {
    let name = file.name.strip_prefix("rank-")?;
    name.strip_suffix(".log")?.parse().ok()
}

#[test]
fn clocks_that_are_all_ahead_change_nothing() {
    let time = Regex::new(r"(T|_|\b)([01]\d|2[0-3]):([0-5]\d):([0-5]\d)\b").unwrap();
    let seconds = |found: &Captures<'_>| {
        let part = |index: usize| found[index].parse::<u32>().unwrap();
        part(2) * 3600 + part(3) * 60 + part(4)
    };
    let is_text = |file: &EvidenceFile| ends(file, &["log", "txt"]) || file.name == "context.toml";
    let wrong = changed(|case| {
        let over_midnight = case.files.iter().filter(|file| is_text(file)).any(|file| {
            let mut times = time.captures_iter(&file.text);
            times.any(|found| seconds(&found) + SHIFT_S >= DAY_S)
        });
        with_texts(case, |file| {
            if over_midnight || !is_text(file) {
                return file.text.clone();
            }
            let later = time.replace_all(&file.text, |found: &Captures<'_>| {
                let later = seconds(found) + SHIFT_S;
                let (hour, rest) = (later / 3600, later % 3600);
                format!("{}{hour:02}:{:02}:{:02}", &found[1], rest / 60, rest % 60)
            });
            later.into_owned()
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_way_to_write_times_changes_nothing() {
    let plain = Regex::new(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:,(\d{3}))?").unwrap();
    let wrong = changed(|case| {
        with_texts(case, |file| {
            if is_log(file) {
                plain
                    .replace_all(&file.text, |found: &Captures<'_>| {
                        let fraction = found.get(3).map_or("000", |found| found.as_str());
                        format!("{}T{}.{fraction}Z", &found[1], &found[2])
                    })
                    .into_owned()
            } else {
                file.text.clone()
            }
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files of ranks as one, line by line in turn.
fn in_one_stream(case: &Case, prefix: impl Fn(u32) -> String) -> Vec<EvidenceFile> {
    let of_ranks: Vec<(u32, Vec<&str>)> = case
        .files
        .iter()
        .filter_map(|file| Some((rank_of(file)?, file.text.lines().collect())))
        .collect();
    let mut files: Vec<EvidenceFile> = case.files.clone();
    let has_stream = files.iter().any(|file| file.name == "all.log");
    let has_empty = of_ranks.iter().any(|(_, lines)| lines.is_empty());
    // What a silent rank's empty file tells is not in a stream.
    if of_ranks.len() < 2 || has_stream || has_empty {
        return files;
    }
    files.retain(|file| rank_of(file).is_none());
    let longest = of_ranks.iter().map(|(_, lines)| lines.len()).max();
    let mut text = String::new();
    for index in 0..longest.unwrap_or_default() {
        for (rank, lines) in &of_ranks {
            if let Some(line) = lines.get(index) {
                text.extend([&prefix(*rank), *line, "\n"]);
            }
        }
    }
    files.push(EvidenceFile {
        name: "all.log".to_owned(),
        text,
        skipped_lines: 0,
    });
    files
}

#[test]
fn all_ranks_in_one_stream_change_nothing() {
    for prefix in ["[rank@]: ", "[1,@]<stderr>:", "@: "] {
        let wrong =
            changed(|case| in_one_stream(case, |rank| prefix.replace('@', &rank.to_string())));
        assert!(wrong.is_empty(), "{prefix}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn the_order_of_nodes_changes_nothing() {
    let wrong = changed(|case| {
        with_texts(case, |file| {
            let is_context =
                file.name == "context.toml" && file.text.matches("[[node]]").count() > 1;
            if !is_context || file.text.contains("[[attempt]]") {
                return file.text.clone();
            }
            let mut parts: Vec<&str> = file.text.split("[[node]]").collect();
            let head = parts.remove(0).to_owned();
            parts.reverse();
            parts
                .iter()
                .fold(head, |text, part| text + "[[node]]" + part + "\n")
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines, by file, that an answer takes for mere consequences of what it rests on.
fn consequences(case: &Case) -> BTreeMap<String, Vec<u64>> {
    let answer = diagnose(&Evidence::new(case.files.clone()), Rules::built_in()).json();
    let waited = [
        "a collective operation did not end in time",
        "the connection to another rank was lost",
        "the meeting point of the ranks did not answer, or not all came to it",
        "another task stopped answering",
    ];
    let is_one = |signal: &&Value| waited.iter().any(|meaning| signal["meaning"] == *meaning);
    let list = |name: &str| answer[name].as_array().unwrap().clone();
    let mut lines: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    // Where ranks only wait, this is the evidence.
    let rests_on_them = list("signals").iter().any(|signal| is_one(&signal));
    let by_silence = ["hang", "unknown", "node_lost"];
    if rests_on_them || by_silence.iter().any(|class| answer["class"] == *class) {
        return lines;
    }
    for signal in list("secondary").iter().filter(is_one) {
        let file = signal["file"].as_str().unwrap().to_owned();
        lines
            .entry(file)
            .or_default()
            .extend(signal["line"].as_u64());
    }
    lines
}

/// The logs with each consequence written so many times.
fn with_consequences(case: &Case, times: usize) -> Vec<EvidenceFile> {
    let lines = consequences(case);
    with_texts(case, |file| {
        let Some(lines) = lines.get(&file.name).filter(|_| is_log(file)) else {
            return file.text.clone();
        };
        let mut text = String::new();
        for (number, line) in (1..).zip(file.text.lines()) {
            let times = if lines.contains(&number) { times } else { 1 };
            for _ in 0..times {
                text.extend([line, "\n"]);
            }
        }
        text
    })
}

#[test]
fn consequences_that_are_lost_or_repeated_change_nothing() {
    for times in [0, 3] {
        let wrong = changed(|case| with_consequences(case, times));
        assert!(wrong.is_empty(), "{times} times:\n{}", wrong.join("\n"));
    }
}

#[test]
fn what_libraries_say_at_their_start_changes_nothing() {
    let chatter = [
        "NCCL version 2.21.5+cuda12.4",
        "n9:100:200 [0] NCCL INFO NET/IB : No device found.",
        "n9:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...",
        "Loading checkpoint shards:  33%|███▎      | 1/3 [00:01<00:02,  1.10s/it]",
        "/env/lib/python3.10/site-packages/x.py:12: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated",
    ];
    let wrong = changed(|case| {
        with_texts(case, |file| {
            if rank_of(file).is_none() || file.text.is_empty() {
                return file.text.clone();
            }
            chatter
                .iter()
                .fold(String::new(), |text, line| text + line + "\n")
                + &file.text
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
