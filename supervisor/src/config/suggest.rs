// SPDX-License-Identifier: Apache-2.0
//! "Did you mean": the known name that is nearest to a mistyped one.

/// The candidate that differs from `name` by the fewest single-character edits, if they are few enough to be a slip.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let most = (name.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in characters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let replaced = previous[column] + usize::from(a != *b);
            current.push(
                replaced
                    .min(previous[column + 1] + 1)
                    .min(current[column] + 1),
            );
        }
        previous = current;
    }
    previous.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_slip_and_nothing_far_away() {
        let known = ["max_restarts", "stop_grace", "tee"];
        assert_eq!(nearest("max_restart", known), Some("max_restarts"));
        assert_eq!(nearest("stop_grcae", known), Some("stop_grace"));
        assert_eq!(nearest("te", known), Some("tee"));
        assert_eq!(nearest("learning_rate", known), None);
    }
}
