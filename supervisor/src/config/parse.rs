// SPDX-License-Identifier: Apache-2.0
//! Readers for the values of single options. An error says what is wrong with the text, without repeating it.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_core::{Activity, StallSettings};
use steadfast_diagnosis::Rules;
use steadfast_health::xid::Policy;

use super::duration;
use crate::settings::{
    CgroupUse, CheckpointEvery, CoreSize, Grow, KernelLogSource, NodeRange, NvmlUse, OnNan,
    RulesFile, StallAction, Stdin, Witness, XidPolicy,
};

/// Asked for more often than this, nothing but checkpoints would be made.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// A whole number of at least `least`.
pub(crate) fn at_least(least: u32) -> impl FnOnce(&str) -> Result<u32, String> {
    move |text| match text.trim().parse() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("must be a whole number of at least {least}")),
    }
}

/// `true` or `false`, and the other words for them.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("must be `true` or `false`".to_owned()),
    }
}

/// A TCP port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("must be a port from 1 to 65535".to_owned()),
    }
}

/// `N` or `MIN:MAX`.
pub(crate) fn nodes(text: &str) -> Result<NodeRange, String> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    let number = |part: &str| {
        at_least(1)(part).map_err(|_| "must be N or MIN:MAX, with numbers of at least 1".to_owned())
    };
    let (min, max) = (number(min)?, number(max)?);
    if min > max {
        return Err(format!(
            "the smallest number of nodes, {min}, is above the largest, {max}"
        ));
    }
    Ok(NodeRange { min, max })
}

/// A name that is safe in paths and keys, of at most `longest` characters.
pub(crate) fn name(longest: usize) -> impl FnOnce(&str) -> Result<String, String> {
    move |text| {
        if text.is_empty() || text.len() > longest {
            return Err(format!("a name has 1 to {longest} characters"));
        }
        if text.starts_with('.') || !text.bytes().all(is_name_byte) {
            return Err(
                "a name is made of letters, digits, `.`, `-` and `_`, and does not start with `.`"
                    .to_owned(),
            );
        }
        Ok(text.to_owned())
    }
}

/// `text` with everything that [`name`] refuses replaced or cut off; may be empty.
pub(crate) fn as_name(text: &str, longest: usize) -> String {
    let name: String = text
        .chars()
        .map(|c| {
            if u8::try_from(c).is_ok_and(is_name_byte) {
                c
            } else {
                '-'
            }
        })
        .collect();
    name.trim_start_matches('.').chars().take(longest).collect()
}

/// Text on one line, taken as it is.
pub(crate) fn line(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err("must be text without line breaks".to_owned());
    }
    Ok(text.to_owned())
}

/// One word without spaces, taken as it is: a host or an address.
pub(crate) fn word(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("must be one word".to_owned());
    }
    Ok(text.to_owned())
}

/// `null` or `inherit`.
pub(crate) fn stdin(text: &str) -> Result<Stdin, String> {
    match text {
        "null" => Ok(Stdin::Null),
        "inherit" => Ok(Stdin::Inherit),
        _ => Err("must be `null` or `inherit`".to_owned()),
    }
}

/// `auto` or `off`.
pub(crate) fn cgroup(text: &str) -> Result<CgroupUse, String> {
    match text {
        "auto" => Ok(CgroupUse::Auto),
        "off" => Ok(CgroupUse::Off),
        _ => Err("must be `auto` or `off`".to_owned()),
    }
}

/// `auto` (true) or `none` (false).
pub(crate) fn scheduler(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "none" => Ok(false),
        _ => Err("must be `auto` or `none`".to_owned()),
    }
}

/// `never`, `at-checkpoint` or `immediately`.
pub(crate) fn grow(text: &str) -> Result<Grow, String> {
    match text {
        "never" => Ok(Grow::Never),
        "at-checkpoint" => Ok(Grow::AtCheckpoint),
        "immediately" => Ok(Grow::Immediately),
        _ => Err("must be `never`, `at-checkpoint` or `immediately`".to_owned()),
    }
}

/// A duration, `auto` or `never`.
pub(crate) fn checkpoint_every(text: &str) -> Result<CheckpointEvery, String> {
    match text {
        "never" => Ok(CheckpointEvery::Never),
        "auto" => Ok(CheckpointEvery::Auto),
        _ => match duration::parse(text)? {
            time if time < SHORTEST_INTERVAL => Err("shorter than a second".to_owned()),
            time => Ok(CheckpointEvery::Time(time)),
        },
    }
}

/// `auto`, `on` or `off`.
pub(crate) fn witness(text: &str) -> Result<Witness, String> {
    match text {
        "auto" => Ok(Witness::Auto),
        "on" => Ok(Witness::On),
        "off" => Ok(Witness::Off),
        _ => Err("must be `auto`, `on` or `off`".to_owned()),
    }
}

/// `auto`, `report` or `off`.
pub(crate) fn stall(text: &str) -> Result<StallAction, String> {
    match text {
        "auto" => Ok(StallAction::Restart),
        "report" => Ok(StallAction::Report),
        "off" => Ok(StallAction::Off),
        _ => Err("must be `auto`, `report` or `off`".to_owned()),
    }
}

