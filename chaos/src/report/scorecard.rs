// SPDX-License-Identifier: Apache-2.0
//! The whole in a few numbers.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::judge::{FaultSummary, History, Judgement, Verdict, causes};
use crate::suite::Scored;

/// The whole in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Scorecard {
    /// Scenarios that passed, failed, and so on, by the name of the verdict.
    pub(crate) verdicts: BTreeMap<&'static str, usize>,
    /// Faults that were injected and have landed.
    pub(crate) faults: usize,
    /// Restarts.
    pub(crate) restarts: u64,
    /// Restarts before which no fault had been injected: healthy training that was ended.
    pub(crate) false_restarts: usize,
    /// Faults of a worker or a node for which the cause names a rank or a node, and those for which that is another one.
    pub(crate) causes_named: usize,
    /// See `causes_named`.
    pub(crate) causes_wrong: usize,
    /// Seconds until the job made a new step, by what was injected.
    pub(crate) recovery: BTreeMap<String, Times>,
    /// Steps that counted, of all that were made, in percent.
    pub(crate) useful_steps_percent: f64,
    /// Seconds of all runs.
    pub(crate) seconds: f64,
}

/// Some times.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Times {
    /// How many.
    pub(crate) count: usize,
    /// Half of them were shorter.
    pub(crate) median: f64,
    /// 99 of 100 were not longer.
    pub(crate) p99: f64,
}

impl Scorecard {
    /// Adds it all up.
    pub(crate) fn of(results: &[Scored]) -> Self {
        let mut verdicts = BTreeMap::new();
        let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let (mut faults, mut restarts, mut false_restarts) = (0, 0, 0);
        let (mut causes_named, mut causes_wrong) = (0, 0);
        let (mut best, mut made, mut seconds) = (0, 0, 0.0);
        for Scored { judgement, history } in results {
            *verdicts.entry(name(judgement.verdict)).or_insert(0) += 1;
            faults += judgement
                .faults
                .iter()
                .filter(|fault| fault.evidence.is_some())
                .count();
            let figures = &judgement.figures;
            restarts += figures.generations.saturating_sub(1);
            best += figures.best_step;
            made += figures.steps_made;
            seconds += figures.seconds;
            for outage in &figures.outages {
                match &outage.inject {
                    Some(inject) => times
                        .entry(inject.clone())
                        .or_default()
                        .push(outage.to_step),
                    None => false_restarts += 1,
                }
            }
            if let Some(history) = history {
                let (named, wrong) = blame(judgement, history);
                causes_named += named;
                causes_wrong += wrong;
            }
        }
        Self {
            verdicts,
            faults,
            restarts,
            false_restarts,
            causes_named,
            causes_wrong,
            recovery: times
                .into_iter()
                .map(|(what, times)| (what, Times::of(times)))
                .collect(),
            useful_steps_percent: percent(best, made),
            seconds,
        }
    }

    /// Prints it.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let failed = |error| Failure::write("the report", error);
        let verdicts: Vec<String> = self
            .verdicts
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        writeln!(out, "\n{} in {:.0} s", verdicts.join(", "), self.seconds).map_err(failed)?;
        writeln!(
            out,
            "{} faults have landed; {} restarts, {} of them without a fault; {} causes named, {} of them wrong; \
             {:.1} % of the steps counted",
            self.faults,
            self.restarts,
            self.false_restarts,
            self.causes_named,
            self.causes_wrong,
            self.useful_steps_percent
        )
        .map_err(failed)?;
        if !self.recovery.is_empty() {
            writeln!(
                out,
                "\n{:<20} {:>5} {:>9} {:>9}  seconds to the next step",
                "after", "times", "median", "p99"
            )
            .map_err(failed)?;
        }
        for (what, times) in &self.recovery {
            writeln!(
                out,
                "{what:<20} {:>5} {:>9.2} {:>9.2}",
                times.count, times.median, times.p99
            )
            .map_err(failed)?;
        }
        Ok(())
    }
}

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(index).copied().unwrap_or(0.0)
        };
        Self {
            count: times.len(),
            median: at(50),
            p99: at(99),
        }
    }
}

/// Of how many restarts a cause is named, and of how many it is no rank or node that anything had happened to.
fn blame(judgement: &Judgement, history: &History) -> (usize, usize) {
    let causes = causes(history);
    let (mut named, mut wrong) = (0, 0);
    for outage in judgement
        .figures
        .outages
        .iter()
        .filter(|outage| outage.fault.is_some())
    {
        let of_it = causes
            .iter()
            .find(|cause| cause["generation"] == outage.before);
        let Some(cause) = of_it else { continue };
        let mut victims = judgement
            .faults
            .iter()
            .filter(|fault| outage.suspects.contains(&fault.fault));
        named += 1;
        wrong += usize::from(!victims.any(|victim| fits(cause, victim)));
    }
    (named, wrong)
}

/// Whether a cause can be what happened to a victim: what is not named, or was not hit, says nothing.
fn fits(cause: &Value, victim: &FaultSummary) -> bool {
    let same =
        |named: &Value, hit: Option<Value>| named.is_null() || hit.is_none_or(|hit| *named == hit);
    same(&cause["rank"], victim.rank.map(Into::into))
        && same(&cause["node"], victim.node.clone().map(Into::into))
}

fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "passed",
        Verdict::Skipped => "skipped",
        Verdict::Unknown => "unknown",
        Verdict::Invalid => "invalid",
        Verdict::Fail => "failed",
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    let thousandths = (part * 1000).checked_div(whole).unwrap_or(1000);
    f64::from(u32::try_from(thousandths.min(1000)).unwrap_or(1000)) / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ordered_and_percent_is_of_the_whole() {
        let times = Times::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((times.count, times.median, times.p99), (3, 2.0, 3.0));
        assert!((percent(45, 50) - 90.0).abs() < 1e-9);
        assert!((percent(0, 0) - 100.0).abs() < 1e-9);
    }
}
