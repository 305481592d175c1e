// SPDX-License-Identifier: Apache-2.0
//! Whether a founder may begin the cluster, or has to join it.
//!
//! A founder that begins with empty data takes the others' word that it has not been a member before. One that has been,
//! and has lost its data, may not begin again: it has promised things to the others that it does not remember. It
//! leaves the cluster and joins it as somebody new.

use steadfast_coord::etcd::{EtcdSilence, EtcdStatus};

/// What a founder is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Founding {
    /// Begin.
    Begin,
    /// Join the cluster that is there.
    Join,
    /// Ask again: not everybody has answered.
    AskAgain,
}

/// What the other founders said, and what is known here.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) answers: &'a [Result<EtcdStatus, EtcdSilence>],
    pub(super) own_peer_url: &'a str,
    /// An earlier supervisor of this job ran here.
    pub(super) had_predecessor: bool,
    /// Those who do not answer have been waited for long enough.
    pub(super) is_patience_over: bool,
}

pub(super) fn decide(evidence: &Evidence<'_>) -> Founding {
    let answered = || evidence.answers.iter().flatten();
    let counts_us_in = |status: &EtcdStatus| {
        let own = status.members.iter().find(|member| {
            member
                .peer_urls
                .iter()
                .any(|url| url == evidence.own_peer_url)
        });
        // Those who are of the first hour are known by name, even before they have come.
        own.is_some_and(|own| own.client_urls.is_empty() && !own.name.is_empty())
    };
    if answered().any(|status| !counts_us_in(status)) {
        return Founding::Join;
    }
    if evidence.had_predecessor && answered().next().is_some() {
        return Founding::Join;
    }
    let is_silent = |answer: &Result<_, _>| {
        matches!(
            answer,
            Err(EtcdSilence::NoAnswer(_) | EtcdSilence::NotOurs(_))
        )
    };
    if evidence.answers.iter().any(is_silent) && !evidence.is_patience_over {
        return Founding::AskAgain;
    }
    Founding::Begin
}

#[cfg(test)]
mod tests {
    use steadfast_coord::etcd::EtcdMember;

    use super::*;

    const OWN: &str = "https://a:2";

    fn knows(name: &str, client_urls: &[&str]) -> EtcdStatus {
        EtcdStatus {
            member: 2,
            leader: None,
            members: vec![EtcdMember {
                id: 1,
                name: name.to_owned(),
                peer_urls: vec![OWN.to_owned()],
                client_urls: client_urls.iter().map(ToString::to_string).collect(),
            }],
        }
    }

    fn decided(answers: &[Result<EtcdStatus, EtcdSilence>], had_predecessor: bool) -> Founding {
        decide(&Evidence {
            answers,
            own_peer_url: OWN,
            had_predecessor,
            is_patience_over: false,
        })
    }

    #[test]
    fn where_nobody_is_yet_it_begins() {
        let nobody = || Err(EtcdSilence::NobodyThere);
        assert_eq!(decided(&[], false), Founding::Begin);
        assert_eq!(decided(&[nobody(), nobody()], false), Founding::Begin);
        assert_eq!(decided(&[nobody(), nobody()], true), Founding::Begin);
    }

    #[test]
    fn one_that_was_a_member_before_joins() {
        let was_there = knows("a", &["https://a:1"]);
        assert_eq!(decided(&[Ok(was_there)], false), Founding::Join);
        let awaited = || Ok(knows("a", &[]));
        assert_eq!(decided(&[awaited()], false), Founding::Begin);
        assert_eq!(decided(&[awaited()], true), Founding::Join);
        let added_later = knows("", &[]);
        assert_eq!(decided(&[Ok(added_later)], false), Founding::Join);
        let replaced = Ok(EtcdStatus {
            member: 2,
            leader: Some(2),
            members: vec![],
        });
        assert_eq!(decided(&[awaited(), replaced], false), Founding::Join);
    }

    #[test]
    fn those_who_do_not_answer_are_waited_for_but_not_for_ever() {
        let silent = [
            Err(EtcdSilence::NobodyThere),
            Err(EtcdSilence::NoAnswer("timeout".to_owned())),
        ];
        assert_eq!(decided(&silent, false), Founding::AskAgain);
        let evidence = Evidence {
            answers: &silent,
            own_peer_url: OWN,
            had_predecessor: false,
            is_patience_over: true,
        };
        assert_eq!(decide(&evidence), Founding::Begin);
    }
}
