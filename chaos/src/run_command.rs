// SPDX-License-Identifier: Apache-2.0
//! `steadfast-chaos run`, `judge`, `validate`, `schema`, `doctor` and `clean`.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::bench::waiting::heed_interrupts;
use crate::doctor::{self, Machine};
use crate::failure::Failure;
use crate::judge::Verdict;
use crate::library;
use crate::report;
use crate::scenario::{self, Capability, Source};
use crate::scratch::Scratch;
use crate::storm::{self, Weather};
use crate::suite::{self, Conditions, Scored};
use crate::undo;

/// Exit codes of the commands here.
pub(crate) const CODES: &str = "Exit codes: 0 all passed, 1 one failed, 2 one is invalid or unknown (see --fail-on), 3 the \
                                command line or a file is wrong, or the harness could not do its work.";

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything is as it should be.
    Well,
    /// Something that was tested is not.
    Failed,
    /// Nothing can be said.
    Invalid,
    /// The harness could not do all of its work.
    Harness,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Scenario files, or names of scenarios that this program carries
    #[arg(value_name = "SCENARIO", required_unless_present = "all")]
    scenarios: Vec<PathBuf>,
    /// All scenarios that this program carries
    #[arg(long, conflicts_with = "scenarios")]
    all: bool,
    /// Of these only those of the short suite
    #[arg(long, requires = "all")]
    quick: bool,
    /// Of these only those with this text in their name, or with this tag
    #[arg(long, requires = "all", value_name = "TEXT")]
    filter: Vec<String>,
    /// Other seed than that of the scenario
    #[arg(long)]
    seed: Option<u64>,
    /// Run each so many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Run so many at once; more than cores makes times mean little
    #[arg(long, default_value_t = 1, value_parser = jobs)]
    jobs: usize,
    #[command(flatten)]
    output: OutputArgs,
    /// The steadfast to test [default: the one beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
    /// What is run on each node [default: `steadfast run` with a small training job]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Where reports go.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArgs {
    /// Keep the histories here, one directory for each scenario, and the reports
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write a `JUnit` report
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a JSON report
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write an HTML page with a timeline for each run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What counts as a failure of the whole
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "failed,invalid"
    )]
    fail_on: Vec<FailOn>,
}

/// What counts as a failure of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A scenario whose expectations or rules were broken
    Failed,
    /// A scenario whose fault has not landed, or of which too little is known
    Invalid,
    /// A scenario that this machine cannot run
    Skipped,
}

#[derive(Debug, Args)]
pub(crate) struct StormArgs {
    /// Nodes, those that stand by included
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=50))]
    nodes: u32,
    /// Nodes that stand by
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=2))]
    spares: u32,
    /// How long it lasts
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
    /// Seconds between two faults, in the mean
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=3600))]
    mean_seconds: u32,
    /// Chooses everything
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the scenario, and run nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// The steadfast to test [default: the one beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct JudgeArgs {
    /// Directories with the history of a run
    #[arg(required = true, value_name = "DIR")]
    histories: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Scenario files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs scenarios.
pub(crate) fn run(args: &RunArgs, out: &mut (impl Write + Send)) -> Result<Ended, Failure> {
    let mut sources = if args.all {
        library::chosen(args.quick, &args.filter)?
    } else {
        args.scenarios
            .iter()
            .map(library::named)
            .collect::<Result<_, _>>()?
    };
    if let Some(seed) = args.seed {
        for source in &mut sources {
            source.scenario.seed = seed;
        }
    }
    let sources = repeated(sources, args.repeat);
    heed_interrupts()?;
    let machine = Machine::look();
    let tools = doctor::tools(args.steadfast.clone(), &args.command, &machine)?;
    let scratch = Scratch::unless(args.output.out.as_deref())?;
    let conditions = Conditions {
        tools: &tools,
        machine: &machine,
        directory: scratch.path(),
        jobs: args.jobs,
    };
    let outcome = suite::run(&sources, conditions, out)?;
    conclude(&outcome.results, &outcome.failures, &args.output, out)
}

/// Runs a storm.
pub(crate) fn storm(args: &StormArgs, out: &mut (impl Write + Send)) -> Result<Ended, Failure> {
    let machine = Machine::look();
    let source = storm::storm(&Weather {
        nodes: args.nodes,
        spares: args.spares,
        minutes: args.minutes,
        mean_seconds: args.mean_seconds,
        seed: args.seed,
        namespaces: machine.has(Capability::Namespaces) && machine.has(Capability::PacketFilter),
    })?;
    if args.dry_run {
        write!(out, "{}", source.text).map_err(|error| Failure::write("the scenario", error))?;
        return Ok(Ended::Well);
    }
    heed_interrupts()?;
    let tools = doctor::tools(args.steadfast.clone(), &[], &machine)?;
    let scratch = Scratch::unless(args.output.out.as_deref())?;
    let conditions = Conditions {
        tools: &tools,
        machine: &machine,
        directory: scratch.path(),
        jobs: 1,
    };
    let outcome = suite::run(&[source], conditions, out)?;
    conclude(&outcome.results, &outcome.failures, &args.output, out)
}

