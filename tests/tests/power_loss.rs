// SPDX-License-Identifier: Apache-2.0
//! Whenever the power goes or all processes are killed: no torn checkpoint counts as whole, and the one that was committed
//! last, or a newer one, is there.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use steadfast_tests::{
    Action, Disk, Job, Launch, Random, Recording, Requirement, long_tests, python,
};

/// Saves like most programs do, without flushing anything. What it is going to save it writes down in `truth` first.
const PROGRAM: &str = r#"
import io, os, random, sys, time, zipfile
kind, last = sys.argv[1], int(sys.argv[2])
work = os.environ["WORK"]
first = int(os.environ["STEADFAST_RESUME_STEP"] or 0) + 1

def archive(step, part):
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w") as file:
        # Without the time of day, which would differ between the two copies.
        file.writestr(zipfile.ZipInfo("archive/data.pkl"), b"\x80\x02}.")
        file.writestr(zipfile.ZipInfo("archive/data/0"), random.Random(f"{step} {part}").randbytes(40000))
    return contents.getvalue()

def write(path, contents):
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, len(contents), 15000):
            file.write(contents[begin:begin + 15000])

def save(step, fails):
    if kind == "files":
        write(f"{work}/truth/ckpt_{step}.pt", archive(step, 0))
        final = f"{work}/saves/ckpt_{step}.pt"
        if fails:
            write(final, archive(step, 0)[:20000])
            sys.exit(3)
        write(final + ".tmp", archive(step, 0))
        os.replace(final + ".tmp", final)
    else:
        parts = {"model.pt": archive(step, 1), "optimizer.pt": archive(step, 2), "DONE": b"done"}
        for root in ("truth", "saves"):
            os.makedirs(f"{work}/{root}/step-{step}", exist_ok=True)
            for name, contents in parts.items():
                write(f"{work}/{root}/step-{step}/{name}", contents)
                if fails and root == "saves":
                    sys.exit(3)

