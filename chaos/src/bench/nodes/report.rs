// SPDX-License-Identifier: Apache-2.0
//! The table that people read, and the JSON for programs.

use std::io::{self, Write};

use super::{Case, Report, share};
use crate::bench::report;
use crate::failure::Failure;

impl Case {
    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::RankKilled => "worker killed",
            Self::NodeKilled => "node killed, spare there",
            Self::NodeSilent => "node silent, spare there",
            Self::Shrink => "node killed, no spare",
            Self::Sigterm => "SIGTERM to one node",
        }
    }
}

impl Report {
    pub(super) fn write(&self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        report::write(self, json, out, |out| self.write_text(out))
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Two nodes with {} workers each on this machine, {} faults of each kind; {} processors, load {} before.\n\
             Milliseconds from the fault to the first line of the first new worker: median [least-greatest].\n",
            self.workers_per_node, self.reps, self.processors, self.load
        )?;
        for row in &self.rows {
            writeln!(
                out,
                "{:<12} {:<28} {:>24}",
                row.launcher,
                row.case.words(),
                row.first_worker
            )?;
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
            writeln!(out, "not measured: {absent}")?;
        }
        Ok(())
    }
}
