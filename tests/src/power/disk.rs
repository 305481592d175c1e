// SPDX-License-Identifier: Apache-2.0
//! A directory, what of it surely is on stable storage, and what a power cut can leave.
//!
//! The model promises no more than POSIX does: without `fsync` any part of a file may be what it was, lost, or zeros; names
//! that were given or taken since the directory was flushed are kept or lost one by one, in any order; only a rename happens
//! as a whole or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Action, Step};
use crate::random::Random;

/// File systems write whole pages.
const PAGE: usize = 4096;
const ROOT: usize = 0;

type Names = BTreeMap<String, usize>;

/// A directory during a recording.
#[derive(Debug)]
pub struct Disk {
    root: String,
    /// Files and directories, by numbers that are never given twice.
    nodes: Vec<Node>,
    flushing: BTreeMap<u32, Flush>,
}

#[derive(Debug)]
enum Node {
    File {
        now: Vec<u8>,
        stable: Vec<u8>,
        modified_ns: i64,
    },
    Directory {
        now: Names,
        stable: Names,
        /// What was done since `stable`.
        changes: Vec<Change>,
        /// How many changes were made before these.
        earlier: usize,
    },
}

#[derive(Clone, Debug)]
enum Change {
    Give(String, usize),
    Take(String),
    Rename(String, String, usize),
}

/// What is being flushed, as it was when that began.
#[derive(Debug)]
enum Flush {
    File(usize, Vec<u8>),
    Directory(usize, Names, usize),
}

impl Node {
    fn file() -> Node {
        Node::File {
            now: Vec::new(),
            stable: Vec::new(),
            modified_ns: 0,
        }
    }

    fn directory() -> Node {
        Node::Directory {
            now: Names::new(),
            stable: Names::new(),
            changes: Vec::new(),
            earlier: 0,
        }
    }
}

impl Disk {
    /// The directory `root`, empty and on stable storage.
    ///
    /// # Panics
    ///
    /// When its path is not UTF-8.
    pub fn new(root: &Path) -> Disk {
        Disk {
            root: root.to_str().unwrap().to_owned(),
            nodes: vec![Node::directory()],
            flushing: BTreeMap::new(),
        }
    }

    /// Takes in what was done next. What concerns other directories changes nothing.
    pub fn take(&mut self, step: &Step) {
        match &step.action {
            Action::Open { path, empty } => self.open(path, *empty),
            Action::Write { path, at, bytes } => self.change(path, step.time_ns, |now| {
                let at = at.map_or(now.len(), |at| usize::try_from(at).unwrap());
                now.resize(now.len().max(at + bytes.len()), 0);
                now[at..at + bytes.len()].copy_from_slice(bytes);
            }),
            Action::SetLength { path, length } => self.change(path, step.time_ns, |now| {
                now.resize(usize::try_from(*length).unwrap(), 0);
            }),
            Action::FlushBegins { path } => self.begin_flush(step.thread, path),
            Action::FlushEnds => self.end_flush(step.thread),
            Action::Rename { from, to } => self.rename(from, to),
            Action::Link { from, to } => {
                if let Some(node) = self.find(from) {
                    self.record(to, |name| Change::Give(name, node));
                }
            }
            Action::Remove { path } => self.record(path, Change::Take),
            Action::MakeDirectory { path } => self.make(path, Node::directory()),
            Action::SeeTime { path, modified_ns } => {
                if let Some(Node::File {
                    modified_ns: known, ..
                }) = self.found(path)
                {
                    *known = *modified_ns;
                }
            }
        }
    }