for step in range(first, last + 1):
    save(step, fails=os.environ["STEADFAST_GENERATION"] == "1" and step == last // 2)
    time.sleep(0.4)
while not os.path.exists(work + "/finish"):
    time.sleep(0.1)
"#;

const RULE: &str =
    "name = 'step-(?<step>\\d+)'\nfiles = [\"model.pt\", \"optimizer.pt\"]\nmarker = \"DONE\"";

/// How often the power goes, or everything is killed, in each of the jobs.
fn moments() -> usize {
    if long_tests() { 1_000 } else { 150 }
}

#[test]
fn no_power_cut_leaves_a_torn_file_that_counts_or_takes_a_committed_one() {
    try_moments_of("files", "auto", 11);
}

#[test]
fn no_power_cut_leaves_a_torn_directory_that_counts_or_takes_a_committed_one() {
    try_moments_of("directories", "rule.toml", 12);
}

fn try_moments_of(kind: &str, layout: &str, seed: u64) {
    if !(Requirement::Strace.met() && Requirement::Python.met()) {
        return;
    }
    let last = if long_tests() { 60 } else { 16 };
    let job = record(kind, layout, last);
    let recording = Recording::read(&job.directory().join("calls"));
    let begin = recording.steps.iter().position(|step| {
        matches!(&step.action, Action::MakeDirectory { path } | Action::Open { path, .. } if path.contains("/saves/"))
    });
    let begin = begin.unwrap();
    let mut random = Random::new(seed);
    let range = recording.steps.len() as u64 - begin as u64;
    let mut cuts: Vec<usize> = (0..moments())
        .map(|_| begin + usize::try_from(random.below(range)).unwrap())
        .collect();
    cuts.sort_unstable();
    let mut disk = Disk::new(&job.work().join("saves"));
    let mut committed = 0;
    let mut cuts = cuts.into_iter().peekable();
    let mut seen = Seen::default();
    for (number, step) in recording.steps.iter().enumerate() {
        while cuts.next_if_eq(&number).is_some() {
            let told = format!("{kind}, call {number}, before {:?}", step.action);
            let told: String = told.chars().take(300).collect();
            seen.note(&judge(&job, layout, &disk, committed, &mut random, &told));
        }
        disk.take(step);
        committed = committed.max(newest_commit(&step.action));
    }
    assert_eq!(committed, last, "all was recorded");
    seen.was_a_test();
}

/// What the moments had to show, all together.
#[derive(Debug, Default)]
struct Seen {
    torn: usize,
    doubted: usize,
    chosen: std::collections::BTreeSet<u64>,
}

impl Seen {
    fn note(&mut self, all: &[Value]) {
        let mut torn = all.iter().filter(|one| one["whole"] == false);
        self.torn += usize::from(torn.clone().next().is_some());
        let doubted = torn.any(|one| one["problems"].to_string().contains("machine went down"));
        self.doubted += usize::from(doubted);
        self.chosen.extend(newest_whole(all));
    }

    /// A model in which nothing is ever lost would prove nothing.
    fn was_a_test(&self) {
        let Seen {
            torn,
            doubted,
            chosen,
        } = self;
        assert!(*torn > 10 && *doubted > 10 && chosen.len() > 5, "{self:?}");
    }
}

/// Runs a job to its end that saves `last` times and fails once in the middle of that.
fn record(kind: &str, layout: &str, last: u64) -> Job {
    let options = [
        "--checkpoint-dir",
        "saves",
        "--checkpoint-layout",
        layout,
        "--keep",
        "3",
    ];
    let launch = Launch::run(&options);
    let work = launch.directory().join("work");
    for name in ["saves", "truth"] {
        fs::create_dir(work.join(name)).unwrap();
    }
    fs::write(work.join("rule.toml"), RULE).unwrap();
    // Into an empty directory nothing is put before there is something: the first moments of the first checkpoint are not
    // covered then.
    fs::write(work.join("saves/notes.txt"), "").unwrap();
    let log = launch.directory().join("calls");
    let wrapper = Recording::wrapper(log.to_str().unwrap());
    let last_step = last.to_string();
    let command = ["--", python(), "-c", PROGRAM, kind, &last_step];
    let work = work.to_str().unwrap().to_owned();
    let mut job = launch
        .inside(&wrapper)
        .env("WORK", &work)
        .env("STEADFAST_WORKING_DIR", &work)
        .command(&command)
        .start();
    job.eventually("the last commit", |job| {
        job.status()
            .filter(|status| status["committed_step"] == last)
    });
    job.touch("finish");
    job.wait().ended_with(0);
    job
}

/// The newest step that the journal says is committed, in what was just written; 0 for none.
fn newest_commit(action: &Action) -> u64 {
    let Action::Write { path, bytes, .. } = action else {
        return 0;
    };
    if !path.ends_with("/journal.jsonl") {
        return 0;
    }
    let lines = String::from_utf8_lossy(bytes);
    let lines = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let commits = lines.filter(|line: &Value| line["kind"] == "checkpoint.committed");
    commits
        .filter_map(|line| line["step"].as_u64())
        .max()
        .unwrap_or(0)
}

/// Cuts the power or kills everything, and asks the product what is left.
fn judge(
    job: &Job,
    layout: &str,
    disk: &Disk,
    committed: u64,
    random: &mut Random,
    told: &str,
) -> Vec<Value> {
    let place = job.directory().join("left");
    if random.below(4) == 0 {
        disk.kill(&place);
    } else {
        disk.cut_power(random, &place);
        start_machine_anew(&place);
    }
    let asked = job.ask(
        "checkpoint",
        &[
            "list",
            "--json",
            "--layout",
            layout,
            place.to_str().unwrap(),
        ],
    );
    asked.ended_with(0);
    let answer: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let all = answer["checkpoints"].as_array().unwrap().clone();
    for one in all.iter().filter(|one| one["whole"] == true) {
        let name = one["name"].as_str().unwrap();
        let (is, was) = (
            files(&place.join(name)),
            files(&job.work().join("truth").join(name)),
        );
        assert!(
            is == was,
            "{name} counts as whole and is not; {}; {told}",
            remembered(&place, name)
        );
    }
    let chosen = newest_whole(&all).unwrap_or(0);
    assert!(
        chosen >= committed,
        "step {committed} was committed and is lost: {answer:#}; {told}"
    );
    fs::remove_dir_all(&place).unwrap();
    all
}

/// What the product has written down of a checkpoint, and of the directory.
fn remembered(place: &Path, name: &str) -> String {
    let own = place.join(".steadfast");
    let read = |name: &str| fs::read_to_string(own.join(name)).unwrap_or_default();
    format!("{} {}", read(&format!("{name}.json")), read("boot-node"))
}

fn newest_whole(all: &[Value]) -> Option<u64> {
    let whole = all.iter().filter(|one| one["whole"] == true);
    whole.filter_map(|one| one["step"].as_u64()).max()
}

/// The marks in the directory are those of another boot then.
fn start_machine_anew(place: &Path) {
    let now = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mark = place.join(".steadfast/boot-node");
    if let Ok(text) = fs::read_to_string(&mark) {
        fs::write(&mark, text.replace(now.trim(), "earlier")).unwrap();
    }
}

/// A file or the files in a directory, with their contents.
fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let Ok(entries) = fs::read_dir(path) else {
        return [(PathBuf::new(), fs::read(path).unwrap())].into();
    };
    let entries = entries.map(|entry| entry.unwrap());
    let with_contents =
        entries.map(|entry| (entry.file_name().into(), fs::read(entry.path()).unwrap()));
    with_contents.collect()
}