/// `report`, `restart` or `end`.
pub(crate) fn on_nan(text: &str) -> Result<OnNan, String> {
    match text {
        "report" => Ok(OnNan::Report),
        "restart" => Ok(OnNan::Restart),
        "end" => Ok(OnNan::End),
        _ => Err("must be `report`, `restart` or `end`".to_owned()),
    }
}

/// Durations, each for an activity of the training; one without a name is that between steps.
pub(crate) fn stall_after(text: &str) -> Result<StallSettings, String> {
    let mut settings = StallSettings::default();
    for word in list(text) {
        let (name, time) = word
            .split_once('=')
            .map_or((Activity::Train.name(), word.as_str()), |(name, time)| {
                (name.trim(), time)
            });
        let known = Activity::CONFIGURABLE;
        let activity = known.into_iter().find(|activity| activity.name() == name);
        let Some(activity) = activity else {
            let names: Vec<_> = known
                .map(|activity| format!("`{}`", activity.name()))
                .into();
            return Err(format!("`{name}` must be one of {}", names.join(", ")));
        };
        let time = duration::parse(time)?;
        if time.is_zero() {
            return Err(format!("the duration for `{name}` must not be zero"));
        }
        if settings.fixed.insert(activity, time).is_some() {
            return Err(format!("`{name}` is there twice"));
        }
    }
    Ok(settings)
}

/// A name or an address of a host, without a port.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let address = word(text)?;
    if address.matches(':').count() == 1 || address.starts_with('[') || address.contains("://") {
        return Err("must be a host's name or address alone, without a port".to_owned());
    }
    Ok(address)
}

/// `LEVEL=NAME` with commas between; no level twice.
pub(crate) fn topology(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut levels: Vec<(String, String)> = Vec::new();
    for word in list(text) {
        let (level, place) = word
            .split_once('=')
            .map(|(level, place)| (level.trim(), place.trim()))
            .filter(|(level, place)| !level.is_empty() && !place.is_empty())
            .ok_or_else(|| format!("`{word}` is not LEVEL=NAME, such as `rack=r1`"))?;
        if levels.iter().any(|(known, _)| known == level) {
            return Err(format!("the level `{level}` is there twice"));
        }
        levels.push((level.to_owned(), place.to_owned()));
    }
    Ok(levels)
}

/// `auto`, `off` or a path.
pub(crate) fn kernel_log(text: &str) -> Result<KernelLogSource, String> {
    match text {
        "" => Err("must be `auto`, `off` or a file".to_owned()),
        "auto" => Ok(KernelLogSource::Auto),
        "off" => Ok(KernelLogSource::Off),
        path => std::path::absolute(path)
            .map(KernelLogSource::Path)
            .map_err(|error| error.to_string()),
    }
}

/// `auto`, `off` or a path.
pub(crate) fn nvml(text: &str) -> Result<NvmlUse, String> {
    match text {
        "" => Err("must be `auto`, `off` or a file".to_owned()),
        "auto" => Ok(NvmlUse::Auto),
        "off" => Ok(NvmlUse::Off),
        path => std::path::absolute(path)
            .map(NvmlUse::Path)
            .map_err(|error| error.to_string()),
    }
}

/// `kernel` or `anyone`: whether lines of programs count.
pub(crate) fn kernel_log_trust(text: &str) -> Result<bool, String> {
    match text {
        "kernel" => Ok(false),
        "anyone" => Ok(true),
        _ => Err("must be `kernel` or `anyone`".to_owned()),
    }
}

/// Reads an XID policy, so that it is what was read that counts, whatever becomes of the file.
pub(crate) fn xid_policy(text: &str) -> Result<XidPolicy, String> {
    let file = std::path::absolute(text).map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    Policy::parse(&file, &text).map_err(|error| error.to_string())?;
    Ok(XidPolicy { file, text })
}

/// Reads a file of rules, so that it is what was read that counts, whatever becomes of the file.
pub(crate) fn fault_rules(text: &str) -> Result<RulesFile, String> {
    let file = std::path::absolute(text).map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    Rules::with(Some((&file, &text))).map_err(|error| error.to_string())?;
    Ok(RulesFile { file, text })
}

/// Bytes, with `K`, `M`, `G` or `T` for powers of 1024; `unlimited`; `inherit`.
pub(crate) fn core_size(text: &str) -> Result<CoreSize, String> {
    match text {
        "unlimited" => return Ok(CoreSize::Unlimited),
        "inherit" => return Ok(CoreSize::Inherit),
        _ => {}
    }
    let wrong =
        || "must be a size such as `0`, `512M` or `16G`, or `unlimited`, or `inherit`".to_owned();
    let (digits, shift) = match text.bytes().last().map(|unit| unit.to_ascii_uppercase()) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .map(CoreSize::Limit)
        .ok_or_else(wrong)
}