    /// Writes to `target` what the directory may be after a power cut now.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn cut_power(&self, random: &mut Random, target: &Path) {
        // Nothing done since is lost, all is, or anything between.
        let kept_of_four = random.below(5);
        self.lay_out(
            ROOT,
            target,
            &mut |random| random.below(4) < kept_of_four,
            random,
        );
    }

    /// Writes to `target` what the directory is when all processes are killed now.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn kill(&self, target: &Path) {
        self.lay_out(ROOT, target, &mut |_| true, &mut Random::new(0));
    }

    fn open(&mut self, path: &str, empty: bool) {
        match self.found(path) {
            Some(Node::File { now, .. }) if empty => now.clear(),
            Some(_) => {}
            None => self.make(path, Node::file()),
        }
    }

    fn change(&mut self, path: &str, time_ns: i64, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Node::File {
            now, modified_ns, ..
        }) = self.found(path)
        {
            change(now);
            *modified_ns = time_ns;
        }
    }

    fn begin_flush(&mut self, thread: u32, path: &str) {
        self.flushing.remove(&thread);
        let Some(node) = self.find(path) else {
            return;
        };
        let flush = match &self.nodes[node] {
            Node::File { now, .. } => Flush::File(node, now.clone()),
            Node::Directory {
                now,
                changes,
                earlier,
                ..
            } => Flush::Directory(node, now.clone(), earlier + changes.len()),
        };
        self.flushing.insert(thread, flush);
    }

    fn end_flush(&mut self, thread: u32) {
        match self.flushing.remove(&thread) {
            None => {}
            Some(Flush::File(node, bytes)) => {
                if let Node::File { stable, .. } = &mut self.nodes[node] {
                    *stable = bytes;
                }
            }
            Some(Flush::Directory(node, names, until)) => {
                if let Node::Directory {
                    stable,
                    changes,
                    earlier,
                    ..
                } = &mut self.nodes[node]
                    && until > *earlier
                {
                    *stable = names;
                    changes.drain(..until - *earlier);
                    *earlier = until;
                }
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let Some(node) = self.find(from) else {
            return;
        };
        let (Some((from_directory, name)), Some((to_directory, _))) =
            (from.rsplit_once('/'), to.rsplit_once('/'))
        else {
            return;
        };
        assert_eq!(
            from_directory, to_directory,
            "the model knows renames within a directory"
        );
        let name = name.to_owned();
        self.record(to, |to| Change::Rename(name, to, node));
    }

    fn make(&mut self, path: &str, node: Node) {
        let number = self.nodes.len();
        if self.parent(path).is_some() {
            self.nodes.push(node);
            self.record(path, |name| Change::Give(name, number));
        }
    }

    fn record(&mut self, path: &str, change: impl FnOnce(String) -> Change) {
        let Some((parent, name)) = self.parent(path) else {
            return;
        };
        if let Node::Directory { now, changes, .. } = &mut self.nodes[parent] {
            let change = change(name);
            apply(&change, now);
            changes.push(change);
        }
    }

    /// The directory that `path` is in, and its name there; `None` outside of the root.
    fn parent(&self, path: &str) -> Option<(usize, String)> {
        let (parent, name) = path.rsplit_once('/')?;
        Some((self.find(parent)?, name.to_owned()))
    }

    fn find(&self, path: &str) -> Option<usize> {
        let inside = path.strip_prefix(&self.root)?;
        if !(inside.is_empty() || inside.starts_with('/')) {
            return None;
        }
        let mut names = inside.split('/').filter(|name| !name.is_empty());
        names.try_fold(ROOT, |at, name| match &self.nodes[at] {
            Node::Directory { now, .. } => now.get(name).copied(),
            Node::File { .. } => None,
        })
    }

    fn found(&mut self, path: &str) -> Option<&mut Node> {
        self.find(path).map(|node| &mut self.nodes[node])
    }

    fn lay_out(
        &self,
        node: usize,
        target: &Path,
        is_kept: &mut dyn FnMut(&mut Random) -> bool,
        random: &mut Random,
    ) {
        match &self.nodes[node] {
            Node::Directory {
                stable, changes, ..
            } => {
                fs::create_dir(target).unwrap();
                let mut names = stable.clone();
                for change in changes {
                    if is_kept(random) {
                        apply(change, &mut names);
                    }
                }
                for (name, node) in names {
                    self.lay_out(node, &target.join(name), is_kept, random);
                }
            }
            Node::File {
                now,
                stable,
                modified_ns,
            } => {
                let bytes = after_cut(now, stable, is_kept, random);
                fs::write(target, bytes).unwrap();
                let since = Duration::from_nanos(u64::try_from(*modified_ns).unwrap());
                let file = File::options().write(true).open(target).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH + since).unwrap();
            }
        }
    }
}

