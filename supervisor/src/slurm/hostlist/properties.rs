// SPDX-License-Identifier: Apache-2.0
//! What holds for every list and for every set of hosts. `PROPTEST_CASES` sets how many are tried.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::compress::compress;
use super::{HostList, MAX_HOSTS, MAX_NAME};

fn configuration() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() {
            default.cases
        } else {
            2000
        },
        failure_persistence: None,
        ..default
    }
}

fn hosts(list: &str) -> Vec<String> {
    match HostList::parse(list.as_bytes(), MAX_HOSTS) {
        Ok(list) => list.hosts().collect(),
        Err(error) => panic!("{error}"),
    }
}

/// A bracket: the text before it, and its ranges as first number, count and width.
type Bracket = (String, Vec<(u64, u64, usize)>);

fn bracket() -> impl Strategy<Value = Bracket> {
    let range = (0..200_u64, 1..4_u64, 0..4_usize);
    ("[a-z.-]{0,3}", prop::collection::vec(range, 1..4))
}

/// The list as it is written, and every bracket's numbers, both worked out in the plainest way.
fn write(brackets: &[Bracket], suffix: &str) -> (String, Vec<Vec<String>>) {
    let mut list = String::new();
    let mut texts = Vec::new();
    for (text, ranges) in brackets {
        let mut written = Vec::new();
        let mut numbers = Vec::new();
        for &(low, count, width) in ranges {
            let first = format!("{low:0width$}");
            let width = first.len();
            numbers.extend((low..low + count).map(|number| format!("{text}{number:0width$}")));
            written.push(match count {
                1 => first,
                _ => format!("{first}-{}", low + count - 1),
            });
        }
        list.extend([text, "[", &written.join(","), "]"]);
        texts.push(numbers);
    }
    (list + suffix, texts)
}

/// Names that have much in common, so that there is something to fold.
fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab]{1,2}[0-9]{1,3}",
        "r[0-2]n[0-3]",
        "r[0-1]s[0-1]n0?[8-9]",
        "n(9|09|10|99|099|100|0099)",
        "[a0-1]{1,5}(-ib|\\.site)?",
        "n[0-9]{17,24}",
        "[!-+\\-.-Z\\\\^-~é]{1,8}",
    ]
}

proptest! {
    #![proptest_config(configuration())]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        whatever_is_read_is_sound(&bytes)?;
    }

    #[test]
    fn anything_like_a_list_is_read_or_refused(list in "[ab0189\\[\\],\\- \n]{0,40}|(n\\[[0-9,-]{1,12}\\]){1,4}") {
        whatever_is_read_is_sound(list.as_bytes())?;
    }

    #[test]
    fn a_written_list_stands_for_what_was_written(
        brackets in prop::collection::vec(bracket(), 1..5),
        suffix in "[a-z.-]{0,3}",
    ) {
        let (list, texts) = write(&brackets, &suffix);
        // Slurm's order: the last bracket is the fastest, then the first, the second and so on.
        let (last, others) = texts.split_last().unwrap();
        let mut fronts = vec![String::new()];
        for bracket in others {
            fronts = bracket.iter().flat_map(|text| fronts.iter().map(move |front| format!("{front}{text}"))).collect();
        }
        let suffix = &suffix;
        let expected: Vec<String> = fronts
            .iter()
            .flat_map(|front| last.iter().map(move |text| format!("{front}{text}{suffix}")))
            .collect();
        prop_assert_eq!(hosts(&list), expected);
    }

    #[test]
    fn compressed_hosts_expand_to_themselves(set in prop::collection::btree_set(host(), 1..30)) {
        let list = compress(set.iter().cloned());
        let expanded = hosts(&list);
        prop_assert_eq!(expanded.len(), set.len(), "each once in {}", &list);
        prop_assert_eq!(expanded.into_iter().collect::<BTreeSet<_>>(), set.clone(), "{}", &list);
        prop_assert_eq!(compress(set.into_iter().rev()), list.clone(), "whatever the order was");
        // Slurm before 23.11 takes no text after the last bracket.
        for (bracket, _) in list.match_indices(']') {
            let rest = &list[bracket + 1..];
            let item_end = rest.find(',').unwrap_or(rest.len());
            prop_assert!(item_end == 0 || rest[..item_end].contains('['), "{}", &list);
        }
    }
}

fn whatever_is_read_is_sound(list: &[u8]) -> Result<(), TestCaseError> {
    let Ok(list) = HostList::parse(list, MAX_HOSTS) else {
        return Ok(());
    };
    prop_assert!((1..=MAX_HOSTS).contains(&list.len()));
    prop_assert_eq!(list.hosts().take(1000).count(), list.len().min(1000));
    for host in list.hosts().take(1000) {
        prop_assert!((1..=MAX_NAME).contains(&host.len()), "{host:?}");
        let unfit = |letter: char| {
            letter.is_ascii_whitespace() || letter.is_control() || "[],".contains(letter)
        };
        prop_assert!(!host.contains(unfit), "{host:?}");
    }
    Ok(())
}