/// The name or number of one signal.
pub(crate) fn signal(text: &str) -> Result<i32, String> {
    match signals(text)?.as_slice() {
        [signal] => Ok(*signal),
        _ => Err("must be one signal, such as `SIGUSR1`".to_owned()),
    }
}

/// A signal that has no meaning of its own.
pub(crate) fn user_signal(text: &str) -> Result<i32, String> {
    let signal = signal(text)?;
    if signal == Signal::SIGUSR1 as i32 || signal == Signal::SIGUSR2 as i32 {
        Ok(signal)
    } else {
        Err("must be `SIGUSR1` or `SIGUSR2`".to_owned())
    }
}

/// Names such as `SIGTERM` or `TERM`, or numbers, with commas between them.
pub(crate) fn signals(text: &str) -> Result<Vec<i32>, String> {
    let mut signals = Vec::new();
    for word in list(text) {
        let upper = word.to_ascii_uppercase();
        let name = if upper.starts_with("SIG") {
            upper
        } else {
            format!("SIG{upper}")
        };
        let signal = word
            .parse::<i32>()
            .ok()
            .and_then(|number| Signal::try_from(number).ok())
            .or_else(|| name.parse::<Signal>().ok())
            .ok_or_else(|| format!("`{word}` is not a signal"))?;
        if matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGCHLD) {
            return Err(format!("{signal} cannot be handled"));
        }
        if !signals.contains(&(signal as i32)) {
            signals.push(signal as i32);
        }
    }
    Ok(signals)
}

/// Local ranks with commas between them.
pub(crate) fn ranks(text: &str) -> Result<BTreeSet<u32>, String> {
    list(text)
        .into_iter()
        .map(|word| {
            word.parse()
                .map_err(|_| format!("`{word}` is not a local rank"))
        })
        .collect()
}

/// Words with commas between them; empty ones are left out.
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A regular expression with something to capture.
pub(crate) fn progress_regex(text: &str) -> Result<String, String> {
    let regex = regex::Regex::new(text).map_err(|error| {
        // The last line of the message is the reason; the others draw the expression again.
        let message = error.to_string();
        let reason = message
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_owned();
        format!("not a regular expression: {reason}")
    })?;
    if regex.captures_len() < 2 {
        return Err(
            "captures nothing: put parentheses around the step number, such as `step (\\d+)`"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_a_number_or_a_range() {
        assert_eq!(nodes("4"), Ok(NodeRange { min: 4, max: 4 }));
        assert_eq!(nodes("1:8"), Ok(NodeRange { min: 1, max: 8 }));
        assert!(nodes("0").is_err() && nodes("").is_err() && nodes("1:2:3").is_err());
        assert_eq!(
            nodes("3:2").unwrap_err(),
            "the smallest number of nodes, 3, is above the largest, 2"
        );
    }

    #[test]
    fn an_address_has_no_port() {
        for good in ["gpu7", "gpu7.cluster", "10.0.0.7", "fe80::1"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in ["gpu7:2379", "[::1]", "[::1]:5", "etcd://a", "a b", ""] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn topology_has_levels_each_once() {
        let level = |level: &str, name: &str| (level.to_owned(), name.to_owned());
        assert_eq!(
            topology("rack=r1, nvlink=n3"),
            Ok(vec![level("rack", "r1"), level("nvlink", "n3")])
        );
        assert_eq!(topology(""), Ok(vec![]));
        assert_eq!(
            topology("rack=r1,rack=r2").unwrap_err(),
            "the level `rack` is there twice"
        );
        for bad in ["r1", "=r1", "rack=", "rack:r1"] {
            assert!(topology(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn core_sizes_take_units() {
        assert_eq!(core_size("0"), Ok(CoreSize::Limit(0)));
        assert_eq!(core_size("16g"), Ok(CoreSize::Limit(16 << 30)));
        assert_eq!(core_size("unlimited"), Ok(CoreSize::Unlimited));
        assert!(
            core_size("G").is_err() && core_size("99999999T").is_err() && core_size("-1").is_err()
        );
    }

    #[test]
    fn signals_are_names_or_numbers() {
        assert_eq!(signals("SIGTERM, usr1,2"), Ok(vec![15, 10, 2]));
        assert_eq!(signals("SIGKILL").unwrap_err(), "SIGKILL cannot be handled");
        assert_eq!(signals("SIGFOO").unwrap_err(), "`SIGFOO` is not a signal");
    }

    #[test]
    fn names_are_safe_in_paths() {
        assert!(name(64)("llama-7b_v1.2").is_ok());
        for bad in ["", "..", "a/b", "a b", &"x".repeat(65)] {
            assert!(name(64)(bad).is_err(), "{bad}");
        }
        assert_eq!(as_name("../my job", 64), "-my-job");
    }

    #[test]
    fn a_progress_expression_must_capture() {
        assert!(progress_regex(r"iter (\d+)").is_ok());
        assert!(
            progress_regex(r"iter \d+")
                .unwrap_err()
                .starts_with("captures nothing")
        );
        assert_eq!(
            progress_regex("(").unwrap_err(),
            "not a regular expression: unclosed group"
        );
    }
}
