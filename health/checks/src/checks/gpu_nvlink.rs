// SPDX-License-Identifier: Apache-2.0
//! The links between GPUs.

use std::collections::BTreeMap;

use steadfast_health::nvml::NvlinkReading;

use super::each_gpu::{Judged, Seen, each_gpu};
use super::{IN_JOBS_BUT_EPILOG, WITH_GPUS};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::rates::{Growth, compare, in_words, per_hour};
use crate::spec::{Number, Spec, Threshold, Unit, number, optional};

static EXPECTED: Number = optional(
    "expected",
    Unit::Count,
    "Links that each GPU must have up. Unless set, a link that is down fails the check only while others of the same GPU are \
     up: many boards use none.",
);

static MAX_ERRORS: Number = number(
    "max_errors",
    Unit::PerHour,
    60,
    "Replays, recoveries and checksum errors of one link since the last run. More are a warning.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "gpu-nvlink",
    doc: "Finds NVLinks that are down, and links that count errors faster than they should.",
    profiles: IN_JOBS_BUT_EPILOG,
    deadline: WITH_GPUS,
    thresholds: &[Threshold::Number(&EXPECTED), Threshold::Number(&MAX_ERRORS)],
    needs_gpus: true,
    look,
};

const DOWN: &str = "reset the GPUs of the node, or reboot; if the link stays down, have the board or the switch examined";
const ERRORS: &str =
    "reset the GPUs of the node; if the errors go on, have the board or the switch examined";

fn look(context: &Context<'_>) -> Outcome {
    let mut counters = BTreeMap::new();
    let mut names = BTreeMap::new();
    let expected = context.number(&EXPECTED);
    let mut outcome = each_gpu(
        context,
        "no NVLink is down",
        "how its NVLinks are",
        |gpu, outcome| {
            let links = &gpu.snapshot.reading.nvlinks;
            if links.is_empty() && expected.is_none() {
                return Judged::Unknown;
            }
            judge(gpu, links, expected, outcome);
            for link in links {
                if let Some(errors) = link.errors {
                    let key = format!("{}/{}", gpu.identity.uuid, link.link);
                    names.insert(
                        key.clone(),
                        format!("NVLink {} of {}", link.link, gpu.label),
                    );
                    counters.insert(key, errors);
                }
            }
            Judged::Known
        },
    );
    if !counters.is_empty() {
        judge_errors(context, counters, &names, &mut outcome);
    }
    outcome
}

fn judge(gpu: &Seen<'_>, links: &[NvlinkReading], expected: Option<u64>, outcome: &mut Outcome) {
    let label = &gpu.label;
    let up = links.iter().filter(|link| link.active).count();
    if let Some(expected) = expected {
        if (up as u64) < expected {
            outcome.fail(format!("{label} has {up} of {expected} NVLinks up"), DOWN);
        }
        return;
    }
    if up == 0 {
        outcome.evidence(format!("{label} uses none of its {} NVLinks", links.len()));
        return;
    }
    let down: Vec<String> = links
        .iter()
        .filter(|link| !link.active)
        .map(|link| link.link.to_string())
        .collect();
    if !down.is_empty() {
        outcome.fail(format!("{label}: NVLink {} is down", down.join(", ")), DOWN);
    }
}

fn judge_errors(
    context: &Context<'_>,
    counters: BTreeMap<String, u64>,
    names: &BTreeMap<String, String>,
    outcome: &mut Outcome,
) {
    let (growth, kept) = match compare(context, context.remembered(), counters) {
        Ok(compared) => compared,
        Err(unread) => return outcome.evidence(format!("errors of links: {}", unread.why)),
    };
    outcome.remember(&kept);
    match growth {
        Growth::Unknown(why) => outcome.evidence(format!("errors of links: {why}")),
        Growth::Since(elapsed, grown) => {
            let most = context.number(&MAX_ERRORS);
            for (key, errors) in grown {
                let Some(name) = names.get(&key) else {
                    continue;
                };
                if most.is_some_and(|most| per_hour(errors, elapsed) > most) {
                    let text = format!("{name} counts errors: {}", in_words(errors, elapsed));
                    outcome.warn(text, ERRORS);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_health::nvml::GpuSnapshot;

    use crate::outcome::Status;
    use crate::testing::{Made, healthy, lines, said};

    fn with_links(up: &[bool], errors: u64) -> GpuSnapshot {
        let mut gpu = healthy();
        let mut link = gpu.reading.nvlinks[0];
        link.errors = Some(errors);
        gpu.reading.nvlinks = (0..)
            .zip(up)
            .map(|(number, &active)| {
                let mut link = link;
                (link.link, link.active) = (number, active);
                link
            })
            .collect();
        gpu
    }

    #[test]
    fn a_link_is_down_only_while_others_are_up() {
        let made = Made::with_gpus(&[with_links(&[true, false, true, false], 0)]);
        made.expect(
            "gpu-nvlink",
            Status::Fail,
            "GPU 0 (0000:18:00): NVLink 1, 3 is down",
        );
        let made = Made::with_gpus(&[with_links(&[false, false], 0)]);
        made.expect("gpu-nvlink", Status::Ok, "");
        let made = made.settings("[check.gpu-nvlink]\nexpected = 2");
        made.expect("gpu-nvlink", Status::Fail, "has 0 of 2 NVLinks up");
    }

    #[test]
    fn errors_are_counted_from_one_run_to_the_next() {
        let made = Made::with_gpus(&[with_links(&[true], 1_000_000)]);
        made.expect("gpu-nvlink", Status::Ok, "");
        made.write("proc/uptime", "4600.00 0\n");
        let made = made.nvml(said(&lines(&[with_links(&[true], 1_000_060)])));
        made.expect("gpu-nvlink", Status::Ok, "");
        made.write("proc/uptime", "8200.00 0\n");
        let made = made.nvml(said(&lines(&[with_links(&[true], 1_000_121)])));
        let said = "NVLink 0 of GPU 0 (0000:18:00) counts errors: 61 in 1h";
        made.expect("gpu-nvlink", Status::Warn, said);
    }
}
