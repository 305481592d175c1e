// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use super::command::{CommandError, Form, Request, answer};
use super::compress::compress;
use super::error::{Fault, HostListError};
use super::{HostList, MAX_HOSTS};

/// The vectors: what Slurm's own tool says, and what is said here.
const VECTORS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/testdata/hostlist.tsv"
));

fn parse(list: &str) -> Result<HostList, HostListError> {
    HostList::parse(list.as_bytes(), MAX_HOSTS)
}

fn error(list: &str) -> HostListError {
    parse(list).unwrap_err()
}

fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut unescaped = String::new();
    while let Some(character) = characters.next() {
        unescaped.push(match character {
            '\\' => match characters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap(),
            },
            character => character,
        });
    }
    unescaped
}

/// The answer in the notation of the vectors.
fn notation(list: &str) -> String {
    let hosts: Vec<String> = match parse(list) {
        Ok(list) => list.hosts().collect(),
        Err(error) => {
            let text = error.to_string();
            let (_, from_place) = text.split_once("`, ").unwrap();
            return format!("! {from_place}");
        }
    };
    match &hosts[..] {
        [first, second, .., last] if hosts.len() > 64 => {
            format!("{first} {second} ... {last} ({})", hosts.len())
        }
        hosts => hosts.join(" "),
    }
}

#[test]
fn every_vector_holds() {
    let mut rows = 0;
    for row in VECTORS.lines().filter(|row| !row.starts_with('#')) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (list, slurm, here) = (unescape(columns[0]), columns[1], columns[2]);
        let said = notation(&list);
        let expected = if here == "=" { slurm } else { here };
        assert_eq!(said, unescape(expected), "{list:?}");
        let differs = here != "=" && !(slurm == "!" && here.starts_with("! "));
        assert_eq!(
            columns.len() == 4,
            differs,
            "{list:?}: a difference has a reason, and only that"
        );
        rows += 1;
    }
    assert!(rows > 100, "{rows} vectors");
}

