// SPDX-License-Identifier: Apache-2.0
//! What is known of checkpoints, as text and as JSON.

use std::path::Path;

use serde_json::json;
use steadfast_checkpoints::{Change, Depth, Difference, Found, Problem};

use super::Verdict;

/// What is wrong with a checkpoint is repeated for each of its files; nobody reads further.
const MOST_PROBLEMS: usize = 10;

/// For people; with everything that is wrong where `details` are wanted.
pub(super) fn as_text(verdicts: &[Verdict<'_>], details: bool) -> String {
    let names = verdicts
        .iter()
        .map(|verdict| verdict.known.found.name.len());
    let width = names.max().unwrap_or(0).max("NAME".len());
    let heading = format!(
        "{:>10}  {:<width$}  {:<11}  {:>10}  {:>5}  STATE\n",
        "STEP", "NAME", "LAYOUT", "SIZE", "RANKS"
    );
    let rows = verdicts.iter().map(|verdict| row(verdict, width, details));
    std::iter::once(heading).chain(rows).collect()
}

fn row(verdict: &Verdict<'_>, width: usize, details: bool) -> String {
    let (found, checked) = (&verdict.known.found, &verdict.known.checked);
    let ranks = checked
        .world_size
        .map_or("-".to_owned(), |size| size.to_string());
    let state = match (verdict.problems.first(), details) {
        (None, _) => "whole".to_owned(),
        (Some(first), false) => format!("torn: {first}{}", more(verdict.problems.len() - 1)),
        (Some(_), true) => "torn".to_owned(),
    };
    let note = verdict.note.as_ref().map(|note| format!(" ({note})"));
    let reasons = if details {
        reasons(&verdict.problems)
    } else {
        String::new()
    };
    format!(
        "{:>10}  {:<width$}  {:<11}  {:>10}  {ranks:>5}  {state}{}\n{reasons}",
        found.step,
        found.name,
        found.layout.name(),
        size(checked.listing.bytes()),
        note.unwrap_or_default(),
    )
}

fn reasons(problems: &[Problem]) -> String {
    let mut lines: Vec<String> = problems
        .iter()
        .take(MOST_PROBLEMS)
        .map(|problem| format!("            {problem}\n"))
        .collect();
    let left = problems.len().saturating_sub(MOST_PROBLEMS);
    if left > 0 {
        lines.push(format!("            and {left} more\n"));
    }
    lines.concat()
}

fn more(others: usize) -> String {
    match others {
        0 => String::new(),
        _ => format!(", and {others} more"),
    }
}

/// As people write it.
fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut whole = bytes;
    let mut rest = 0;
    let mut unit = "B";
    for larger in units {
        if whole < 1024 {
            break;
        }
        (rest, whole, unit) = (whole % 1024, whole / 1024, larger);
    }
    match unit {
        "B" => format!("{whole} B"),
        _ => format!("{whole}.{} {unit}", rest * 10 / 1024),
    }
}

/// For programs.
pub(super) fn in_json(directory: &Path, verdicts: &[Verdict<'_>]) -> String {
    let checkpoints: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            let (found, checked) = (&verdict.known.found, &verdict.known.checked);
            let problems: Vec<String> = verdict.problems.iter().map(ToString::to_string).collect();
            json!({
                "step": found.step,
                "name": found.name,
                "path": found.path,
                "layout": found.layout.name(),
                "bytes": checked.listing.bytes(),
                "files": checked.listing.files.len(),
                "world_size": checked.world_size,
                "whole": problems.is_empty(),
                "problems": problems,
            })
        })
        .collect();
    let answer = json!({ "version": 1, "directory": directory, "checkpoints": checkpoints });
    format!("{answer:#}\n")
}

/// What differs between two checkpoints, for people.
pub(super) fn differences_as_text(
    (first, second): (&Found, &Found),
    differences: &[Difference],
    depth: Depth,
) -> String {
    let heading = format!("{} -> {}\n", first.name, second.name);
    if differences.is_empty() {
        let how = match depth {
            Depth::Full => "the same, byte by byte",
            Depth::Metadata => "the same files of the same sizes",
        };
        return format!("{heading}  {how}\n");
    }
    let lines = differences.iter().map(|difference| {
        let file = &difference.file;
        match difference.change {
            Change::OnlyInFirst(bytes) => format!("  - {file} ({})\n", size(bytes)),
            Change::OnlyInSecond(bytes) => format!("  + {file} ({})\n", size(bytes)),
            Change::Size(from, to) => {
                let by = to.abs_diff(from);
                let sign = if to > from { '+' } else { '-' };
                format!(
                    "  ~ {file} ({} -> {}, {sign}{by} B)\n",
                    size(from),
                    size(to)
                )
            }
            Change::Content(bytes) => {
                format!("  ~ {file} ({}, other contents)\n", size(bytes))
            }
        }
    });
    std::iter::once(heading).chain(lines).collect()
}

/// The same for programs.
pub(super) fn differences_in_json(
    (first, second): (&Found, &Found),
    differences: &[Difference],
    depth: Depth,
) -> String {
    let differences: Vec<_> = differences
        .iter()
        .map(|difference| {
            let (kind, from, to) = match difference.change {
                Change::OnlyInFirst(bytes) => ("only_in_first", Some(bytes), None),
                Change::OnlyInSecond(bytes) => ("only_in_second", None, Some(bytes)),
                Change::Size(from, to) => ("size", Some(from), Some(to)),
                Change::Content(bytes) => ("content", Some(bytes), Some(bytes)),
            };
            json!({ "file": difference.file, "change": kind, "bytes": [from, to] })
        })
        .collect();
    let answer = json!({
        "version": 1,
        "first": { "name": first.name, "step": first.step, "path": first.path },
        "second": { "name": second.name, "step": second.step, "path": second.path },
        "every_byte": depth == Depth::Full,
        "differences": differences,
    });
    format!("{answer:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_people_write_them() {
        let sizes = [0, 1023, 1024, 1536, 5 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB"]);
    }
}
