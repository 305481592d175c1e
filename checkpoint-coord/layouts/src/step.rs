// SPDX-License-Identifier: Apache-2.0
//! The step in a checkpoint's name.

/// Words before a number that make it a step, in the order in which they count. The others in a name may be epochs,
/// losses or ranks.
const WORDS: [&str; 6] = ["step", "iteration", "iter", "checkpoint", "ckpt", "batch"];

/// `prefix` and then nothing but digits.
pub(crate) fn after(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok())?
}

/// The number behind a word such as `step`; else the last number.
pub(crate) fn in_name(name: &str) -> Option<u64> {
    let lower = name.to_ascii_lowercase();
    let named = WORDS.iter().find_map(|word| {
        lower.rmatch_indices(word).find_map(|(at, _)| {
            let rest = lower.get(at + word.len()..)?;
            leading(rest.trim_start_matches(['-', '_', '=', ':', '.']))
        })
    });
    named.or_else(|| last(&lower))
}

fn leading(text: &str) -> Option<u64> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit());
    text.get(..end.unwrap_or(text.len()))?.parse().ok()
}

fn last(text: &str) -> Option<u64> {
    let mut runs = text.split(|letter: char| !letter.is_ascii_digit());
    runs.rfind(|run| !run.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_other_numbers() {
        for (name, step) in [
            ("step-1000", Some(1000)),
            ("epoch=3-step=200", Some(200)),
            (
                "megatron--val_loss=2.31-step=400-consumed_samples=6400.0-last",
                Some(400),
            ),
            ("checkpoint_17", Some(17)),
            ("model_5", Some(5)),
            ("model_v2_iter0000400", Some(400)),
            ("last", None),
            ("step=", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(in_name(name), step, "{name}");
        }
        assert_eq!(after("iter_0000400", "iter_"), Some(400));
        assert_eq!(after("iter_4x", "iter_"), None);
        assert_eq!(after("iter_", "iter_"), None);
    }
}
