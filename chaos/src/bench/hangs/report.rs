// SPDX-License-Identifier: Apache-2.0
//! The table that people read, and the JSON for programs.

use std::io::{self, Write};

use super::{Outcome, Report, Row};
use crate::bench::report;
use crate::failure::Failure;

impl Report {
    pub(super) fn write(&self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        report::write(self, json, out, |out| self.write_text(out))
    }

    /// Whether all was as it has to be.
    pub(super) fn is_right(&self) -> bool {
        let mut outcomes = self.rows.iter().flat_map(|row| &row.outcomes);
        outcomes.all(|one| one.rank_right && one.node_right && one.class_right)
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Four ranks, steps of {} s; {} processors, load {} before.\n\
             Seconds from the fault to the first verdict: median [least-greatest]; how many of the verdicts were right.\n",
            self.step_seconds, self.processors, self.load
        )?;
        writeln!(
            out,
            "{:<30} {:>5} {:>18} {:>6} {:>6} {:>6}  said",
            "fault", "nodes", "seconds", "rank", "node", "class"
        )?;
        for row in &self.rows {
            row.write(out)?;
        }
        for absent in &self.absent {
            writeln!(out, "not measured: {absent}")?;
        }
        Ok(())
    }
}

impl Row {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let count = |such: fn(&Outcome) -> bool| {
            let right = self.outcomes.iter().filter(|one| such(one)).count();
            format!("{right}/{}", self.outcomes.len())
        };
        let seconds = self
            .seconds
            .map_or_else(|| "-".to_owned(), |seconds| seconds.to_string());
        writeln!(
            out,
            "{:<30} {:>5} {:>18} {:>6} {:>6} {:>6}  {}",
            self.fault.words(),
            self.nodes,
            seconds,
            count(|one| one.rank_right),
            count(|one| one.node_right),
            count(|one| one.class_right),
            self.outcomes.last().map_or("", |one| one.said.as_str())
        )
    }
}