fn apply(change: &Change, names: &mut Names) {
    match change {
        Change::Give(name, node) => {
            names.insert(name.clone(), *node);
        }
        Change::Take(name) => {
            names.remove(name);
        }
        Change::Rename(from, to, node) => {
            names.retain(|name, held| name != from || held != node);
            names.insert(to.clone(), *node);
        }
    }
}

/// What a file can hold.
fn after_cut(
    now: &[u8],
    stable: &[u8],
    is_kept: &mut dyn FnMut(&mut Random) -> bool,
    random: &mut Random,
) -> Vec<u8> {
    if now == stable || is_kept(random) {
        return now.to_vec();
    }
    match random.below(3) {
        // Nothing has come to the disk.
        0 => stable.to_vec(),
        // It ends somewhere.
        1 => now[..usize::try_from(random.below(now.len() as u64 + 1)).unwrap()].to_vec(),
        // It has its length, and pages are missing.
        _ => {
            let mut bytes = now.to_vec();
            for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
                let begin = number * PAGE;
                let is_stable = stable.get(begin..begin + page.len()) == Some(&*page);
                if !is_stable && random.below(2) == 0 {
                    page.fill(0);
                }
            }
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(actions: &[Action]) -> Disk {
        let mut disk = Disk::new(Path::new("/d"));
        for action in actions {
            disk.take(&Step {
                thread: 1,
                time_ns: 1,
                action: action.clone(),
            });
        }
        disk
    }

    /// What `a` can hold after a power cut; `None` where it is not there.
    fn outcomes(disk: &Disk) -> std::collections::BTreeSet<Option<Vec<u8>>> {
        let place = tempfile::tempdir().unwrap();
        let mut random = Random::new(1);
        let outcomes = (0..200).map(|number| {
            let target = place.path().join(number.to_string());
            disk.cut_power(&mut random, &target);
            fs::read(target.join("a")).ok()
        });
        outcomes.collect()
    }

    fn saved(flush_file: bool, flush_directory: bool) -> Vec<Action> {
        let path = |name: &str| format!("/d{name}");
        let flush = |path: String| [Action::FlushBegins { path }, Action::FlushEnds];
        let mut actions = vec![
            Action::Open {
                path: path("/t"),
                empty: true,
            },
            Action::Write {
                path: path("/t"),
                at: None,
                bytes: vec![7; 2],
            },
        ];
        if flush_file {
            actions.extend(flush(path("/t")));
        }
        actions.push(Action::Rename {
            from: path("/t"),
            to: path("/a"),
        });
        if flush_directory {
            actions.extend(flush(path("")));
        }
        actions
    }

    #[test]
    fn without_a_flush_anything_may_be_lost_and_with_both_nothing_is() {
        let whole = Some(vec![7, 7]);
        let all = outcomes(&disk(&saved(false, false)));
        for possible in [
            None,
            Some(vec![]),
            Some(vec![7]),
            Some(vec![0, 0]),
            whole.clone(),
        ] {
            assert!(all.contains(&possible), "{possible:?} of {all:?}");
        }
        assert_eq!(
            outcomes(&disk(&saved(true, false))),
            [None, whole.clone()].into()
        );
        assert!(outcomes(&disk(&saved(false, true))).contains(&Some(vec![0, 0])));
        assert_eq!(outcomes(&disk(&saved(true, true))), [whole].into());
    }
}