#[test]
fn errors_name_the_list_the_place_and_the_fault() {
    let long = format!("{}n[3-1],{}", "n7,".repeat(500), "n8,".repeat(500));
    let lists = [
        "n[1-2],m[3-1]",
        "n1\nn2,m[7\nn3",
        &long,
        "\u{1b}[31m",
        "a\u{7}",
    ];
    let errors: Vec<String> = lists.iter().map(|list| error(list).to_string()).collect();
    insta::assert_snapshot!(errors.join("\n"), @r"
    host list `n[1-2],m[3-1]`, character 10: the range `3-1` runs backwards
    host list `n1\nn2,m[7\nn3`, line 2, character 5: this `[` is never closed
    host list `...7,n7,n7,n7,n7,n7,n7,n7,n7,n7,n7,n7,n7,n[3-1],n8,n8,n8,n8,n8,n8,n8,n8,n8,n8,n8,n8...`, character 1503: the range `3-1` runs backwards
    host list `\u{1b}[31m`, character 1: a host's name cannot hold a control character
    host list `a\u{7}`, character 2: a host's name cannot hold a control character
    ");
    let not_text = HostList::parse(b"n1,\xff\xfe", MAX_HOSTS).unwrap_err();
    insta::assert_snapshot!(not_text, @"host list `n1,��`, character 4: it is not valid UTF-8 from here on");
}

#[test]
fn memory_is_not_filled_before_a_limit_is_seen() {
    let ok = parse("n[1-65536]m[1-16]").unwrap();
    assert_eq!(ok.len(), MAX_HOSTS);
    assert_eq!(ok.hosts().last().unwrap(), "n65536m16");
    let bombs = [
        "n[1-65536]m[1-17]",
        "n[1-65536]m[1-65536]p[1-65536]q[1-65536]r[1-65536]",
        "n[1-65536]m[1-16],x",
        &format!("n[{}]", "1-65536,".repeat(17)),
    ];
    for bomb in bombs {
        assert_eq!(error(bomb).fault(), &Fault::TooManyHosts, "{bomb}");
    }
    assert_eq!(error(&"[1]".repeat(254)).fault(), &Fault::LongName);
    assert_eq!(
        error(&format!("n[{}1]", "0".repeat(100_000))).fault(),
        &Fault::LongName
    );
    assert_eq!(error(&"n".repeat(254)).fault(), &Fault::LongName);
    assert_eq!(parse(&"n".repeat(253)).unwrap().len(), 1);
    assert_eq!(
        HostList::parse(b"n[1-3]", 2).unwrap_err().fault(),
        &Fault::TooManyHosts
    );
}

#[test]
fn lists_become_short() {
    let examples = BTreeMap::from([
        ("n3 n1 n2", "n[1-3]"),
        ("n1 n1 n2", "n[1-2]"),
        ("n1", "n1"),
        ("n007", "n007"),
        ("n8 n9 n10 n11", "n[8-11]"),
        ("n08 n09 n10 n11", "n[08-11]"),
        ("n9 n09 n10 n11 n100", "n[9-11,09,100]"),
        ("n099 n100 n98 n99", "n[98-100,099]"),
        ("1 2 3", "[1-3]"),
        ("rack1n1 rack1n2 rack2n1 rack2n2", "rack[1-2]n[1-2]"),
        ("rack1n5 rack2n5", "rack[1-2]n[5]"),
        ("rack1n1 rack1n2 rack2n1", "rack1n[1-2],rack2n1"),
        (
            "ip-10-0-1-5 ip-10-0-1-6 ip-10-0-2-5 ip-10-0-2-6",
            "ip-10-0-[1-2]-[5-6]",
        ),
        (
            "a1b1c1 a1b1c2 a1b2c1 a1b2c2 a2b1c1 a2b1c2 a2b2c1 a2b2c2",
            "a[1-2]b[1-2]c[1-2]",
        ),
        ("gpu1.site gpu2.site login", "gpu1.site,gpu2.site,login"),
        (
            "n12345678901234567890123 n12345678901234567890124",
            "n12345[678901234567890123-678901234567890124]",
        ),
        (
            "n99999999999999999999 n100000000000000000000",
            "n100[000000000000000000],n99[999999999999999999]",
        ),
    ]);
    for (hosts, list) in examples {
        assert_eq!(
            compress(hosts.split(' ').map(str::to_owned)),
            list,
            "{hosts}"
        );
    }
    assert_eq!(compress(std::iter::empty()), "");
}

#[test]
fn a_range_and_a_bracket_stay_within_what_slurm_takes() {
    let neighbours = (0..70_000).map(|number| format!("n{number}"));
    assert_eq!(compress(neighbours), "n[0-65535,65536-69999]");
    let odd = (0..70_000).map(|number| format!("n{}", number * 2));
    let list = compress(odd.clone());
    assert_eq!(list.matches('[').count(), 2);
    assert_eq!(parse(&list).unwrap().hosts().count(), odd.count());
}

/// What the command prints.
fn print(lists: &[&str], form: Form, input: &[u8]) -> Result<String, CommandError> {
    let request = Request {
        lists: lists.iter().map(Into::into).collect(),
        form,
    };
    let mut output = Vec::new();
    answer(&request, input, &mut output)?;
    Ok(String::from_utf8(output).unwrap())
}

#[test]
fn the_command_prints_lines_json_or_a_list() {
    let lines = print(&["n[1-2]", "-", "x"], Form::Lines, b"m[08-09]\nn1\n").unwrap();
    assert_eq!(lines, "n1\nn2\nm08\nm09\nn1\nx\n");
    let json = print(&["n[1-2],\"q\""], Form::Json, b"").unwrap();
    assert_eq!(json, "[\"n1\",\"n2\",\"\\\"q\\\"\"]\n");
    let list = print(&["n3", "-"], Form::HostList, b"n2\nn1\n").unwrap();
    assert_eq!(list, "n[1-3]\n");
}

#[test]
fn the_command_refuses_before_it_prints() {
    let refused = |lists: &[&str], input: &[u8]| print(lists, Form::Lines, input).unwrap_err();
    insta::assert_snapshot!(refused(&["-"], b" \n").render(), @r"
    error: host list ` \n`, character 1: it names no host

    hint: SLURM_JOB_NODELIST is set only inside an allocation
    ");
    insta::assert_snapshot!(refused(&["n1", "n[2-1]"], b"").render(), @"error: host list `n[2-1]`, character 3: the range `2-1` runs backwards");
    insta::assert_snapshot!(refused(&["n[1-65536]m[1-16]", "x"], b"").render(), @"error: host list `x`, character 1: with this there are more than 1048576 hosts in all");
    let endless = vec![b','; (1 << 26) + 1];
    insta::assert_snapshot!(refused(&["-"], &endless).render(), @"error: the host list on standard input is longer than 67108864 bytes");
}
