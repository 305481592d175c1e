// SPDX-License-Identifier: Apache-2.0
//! What launchers, libraries and loggers put before a message.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::context::Context;
use crate::pattern::{compile, group, number};

/// The most prefixes that are taken off one line.
const MOST: usize = 8;

/// What the prefixes say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) rank: Option<u32>,
    pub(super) local_rank: Option<u32>,
    pub(super) node: Option<String>,
    pub(super) pid: Option<u32>,
    /// Where the message begins.
    pub(super) start: usize,
}

macro_rules! patterns {
    ($($name:ident = $pattern:literal;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| compile($pattern));)*
        #[cfg(test)]
        const ALL: &[&LazyLock<Regex>] = &[$(&$name),*];
    };
}

patterns! {
    LABEL = r"^\s*(?P<rank>\d{1,6}): ";
    RANK = r"^[\[(<]?(?:[Gg]lobal[ _-]?)?[Rr](?:ank|ANK)[ _:=-]{0,2}(?P<rank>\d{1,6})(?:/\d+|, [^\])]*)?[\])>]?:?(?:[\s|-]+|$|:?)";
    RANK_PROCESS = r"^rank(?P<rank>\d{1,6})\[\d+\](?:\[[\w -]+\])?:?\s*";
    LOCAL = r"^\[(?:default|trainer|worker|role|\w+_)?(?P<local>\d{1,4})\]:\s?";
    MPI = r"^\[(?P<job>[\w.-]+),(?P<rank>\d{1,6})\]<std(?:out|err|diag)>:\s?";
    HOROVOD = r"^\[(?P<rank>\d{1,6})\]<std(?:out|err)>:\s?";
    RAY = r"^\((?:[^()]*?)\b(?:pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?|ip=(?P<only_ip>[\w.:]+))\)\s?";
    POD = r"^\[(?:pod/)?(?P<node>[\w.-]+)[/ ][\w.-]+\]\s";
    HOST = r"^\[?(?P<node>[A-Za-z][\w.-]*?)(?:/[\w.-]+)?\]?(?::| \|)\s";
    NCCL = r"^(?P<node>[\w.-]+):(?P<pid>\d+):\d+ (?:\[(?P<local>\d+)\] )?(?P<rest>.*)$";
    GLOG = r"^\[?[IWEFCD](?:\d{3,4})? ?(?:\d\d:\d\d:\d\d[.\d]* )?(?:\d+ )?[\w./+-]+(?:\.\w+)?:\d+\]\s?";
    SYSLOG = r"^(?:[A-Z][a-z]{2}\s+\d{1,2} [\d:.]+|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)?) (?P<node>[A-Za-z][\w.-]*) (?P<program>[\w./-]+)(?:\[\d+\])?: ";
    TIME = r"^[\[(]?(?:(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2}\s+\d{1,2} |\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d/\d\d(?:/\d{2,4})? )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d| [AP]M)?(?: \d{4})?[\])]?(?:[\s,|:-]+|$)";
    LEVEL = r"^\[?(?:INFO|WARN(?:ING)?|ERROR|CRITICAL|DEBUG|FATAL|Error|Warning|info|warning|error)\]?(?:\s*[:|-]+\s*|\s+|$)";
    BARS = r"^\|+\s*";
    PROCESS = r"^\[(?P<node>[\w.-]+):(?P<pid>\d+)\]\s";
    JSON = r#"^(?:\{.{0,300}?)?"(?:msg|message|log|text)"\s*:\s*""#;
    SOURCE = r"^\[[\w./<>-]+(?:\.py|\.cc|\.cpp)?:\d+(?::\w+)?\]\s*(?:>>\s*)?";
    TASK = r"^[0-9a-f]{6,12} (?P<rest>\[rank=)";
    LOGGER = r"^(?:[\w.]+\.py:\d+|[\w.]+:\w+:\d+)(?:\s*[:|-]+\s*|\s+)";
    SPEAKER = r"\[(?:PG [^\]]*?|rank:? ?|Rank:? ?|PG ID \d+ [^\]]*?)?\b[Rr]ank[ :=]*(?P<rank>\d{1,6})\]";
    SPEAKER_JSON = r#""(?:global_)?rank"\s*:\s*"?(?P<rank>\d{1,6})\b"#;
    SPEAKER_NEAR = r"^(?:[^\]]{0,80}\]\s*)?\[[Rr]ank[ :=]*(?P<rank>\d{1,6})\b";
}

/// The number of the task, if the line begins as `srun --label` and its like write it.
pub(super) fn label(line: &str) -> Option<u32> {
    number(&LABEL.captures(line)?, "rank")
}

