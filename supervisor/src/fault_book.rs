// SPDX-License-Identifier: Apache-2.0
//! The faults of this node's GPUs, remembered over jobs and restarts of the machine, in a small file. The node service
//! writes it, which sees all that the kernel log and the driver's library say; checks and jobs read it.
//!
//! What cannot be read is taken for an empty memory: nobody is worse off then than without one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use steadfast_core::FaultScore;
use steadfast_health::gpus::Owner;
use steadfast_health::incidents::Judged;
use steadfast_health::xid::Action;
use steadfast_proto::v1::FaultClass;

use crate::clock;
use crate::config::Host;

/// Where it is, below the root, unless somebody says otherwise.
const USUAL_FILE: &str = "var/lib/steadfast/gpu-faults.json";
/// The variable that says otherwise.
const VARIABLE: &str = "STEADFAST_GPU_FAULTS";
/// The most of a file that is read.
const MOST_BYTES: u64 = 4 << 20;
/// What weighs less than this is forgotten: a fault after ten half-lives.
const FORGOTTEN: u64 = 1;
/// The most GPUs that are remembered; more than a node sees in its life.
const MOST_GPUS: usize = 4_096;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FaultBook {
    version: u32,
    /// Up to when this start of the machine has been written down: what the kernel log says again after a restart of the
    /// service is nothing new.
    boot: String,
    until_ns: u64,
    /// By UUID.
    gpus: BTreeMap<String, FaultScore>,
}

/// The book, and where it is kept.
#[derive(Debug)]
pub(crate) struct Keeper {
    file: PathBuf,
    node: String,
    book: FaultBook,
}

/// Where the book is: as was given, else as the variable says, else as usual.
pub(crate) fn place(host: &Host, given: Option<&PathBuf>) -> PathBuf {
    let named = given.cloned();
    let named = named.or_else(|| host.variable(VARIABLE).map(PathBuf::from));
    named.map_or_else(
        || host.root.join(USUAL_FILE),
        |file| host.working_dir.join(file),
    )
}

impl FaultBook {
    /// Reads it.
    pub(crate) fn read(file: &Path) -> Self {
        let fits = fs::metadata(file).is_ok_and(|about| about.len() <= MOST_BYTES);
        let text = fits.then(|| fs::read_to_string(file).unwrap_or_default());
        serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
    }

    /// What the GPU's faults weigh now, and the last of them.
    pub(crate) fn of(&self, uuid: &str) -> Option<(u64, &FaultScore)> {
        let score = self.gpus.get(uuid)?;
        Some((score.weight_at(clock::wall_ms()), score))
    }

    /// All GPUs that are remembered.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &FaultScore)> {
        self.gpus.iter().map(|(uuid, score)| (uuid.as_str(), score))
    }

    /// Takes in a fault that happened at this time of this start of the machine. Says whether it was news.
    fn add(
        &mut self,
        boot: &str,
        at_ns: u64,
        uuid: &str,
        add: impl FnOnce(&mut FaultScore),
    ) -> bool {
        if self.boot == boot && at_ns <= self.until_ns {
            return false;
        }
        boot.clone_into(&mut self.boot);
        self.until_ns = at_ns;
        let now_ms = clock::wall_ms();
        self.gpus
            .retain(|_, score| score.weight_at(now_ms) > FORGOTTEN);
        if self.gpus.len() < MOST_GPUS || self.gpus.contains_key(uuid) {
            add(self.gpus.entry(uuid.to_owned()).or_default());
        }
        true
    }
}

impl Keeper {
    /// Goes on with the book in that file.
    pub(crate) fn open(file: PathBuf, node: String) -> Self {
        Self {
            book: FaultBook::read(&file),
            file,
            node,
        }
    }

    /// Takes in what was judged. Only faults of the hardware count, and only of GPUs that can be told from others.
    ///
    /// # Errors
    ///
    /// When the file cannot be written; the book goes on in memory.
    pub(crate) fn note(&mut self, judged: &Judged) -> io::Result<()> {
        let finding = judged.finding(Owner::Job);
        let is_hardware = matches!(
            finding.class(),
            FaultClass::GpuHardware | FaultClass::GpuMemory | FaultClass::Link
        );
        let counts = judged.is_news && is_hardware && judged.found.action > Action::Report;
        if !counts || finding.device.is_empty() {
            return Ok(());
        }
        let at_ms = clock::wall_ms_at(judged.at_ns);
        let (node, what) = (self.node.clone(), judged.event.title());
        let news = self
            .book
            .add(&boot_id(), judged.at_ns, &finding.device, |score| {
                score.add(at_ms, &node, &what);
            });
        if news { self.write() } else { Ok(()) }
    }

    /// A reader never sees half of it.
    fn write(&mut self) -> io::Result<()> {
        self.book.version = 1;
        let text = serde_json::to_vec_pretty(&self.book)?;
        if let Some(directory) = self.file.parent() {
            fs::create_dir_all(directory)?;
        }
        let new = self.file.with_extension("new");
        fs::write(&new, text)?;
        // Jobs of all users read it.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(new, &self.file)
    }
}

fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(book: &mut FaultBook, boot: &str, at_ns: u64) -> bool {
        book.add(boot, at_ns, "GPU-1", |score| {
            score.add(clock::wall_ms(), "n1", "XID 79");
        })
    }

    #[test]
    fn what_a_log_says_again_is_written_down_once() {
        let mut book = FaultBook::default();
        assert!(add(&mut book, "first", 10));
        assert!(!add(&mut book, "first", 10));
        assert!(!add(&mut book, "first", 5));
        assert!(add(&mut book, "first", 11));
        assert!(add(&mut book, "second", 5));
        let (weight, score) = book.of("GPU-1").unwrap();
        assert!((2_990..=3_000).contains(&weight), "{weight}");
        assert_eq!((score.node.as_str(), score.last.as_str()), ("n1", "XID 79"));
    }

    #[test]
    fn a_book_is_kept_in_its_file_and_a_broken_one_is_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/faults.json");
        let mut keeper = Keeper::open(file.clone(), "n1".to_owned());
        assert!(add(&mut keeper.book, "boot", 10));
        keeper.write().unwrap();
        assert_eq!(FaultBook::read(&file), keeper.book);
        fs::write(&file, "{\"gpus\": 7").unwrap();
        assert_eq!(FaultBook::read(&file), FaultBook::default());
        assert_eq!(
            FaultBook::read(&directory.path().join("none")),
            FaultBook::default()
        );
    }
}