/// Judges histories again.
pub(crate) fn judge(args: &JudgeArgs, out: &mut impl Write) -> Result<Ended, Failure> {
    let results = suite::judge_again(&args.histories)?;
    for scored in &results {
        writeln!(
            out,
            "{}: {}",
            scored.judgement.scenario,
            suite::told(&scored.judgement)
        )
        .map_err(|error| Failure::write("the report", error))?;
    }
    conclude(&results, &[], &args.output, out)
}

/// Says whether scenario files are right.
pub(crate) fn validate(args: &ValidateArgs, out: &mut impl Write) -> Result<Ended, Failure> {
    let mut all_right = true;
    for file in &args.files {
        let line = match scenario::read_file(file) {
            Ok(source) => {
                let needs: Vec<String> = source
                    .scenario
                    .needs()
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                format!("{}: right; needs {}", file.display(), needs.join(", "))
            }
            Err(failure) => {
                all_right = false;
                failure.to_string()
            }
        };
        writeln!(out, "{line}").map_err(|error| Failure::write("the report", error))?;
    }
    Ok(if all_right {
        Ended::Well
    } else {
        Ended::Failed
    })
}

/// Prints the schema of scenario files.
pub(crate) fn schema(out: &mut impl Write) -> Result<Ended, Failure> {
    let text = serde_json::to_string_pretty(&scenario::schema())
        .map_err(|error| Failure::write("the schema", error.into()))?;
    writeln!(out, "{text}").map_err(|error| Failure::write("the schema", error))?;
    Ok(Ended::Well)
}

/// Says what this machine can do.
pub(crate) fn examine(out: &mut impl Write) -> Result<Ended, Failure> {
    Machine::look().print(out)?;
    Ok(Ended::Well)
}

/// Undoes what runs have left behind whose harness is gone.
pub(crate) fn clean(out: &mut impl Write) -> Result<Ended, Failure> {
    let cleaned = undo::clean(&undo::default_directory())?;
    let mut lines: Vec<String> = Vec::new();
    lines.extend(
        cleaned
            .runs
            .iter()
            .map(|run| format!("cleaned up after {run}")),
    );
    lines.extend(
        cleaned
            .alive
            .iter()
            .map(|run| format!("{run} is still going on")),
    );
    lines.extend(
        cleaned
            .left
            .iter()
            .map(|left| format!("could not undo: {left}")),
    );
    if lines.is_empty() {
        lines.push("there is nothing to clean up".to_owned());
    }
    for line in lines {
        writeln!(out, "{line}").map_err(|error| Failure::write("the report", error))?;
    }
    Ok(if cleaned.left.is_empty() {
        Ended::Well
    } else {
        Ended::Harness
    })
}

/// Writes the reports and says how it all went.
pub(crate) fn conclude(
    results: &[Scored],
    failures: &[String],
    output: &OutputArgs,
    out: &mut impl Write,
) -> Result<Ended, Failure> {
    report::write_all(results, &report::Files::of(output), out)?;
    for failure in failures {
        writeln!(out, "harness: {failure}").map_err(|error| Failure::write("the report", error))?;
    }
    let some = |verdict: Verdict| {
        results
            .iter()
            .any(|scored| scored.judgement.verdict == verdict)
    };
    let counts = |what: FailOn| output.fail_on.contains(&what);
    Ok(if some(Verdict::Fail) && counts(FailOn::Failed) {
        Ended::Failed
    } else if !failures.is_empty() {
        Ended::Harness
    } else if (some(Verdict::Invalid) || some(Verdict::Unknown)) && counts(FailOn::Invalid)
        || some(Verdict::Skipped) && counts(FailOn::Skipped)
    {
        Ended::Invalid
    } else {
        Ended::Well
    })
}

impl report::Files {
    fn of(output: &OutputArgs) -> Self {
        let in_out = |name: &str| output.out.as_ref().map(|directory| directory.join(name));
        Self {
            junit: output.junit.clone().or_else(|| in_out("junit.xml")),
            json: output.json.clone().or_else(|| in_out("report.json")),
            html: output.html.clone().or_else(|| in_out("report.html")),
        }
    }
}

/// Reads a number of scenarios to run at once.
fn jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs) if (1..=64).contains(&jobs) => Ok(jobs),
        _ => Err("must be between 1 and 64".to_owned()),
    }
}

fn repeated(sources: Vec<Source>, times: u32) -> Vec<Source> {
    if times == 1 {
        return sources;
    }
    let mut all = Vec::new();
    for source in sources {
        for time in 1..=times {
            let mut again = source.clone();
            again.name = format!("{}-{time}", source.name);
            again.scenario.seed = source.scenario.seed.wrapping_add(u64::from(time - 1));
            all.push(again);
        }
    }
    all
}
