// SPDX-License-Identifier: Apache-2.0
//! Why an etcd has died, from how it ended and what it printed last.

use std::fmt;

use serde_json::Value;
use steadfast_process::exit::Exit;

/// A death in words: completes "etcd on this node ...".
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Death(String);

impl Death {
    /// `last_lines` of its log, newest first.
    pub(super) fn explain(exit: Exit, spawn_error: Option<&str>, last_lines: &[String]) -> Death {
        if let Some(reason) = spawn_error {
            return Death(format!("could not be started: {reason}"));
        }
        let how = match exit {
            Exit::Code(code) => format!("exited with code {code}"),
            Exit::Signal { signal, .. } => format!("was killed by signal {signal}"),
        };
        // One that was killed had nothing to say about it.
        let why = match exit {
            Exit::Code(_) => last_lines.iter().find_map(|line| reason(line)),
            Exit::Signal { .. } => None,
        };
        Death(match why {
            Some(why) => format!("{how}: {why}"),
            None => how,
        })
    }
}

impl fmt::Display for Death {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a line of its log says about the end, if it does.
fn reason(line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    if !matches!(text("level"), "fatal" | "panic" | "error") {
        return None;
    }
    let said = [text("msg"), text("error")];
    let said: Vec<_> = said.into_iter().filter(|part| !part.is_empty()).collect();
    let said = said.join(": ");
    Some(match advice(&said) {
        Some(advice) => format!("{said} ({advice})"),
        None => said,
    })
}

fn advice(said: &str) -> Option<&'static str> {
    const ADVICE: [(&str, &str); 4] = [
        (
            "address already in use",
            "another program has its port: end that, or give the job other ports or another name, on all nodes",
        ),
        (
            "cannot assign requested address",
            "this node does not have the address by which it is named to the others",
        ),
        (
            "no space left on device",
            "etcd needs some 150 MB in the job's runtime directory: choose another --runtime-dir",
        ),
        (
            "removed from the cluster",
            "another node has taken its place",
        ),
    ];
    let found = ADVICE.iter().find(|(part, _)| said.contains(part));
    found.map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named_with_what_to_do() {
        let lines = [
            "goroutine 1 [running]:".to_owned(),
            r#"{"level":"fatal","msg":"discovery failed","error":"listen tcp 127.0.0.1:22: bind: address already in use"}"#.to_owned(),
            r#"{"level":"info","msg":"closing etcd server"}"#.to_owned(),
        ];
        let text = Death::explain(Exit::Code(1), None, &lines).to_string();
        assert!(
            text.contains("127.0.0.1:22") && text.contains("other ports"),
            "{text}"
        );
    }

    #[test]
    fn a_death_without_words_is_told_as_it_is() {
        let killed = Exit::Signal {
            signal: 9,
            core_dumped: false,
        };
        let line = r#"{"level":"error","msg":"something earlier"}"#.to_owned();
        let text = Death::explain(killed, None, &[line]).to_string();
        assert_eq!(text, "was killed by signal 9");
        assert_eq!(
            Death::explain(Exit::Code(2), None, &[]).to_string(),
            "exited with code 2"
        );
        let never = Death::explain(Exit::Code(127), Some("no such file"), &[]).to_string();
        assert!(never.contains("no such file"));
    }
}