/// Takes the prefixes off a line.
pub(super) fn take(line: &str, is_labelled: bool, context: &Context) -> Prefix {
    let mut prefix = Prefix {
        start: line.len() - line.trim_start().len(),
        ..Prefix::default()
    };
    if is_labelled && let Some(found) = LABEL.captures(line) {
        prefix.rank = number(&found, "rank");
        prefix.start = end(&found);
    }
    for _ in 0..MOST {
        let before = prefix.start;
        let rest = line.get(before..).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
        let taken = one(rest, &mut prefix, context);
        prefix.start = before + taken;
        if taken == 0 {
            break;
        }
    }
    if prefix.rank.is_none()
        && (line.contains("ank ")
            || line.contains("ank:")
            || line.contains("ank\"")
            || line.contains("ank="))
    {
        let found = SPEAKER
            .captures(line)
            .or_else(|| SPEAKER_NEAR.captures(line))
            .or_else(|| SPEAKER_JSON.captures(line));
        prefix.rank = found.and_then(|found| number(&found, "rank"));
    }
    prefix
}

fn end(found: &Captures<'_>) -> usize {
    found.get(0).map_or(0, |whole| whole.end())
}

/// How many bytes the next prefix takes.
fn one(rest: &str, prefix: &mut Prefix, context: &Context) -> usize {
    let first = rest.bytes().next().unwrap_or_default();
    let after_blanks = rest.len() - rest.trim_start().len();
    if after_blanks > 0 {
        return after_blanks;
    }
    match first {
        b'[' => bracketed(rest, prefix, context),
        b'|' => plain(rest, &[&BARS]),
        b'{' | b'"' => plain(rest, &[&JSON]),
        b'(' if RAY.is_match(rest) => {
            let Some(found) = RAY.captures(rest) else {
                return 0;
            };
            prefix.pid = number(&found, "pid");
            let ip = group(&found, "ip").or(group(&found, "only_ip"));
            prefix.node = ip.map(|ip| node_name(ip, context));
            end(&found)
        }
        b'(' | b'<' | b'r' | b'R' | b'g' | b'G' if RANK.is_match(rest) => ranked(rest, prefix),
        b'0'..=b'9' | b'a'..=b'f' if TASK.is_match(rest) => {
            let found = TASK.captures(rest);
            found
                .and_then(|found| found.name("rest"))
                .map_or(0, |rest| rest.start())
        }
        b'0'..=b'9' => plain(rest, &[&TIME]),
        b'I' | b'W' | b'E' | b'F' | b'C' | b'D' if GLOG.is_match(rest) => plain(rest, &[&GLOG]),
        b'A'..=b'Z' | b'a'..=b'z' => lettered(rest, prefix, context),
        _ => 0,
    }
}

fn ranked(rest: &str, prefix: &mut Prefix) -> usize {
    if let Some(found) = RANK_PROCESS.captures(rest) {
        prefix.rank = prefix.rank.or(number(&found, "rank"));
        return end(&found);
    }
    let Some(found) = RANK.captures(rest) else {
        return 0;
    };
    let taken = end(&found);
    // "rank 3 found a problem" is a sentence: only what is set apart is a prefix.
    let whole = rest.get(..taken).unwrap_or_default();
    if !whole.contains([']', ')', '>', ':', '|']) {
        return 0;
    }
    prefix.rank = prefix.rank.or(number(&found, "rank"));
    taken
}

fn bracketed(rest: &str, prefix: &mut Prefix, context: &Context) -> usize {
    if RANK.is_match(rest) {
        return ranked(rest, prefix);
    }
    for pattern in [&MPI, &HOROVOD] {
        if let Some(found) = pattern.captures(rest) {
            prefix.rank = prefix.rank.or(number(&found, "rank"));
            return end(&found);
        }
    }
    if let Some(found) = LOCAL.captures(rest) {
        prefix.local_rank = prefix.local_rank.or(number(&found, "local"));
        return end(&found);
    }
    if let Some(found) = PROCESS.captures(rest) {
        prefix.node = group(&found, "node").map(|node| node_name(node, context));
        prefix.pid = number(&found, "pid");
        return end(&found);
    }
    let taken = plain(rest, &[&GLOG, &TIME, &LEVEL, &SOURCE]);
    if taken > 0 {
        return taken;
    }
    let found = POD.captures(rest).or_else(|| HOST.captures(rest));
    if let Some(found) = found
        && let Some(name) = group(&found, "node")
        && context.node_named(name).is_some()
    {
        prefix.node = Some(node_name(name, context));
        return end(&found);
    }
    0
}

