// SPDX-License-Identifier: Apache-2.0
//! The table that people read, and the JSON for programs.

use std::io::{self, Write};

use super::{Report, Restart};
use crate::bench::report;
use crate::bench::statistics::Summary;
use crate::failure::Failure;

impl Report {
    pub(super) fn write(&self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        report::write(self, json, out, |out| self.write_text(out))
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{} members in {} processes, a worker of one of them killed {} times; {} processors, load {} before.\n\
             A small write takes etcd {} ms; the plan has {} bytes; all members had met after {:.1} s.\n\
             Until then each of them cost {:.1} transactions, {:.1} reads, {:.1} renewals of leases, {:.0} kilobytes from etcd.\n\
             Milliseconds since the fault, median [least-greatest] over all faults.\n",
            self.members,
            self.processes,
            self.restarts.len(),
            self.processors,
            self.load,
            self.write_ms,
            self.plan_bytes,
            self.gathered_ms / 1e3,
            self.gathering.transactions,
            self.gathering.reads,
            self.gathering.lease_renewals,
            self.gathering.bytes_sent / 1e3
        )?;
        let row = |out: &mut dyn Write, name: &str, value: fn(&Restart) -> f64| {
            let values: Vec<_> = self.restarts.iter().map(value).collect();
            match Summary::of(&values) {
                Some(summary) => writeln!(out, "{name:<40} {summary:>24}"),
                None => Ok(()),
            }
        };
        row(out, "half of the members told to stop", |one| one.stop_p50)?;
        row(out, "the last member told to stop", |one| one.stop_last)?;
        row(out, "next plan held by the first member", |one| {
            one.plan_first
        })?;
        row(out, "by half of the members (p50)", |one| one.plan_p50)?;
        row(out, "by 99 % of the members (p99)", |one| one.plan_p99)?;
        row(out, "by the last member", |one| one.plan_last)?;
        writeln!(
            out,
            "\nFor each member and fault, until everything was quiet again:\n"
        )?;
        row(out, "transactions", |one| one.each.transactions)?;
        row(out, "reads", |one| one.each.reads)?;
        row(out, "messages to watchers", |one| one.each.watch_messages)?;
        row(out, "renewals of leases", |one| one.each.lease_renewals)?;
        row(out, "kilobytes to etcd", |one| {
            one.each.bytes_received / 1e3
        })?;
        row(out, "kilobytes from etcd", |one| one.each.bytes_sent / 1e3)?;
        writeln!(
            out,
            "\nThe end of the job was known to all after {:.0} ms.",
            self.ended_ms
        )?;
        if let (Some(limit), Some(within)) = (self.at_most_ms, self.within_limit) {
            let verdict = if within { "kept" } else { "BROKEN" };
            writeln!(
                out,
                "limit for the 99th percentile, median: {limit:.0} ms: {verdict}"
            )?;
        }
        Ok(())
    }
}
