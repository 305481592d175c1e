// SPDX-License-Identifier: Apache-2.0
//! The table that people read, and the JSON for programs.

use std::io::{self, Write};

use super::trial::Row;
use super::{Report, share};
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
            "Two nodes with {} workers each on this machine, {} faults of each kind; {} processors, load {} before.\n\
             Milliseconds since the fault: median [least-greatest], and how many times as long as steadfast.\n\n\
             {:<28} {:<12} {:>32} {:>32}",
            self.workers_per_node,
            self.reps,
            self.processors,
            self.load,
            "",
            "",
            "first line of a new worker",
            "first step"
        )?;
        for row in &self.rows {
            self.write_row(row, out)?;
        }
        if let Some(parts) = &self.parts {
            writeln!(
                out,
                "\nWhere the time goes when a worker is killed, by the journals:\n\
                 from its exit to the start of all new workers {:>10} ms\n\
                 stopping the others                           {:>10} ms\n\
                 starting the new ones                         {:>10} ms\n\
                 coordination                                  {:>10} ms\n\
                 a write to etcd takes {} ms; {:.0} of them follow each other, which leaves {:.0} ms for coordination itself",
                parts.total,
                parts.stopping,
                parts.starting,
                parts.coordination,
                parts.write,
                share::WRITES,
                parts.own
            )?;
        }
        for absent in &self.absent {
            writeln!(out, "NOT MEASURED: {absent}")?;
        }
        Ok(())
    }

    fn write_row(&self, row: &Row, out: &mut impl Write) -> io::Result<()> {
        let mut ours = self.rows.iter();
        let ours = ours.find(|ours| ours.case == row.case);
        let is_first = ours.is_some_and(|ours| ours.launcher == row.launcher);
        let case = if is_first { row.case.words() } else { "" };
        let cell = |part: fn(&Row) -> Option<Summary>| {
            let own = part(row)?;
            let ratio = ours.and_then(part).filter(|_| !is_first);
            let ratio = ratio.map(|ours| format!(" x {:.1}", own.median / ours.median));
            Some(format!("{own}{}", ratio.unwrap_or_default()))
        };
        let (worker, step) = (cell(|row| row.first_worker), cell(|row| row.first_step));
        let (worker, step) = (worker.unwrap_or_default(), step.unwrap_or_default());
        write!(
            out,
            "{case:<28} {:<12} {worker:>32} {step:>32}",
            row.launcher
        )?;
        if row.away > 0 {
            write!(
                out,
                "  {} of {} did not train again within {} s",
                row.away, self.reps, self.give_up_after
            )?;
        }
        if row.ended > 0 {
            write!(out, "  {} of {} ended for good", row.ended, self.reps)?;
        }
        writeln!(out)
    }
}
