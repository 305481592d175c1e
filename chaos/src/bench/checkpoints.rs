// SPDX-License-Identifier: Apache-2.0
//! How fast checkpoints are looked at: one of many shards by what their headers say, and every byte of a large one, beside
//! what reading the same files costs `cat`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::launch::{Out, Program, steadfast_or_default, temporary_directory, write};
use super::statistics::{Summary, milliseconds};
use super::waiting::heed_interrupts;
use super::{processes, report};
use crate::failure::Failure;

/// Most milliseconds for looking at [`Options::shards`] shards of 10,000.
const SHARDS_LIMIT_MS: f64 = 1_000.0;
/// Least speed of reading every byte, as a share of what `cat` has from the disk.
const HASH_LIMIT: f64 = 0.8;
/// Most time for one run.
const END_WITHIN: Duration = Duration::from_mins(10);
/// Written at once.
const BLOCK: usize = 1 << 20;
/// A whole file of safetensors, without any tensor.
const SHARD: &str = "\x08\0\0\0\0\0\0\0{}      ";
const RULE: &str = "name = 'step-(?<step>\\d+)'\nfiles = ['*.safetensors']\n";

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) shards: u32,
    pub(crate) files: u32,
    pub(crate) megabytes: u32,
    pub(crate) rounds: u32,
    /// Where the files are written; their disk is what is measured.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) steadfast: Option<PathBuf>,
    /// Whether the limits decide the exit code.
    pub(crate) check: bool,
    pub(crate) json: bool,
}

/// Reading the same files, one after the other, with the command and with `cat`. Milliseconds.
#[derive(Debug, Serialize)]
struct Reading {
    verify: Summary,
    cat: Summary,
    /// Speed of the command as a share of `cat`'s, medians.
    share: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    load: String,
    shards: u32,
    /// Milliseconds from the start of the command to its end.
    shards_ms: Summary,
    files: u32,
    megabytes_each: u32,
    /// From the disk.
    cold: Reading,
    /// From memory.
    warm: Reading,
    within_limits: bool,
}

/// Measures and reports. Says whether the limits were kept, or true if they are not to be checked.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let steadfast = steadfast_or_default(options.steadfast.clone())?;
    let load = processes::load();
    let place = Place::new(options)?;
    let many = place.many_shards(options.shards)?;
    let large = place.large_files(options.files, options.megabytes)?;
    let verify = |depth: &str, directory: &Path| {
        let words = ["checkpoint", "verify", "--verify", depth, "--layout"];
        let mut command = vec![steadfast.clone().into_os_string()];
        command.extend(words.map(OsString::from));
        command.extend([place.rule.clone().into(), directory.into()]);
        place.time(&command)
    };
    let mut shards = Vec::new();
    for _ in 0..options.rounds {
        shards.push(verify("metadata", &many.directory)?);
    }
    let mut cat = vec![OsString::from("cat")];
    cat.extend(large.files.iter().map(|file| file.clone().into_os_string()));
    // The first time leaves the hashes that every other compares with.
    verify("full", &large.directory)?;
    let reading = |is_cold: bool| {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // By turns, so that a change in what else the machine does hits both.
        for _ in 0..options.rounds {
            large.prepare(is_cold)?;
            theirs.push(place.time(&cat)?);
            large.prepare(is_cold)?;
            ours.push(verify("full", &large.directory)?);
        }
        Reading::of(&ours, &theirs)
    };
    let (cold, warm) = (reading(true)?, reading(false)?);
    let shards_ms = summary(&shards)?;
    let allowed = SHARDS_LIMIT_MS * f64::from(options.shards) / 10_000.0;
    let report = Report {
        load,
        shards: options.shards,
        shards_ms,
        files: options.files,
        megabytes_each: options.megabytes,
        within_limits: shards_ms.median <= allowed && cold.share >= HASH_LIMIT,
        cold,
        warm,
    };
    report::write(&report, options.json, out, |out| report.write(out))?;
    Ok(report.within_limits || !options.check)
}

/// Where it is measured; removed at the end.
struct Place {
    root: tempfile::TempDir,
    rule: PathBuf,
}

/// A directory with one checkpoint.
struct Made {
    directory: PathBuf,
    files: Vec<PathBuf>,
}

