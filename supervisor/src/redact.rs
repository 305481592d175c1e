// SPDX-License-Identifier: Apache-2.0
//! Command lines, and what programs print, as they may be shown and recorded: without the secrets that people put into them.

use std::ffi::OsString;

use steadfast_proto::v1::Finding;

/// What stands for a secret.
const HIDDEN: &str = "***";
/// Parts of names whose values are secrets.
const SECRET_NAMES: [&str; 9] = [
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "api-key",
    "api_key",
    "credential",
    "private-key",
];
/// Beginnings of values that are secrets whatever their name: tokens of Hugging Face, GitHub, AWS, Slack and others.
const SECRET_VALUES: [&str; 7] = [
    "hf_",
    "ghp_",
    "github_pat_",
    "sk-",
    "AKIA",
    "xoxb-",
    "xoxp-",
];

/// The arguments with every secret replaced.
pub(crate) fn command(arguments: &[OsString]) -> Vec<String> {
    let mut shown = Vec::with_capacity(arguments.len());
    let mut value_is_secret = false;
    for argument in arguments {
        let text = argument.to_string_lossy();
        if std::mem::take(&mut value_is_secret) && !text.starts_with('-') {
            shown.push(HIDDEN.to_owned());
            continue;
        }
        match text.split_once('=') {
            Some((name, value)) if is_secret_name(name) || is_secret_value(value) => {
                shown.push(format!("{name}={HIDDEN}"));
            }
            _ if is_secret_value(&text) => shown.push(HIDDEN.to_owned()),
            _ => {
                value_is_secret = text.starts_with('-') && is_secret_name(&text);
                shown.push(without_url_password(&text));
            }
        }
    }
    shown
}

/// A line of output with every secret replaced that looks like one.
pub(crate) fn line(text: &str) -> String {
    let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
    command(&words).join(" ")
}

/// A finding whose words, which may be a program's, hold no secrets: it goes into the job's store.
pub(crate) fn finding(mut finding: Finding) -> Finding {
    finding.summary = text(&finding.summary);
    for piece in &mut finding.evidence {
        *piece = text(piece);
    }
    finding
}

fn text(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn is_secret_name(name: &str) -> bool {
    // A path or a shell script is no name: a word in it says nothing.
    if name.contains(['/', ' ', '\n']) {
        return false;
    }
    let name = name.to_ascii_lowercase();
    // `--max-tokens` and `--tokenizer` are the commonest flags of language models, and no secrets.
    let innocent = name.contains("tokens") || name.contains("tokeniz") || name.contains("token-");
    SECRET_NAMES.iter().any(|part| name.contains(part)) && !innocent
}

fn is_secret_value(value: &str) -> bool {
    value.len() >= 16 && SECRET_VALUES.iter().any(|start| value.starts_with(start))
}

/// `scheme://user:password@host` without the password.
fn without_url_password(text: &str) -> String {
    let hidden = || {
        let (scheme, rest) = text.split_once("://")?;
        let (login, host) = rest.split_once('@')?;
        let (user, _password) = login.split_once(':')?;
        (!login.contains('/')).then(|| format!("{scheme}://{user}:{HIDDEN}@{host}"))
    };
    hidden().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        command(&arguments).join(" ")
    }

    #[test]
    fn values_of_secret_names_are_hidden_in_each_spelling() {
        assert_eq!(
            shown("train --wandb-api-key=abc --lr 1"),
            "train --wandb-api-key=*** --lr 1"
        );
        assert_eq!(
            shown("train --hf-token abc --lr 1"),
            "train --hf-token *** --lr 1"
        );
        assert_eq!(
            shown("env DB_PASSWORD=x train"),
            "env DB_PASSWORD=*** train"
        );
        assert_eq!(shown("train --password --lr 1"), "train --password --lr 1");
    }

    #[test]
    fn a_finding_keeps_its_words_and_loses_its_secrets() {
        let shown = finding(Finding {
            summary: "ValueError: refused: api_key=abc".to_owned(),
            evidence: vec![
                "  File \"a.py\", line 3\n  login(hf_token='x')\nhf_abcdefghijklmnop".to_owned(),
            ],
            ..Finding::default()
        });
        assert_eq!(shown.summary, "ValueError: refused: api_key=***");
        assert_eq!(
            shown.evidence,
            ["  File \"a.py\", line 3\n  login(hf_token=***\n***"]
        );
    }

    #[test]
    fn well_known_tokens_and_passwords_in_addresses_are_hidden_wherever_they_stand() {
        assert_eq!(shown("train hf_abcdefghijklmnop"), "train ***");
        assert_eq!(shown("train --x=ghp_abcdefghijklmnop"), "train --x=***");
        assert_eq!(
            shown("train s3://me:pw@host/data"),
            "train s3://me:***@host/data"
        );
    }

    #[test]
    fn lines_keep_their_spaces() {
        assert_eq!(line("  a  --token x  b"), "  a  --token ***  b");
        assert_eq!(line("step 7 loss=0.1"), "step 7 loss=0.1");
    }

    #[test]
    fn what_is_no_secret_stays() {
        for line in [
            "python train.py --max-tokens 4096 --tokenizer gpt2 --lr=0.1",
            "train --data s3://bucket/a@b:c --tokenizer-path /secret/place",
            "bash -c token=1",
        ] {
            let expected = line.replace("token=1", "token=***");
            assert_eq!(shown(line), expected);
        }
    }
}