fn lettered(rest: &str, prefix: &mut Prefix, context: &Context) -> usize {
    if let Some(found) = SYSLOG.captures(rest) {
        prefix.node = group(&found, "node").map(|node| node_name(node, context));
        return end(&found);
    }
    if let Some(found) = NCCL.captures(rest) {
        prefix.node = group(&found, "node").map(|node| node_name(node, context));
        prefix.pid = number(&found, "pid");
        prefix.local_rank = prefix.local_rank.or(number(&found, "local"));
        return found.name("rest").map_or(0, |rest| rest.start());
    }
    let taken = plain(rest, &[&TIME, &LEVEL, &LOGGER]);
    if taken > 0 {
        return taken;
    }
    if let Some(found) = HOST.captures(rest)
        && let Some(name) = group(&found, "node")
        && context.node_named(name).is_some()
    {
        prefix.node = Some(node_name(name, context));
        return end(&found);
    }
    0
}

/// The name by which the context knows a node, or the name as it is.
fn node_name(name: &str, context: &Context) -> String {
    context
        .node_named(name)
        .map_or_else(|| name.to_owned(), |node| node.name.clone())
}

fn plain(rest: &str, patterns: &[&LazyLock<Regex>]) -> usize {
    patterns
        .iter()
        .find_map(|pattern| Some(pattern.find(rest)?.end()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Node;

    fn context() -> Context {
        Context {
            nodes: vec![Node {
                name: "node-a".to_owned(),
                aliases: vec!["10.0.0.1".to_owned()],
                ranks: vec![4, 5, 6, 7],
                ..Node::default()
            }],
            ..Context::default()
        }
    }

    fn of(line: &str) -> (Option<u32>, Option<u32>, Option<String>, &str) {
        let prefix = take(line, false, &context());
        (
            prefix.rank,
            prefix.local_rank,
            prefix.node,
            &line[prefix.start..],
        )
    }

    #[test]
    fn all_patterns_compile() {
        for pattern in ALL {
            assert!(!pattern.as_str().is_empty());
        }
    }

    #[test]
    fn a_process_is_told_from_a_worker() {
        let line = "2024-08-30 11:06:13,1: rank1[20][MainThread]: ERROR: x";
        assert_eq!(of(line), (Some(1), None, None, "x"));
        let node = Some("node-a".to_owned());
        assert_eq!(of("(raylet, ip=10.0.0.1) x"), (None, None, node, "x"));
    }

    #[test]
    fn what_launchers_write_is_taken_off() {
        let node = || Some("node-a".to_owned());
        for (line, expected) in [
            (
                "[rank3]: ValueError: x",
                (Some(3), None, None, "ValueError: x"),
            ),
            (
                "[rank3]:[E211 09:50:14.12 Pg.cpp:563] [Rank 3] x",
                (Some(3), None, None, "x"),
            ),
            (
                "[default1]:ValueError: x",
                (None, Some(1), None, "ValueError: x"),
            ),
            (
                "[1,3]<stderr>:ValueError",
                (Some(3), None, None, "ValueError"),
            ),
            (
                "[3]<stderr>:ValueError",
                (Some(3), None, None, "ValueError"),
            ),
            ("(Worker pid=12, ip=10.0.0.1) x", (None, None, node(), "x")),
            ("node-a: x", (None, None, node(), "x")),
            (
                "node-a:12:34 [2] NCCL WARN x",
                (None, Some(2), node(), "NCCL WARN x"),
            ),
            (
                "2026-02-11 09:40:12,598 [rank 0] epoch",
                (Some(0), None, None, "epoch"),
            ),
            (
                "[2023-06-02 04:11:20,119] [INFO] [e.py:3:f] x",
                (None, None, None, "x"),
            ),
            ("2024-05-01 10:00:00 - ERROR - x", (None, None, None, "x")),
            (
                "[2024-02-27T21:35:28.7Z] fa88a9df [rank=1] || x",
                (Some(1), None, None, "x"),
            ),
            (
                "[rank: 2] Received SIGTERM: 15",
                (Some(2), None, None, "Received SIGTERM: 15"),
            ),
            (
                "  | 2025-05-16T16:39:58.2-07:00 | [rank1]: x",
                (Some(1), None, None, "x"),
            ),
            (
                r#"{"ts": "x", "rank": 3, "msg": "ValueError: y"}"#,
                (Some(3), None, None, r#"ValueError: y"}"#),
            ),
            (
                "[node-a:4711] Signal: Segmentation fault (11)",
                (None, None, node(), "Signal: Segmentation fault (11)"),
            ),
            (
                "rank 3 found a problem",
                (None, None, None, "rank 3 found a problem"),
            ),
            ("ValueError: x", (None, None, None, "ValueError: x")),
            (
                "Jan 10 13:04:04 node-a slurmd[12]: x",
                (None, None, node(), "x"),
            ),
            (
                "[W socket.cpp:436] [c10d] x",
                (None, None, None, "[c10d] x"),
            ),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
        let prefix = take(" 3: x", true, &context());
        assert_eq!((prefix.rank, prefix.start), (Some(3), 4));
        let line = "[E P.cpp:7] [PG ID 0 PG GUID 0(default_pg) Rank 7] x";
        assert_eq!(of(line).0, Some(7));
    }
}