impl Place {
    fn new(options: &Options) -> Result<Self, Failure> {
        let root = match &options.directory {
            None => temporary_directory()?,
            Some(directory) => tempfile::tempdir_in(directory)
                .map_err(|error| Failure::write(directory.display(), error))?,
        };
        let rule = root.path().join("rule.toml");
        write(&rule, RULE)?;
        Ok(Self { root, rule })
    }

    fn checkpoint(&self, name: &str) -> Result<(PathBuf, PathBuf), Failure> {
        let directory = self.root.path().join(name);
        let checkpoint = directory.join("step-1");
        fs::create_dir_all(&checkpoint)
            .map_err(|error| Failure::write(checkpoint.display(), error))?;
        Ok((directory, checkpoint))
    }

    fn many_shards(&self, count: u32) -> Result<Made, Failure> {
        let (directory, checkpoint) = self.checkpoint("many")?;
        let mut files = Vec::new();
        for number in 0..count {
            let path = checkpoint.join(format!("model-{number:05}-of-{count:05}.safetensors"));
            write(&path, SHARD)?;
            files.push(path);
        }
        Ok(Made { directory, files })
    }

    fn large_files(&self, count: u32, megabytes: u32) -> Result<Made, Failure> {
        let (directory, checkpoint) = self.checkpoint("large")?;
        // Nothing that a file system could store as a hole, or compress away.
        let mut random = steadfast_sim::Random::new(1);
        let mut block = vec![0_u8; BLOCK];
        for part in block.chunks_mut(8) {
            let bytes = random.draw().to_le_bytes();
            part.copy_from_slice(bytes.get(..part.len()).unwrap_or_default());
        }
        let mut files = Vec::new();
        for number in 0..count {
            let path = checkpoint.join(format!("{number}.bin"));
            let written = File::create(&path).and_then(|mut file| {
                for _ in 0..megabytes {
                    file.write_all(&block)?;
                }
                file.sync_all()
            });
            written.map_err(|error| Failure::write(path.display(), error))?;
            files.push(path);
        }
        write(&checkpoint.join("empty.safetensors"), SHARD)?;
        Ok(Made { directory, files })
    }

    /// Milliseconds that a command takes.
    fn time(&self, command: &[OsString]) -> Result<f64, Failure> {
        let mut program = Program::start(command, self.root.path(), Out::Nowhere)?;
        let end = program.end_ns(END_WITHIN)?;
        Ok(milliseconds(end.saturating_sub(program.started_ns)))
    }
}

impl Made {
    /// Has the system forget the files, or remember all of them.
    fn prepare(&self, is_cold: bool) -> Result<(), Failure> {
        for path in &self.files {
            let failed = |error| Failure::read(path.display(), error);
            let mut file = File::open(path).map_err(failed)?;
            if is_cold {
                fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
            } else {
                io::copy(&mut file, &mut io::sink()).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Reading {
    fn of(ours: &[f64], theirs: &[f64]) -> Result<Self, Failure> {
        let (verify, cat) = (summary(ours)?, summary(theirs)?);
        Ok(Self {
            share: cat.median / verify.median.max(1e-3),
            verify,
            cat,
        })
    }
}

fn summary(values: &[f64]) -> Result<Summary, Failure> {
    Summary::of(values).ok_or_else(|| Failure::Unexpected("there was no round".to_owned()))
}

impl Report {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Milliseconds, median [least-greatest]; load {} before.\n",
            self.load
        )?;
        writeln!(
            out,
            "{} shards, looked at by their headers: {}",
            self.shards, self.shards_ms
        )?;
        for (name, reading) in [("from the disk", &self.cold), ("from memory", &self.warm)] {
            writeln!(
                out,
                "{} files of {} MiB, every byte, {name}: {}, cat {}: {:.0} % of its speed",
                self.files,
                self.megabytes_each,
                reading.verify,
                reading.cat,
                reading.share * 100.0
            )?;
        }
        let verdict = if self.within_limits { "kept" } else { "BROKEN" };
        writeln!(
            out,
            "limits: {SHARDS_LIMIT_MS:.0} ms for 10,000 shards, {:.0} % of cat's speed from the disk: {verdict}",
            HASH_LIMIT * 100.0
        )
    }
}
