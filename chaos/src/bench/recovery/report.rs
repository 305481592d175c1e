// SPDX-License-Identifier: Apache-2.0
//! The table that people read, and the JSON for programs.

use std::io::{self, Write};

use super::{Fault, Report};
use crate::bench::report;
use crate::failure::Failure;

impl Report {
    pub(super) fn write(&self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        report::write(self, json, out, |out| self.write_text(out))
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let how = match self.fault {
            Fault::Kill => "killed with SIGKILL",
            Fault::Exit => "exiting with code 1",
        };
        writeln!(
            out,
            "One of {} workers {how}, {} times, at random moments; {} processors, load {} before.\n\
             Milliseconds since the fault: median [least-greatest].\n",
            self.workers, self.faults, self.processors, self.load
        )?;
        writeln!(
            out,
            "{:<12} {:>20} {:>20} {:>20} {:>20}",
            "", "first new worker", "last new worker", "old workers gone", "first new step"
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<12} {:>20} {:>20} {:>20} {:>20}",
                row.launcher, row.first_worker, row.last_worker, row.old_gone, row.first_step
            )?;
        }
        writeln!(
            out,
            "{:<12} {:>20} {:>20}    (started at once by this program)",
            "Python alone", self.python.first_of_many, self.python.last_of_many
        )?;
        writeln!(
            out,
            "\n`python3 -c pass` takes {} ms from start to end.",
            self.python.pass
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{}: Python's own start is {:.0} % of the first worker's figure, {:.0} % of the last one's.",
                row.launcher,
                share(self.python.first_of_many.median, row.first_worker.median),
                share(self.python.last_of_many.median, row.last_worker.median)
            )?;
        }
        for absent in &self.absent {
            writeln!(out, "not measured: {absent}")?;
        }
        if let (Some(limit), Some(within)) = (self.at_most_ms, self.within_limit) {
            let verdict = if within { "kept" } else { "BROKEN" };
            writeln!(
                out,
                "limit for steadfast's last new worker, median: {limit:.0} ms: {verdict}"
            )?;
        }
        Ok(())
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        part / whole * 100.0
    } else {
        0.0
    }
}
