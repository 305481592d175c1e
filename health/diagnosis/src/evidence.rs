// SPDX-License-Identifier: Apache-2.0
//! What there is to go by: files, by their names and what is in them.

use std::sync::LazyLock;

use regex::Regex;

use crate::pattern::{compile, number};

/// All that was kept of one failure.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    files: Vec<EvidenceFile>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvidenceFile {
    /// Its path in the directory, with `/`.
    pub name: String,
    /// What is in it; bytes that are no text have been replaced.
    pub text: String,
    /// Lines before it that were left out, of a file that is too long.
    pub skipped_lines: u32,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// What ranks and launchers printed, or a log of some service.
    Log,
    /// A kernel or system log.
    Kernel,
    /// What the supervisor knew.
    Context,
    /// How far the clocks of the nodes are apart.
    Clocks,
    /// The states of the ranks at one moment.
    State,
    /// How long steps took.
    Steps,
    /// Free space, as `df` prints it.
    Disk,
    /// What NVML and `nvidia-smi` say of GPUs.
    Gpus,
    /// Files with their sizes, as `ls` or `find` prints them.
    Listing,
}

static RANK: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:^|[/_.-])(?:global[-_.]?)?(?:rank|task|proc|worker_rank)[-_.]?(?P<rank>\d{1,7})(?:[/_.-]|$)",
    )
});
static LOCAL_RANK: LazyLock<Regex> =
    LazyLock::new(|| compile(r"(?:^|/)(?P<rank>\d{1,4})/std(?:out|err)\.log$"));
static NAMED_NODE: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:^|/)(?:kmsg|dmesg|syslog|messages|kern|slurmd|launcher|srun|agent|nvidia-smi(?:-q)?|nvml|df|events|listing)[.-](?P<node>[\w.-]+?)\.(?:txt|log)$",
    )
});

impl Evidence {
    /// Takes the files, in whatever order.
    pub fn new(mut files: Vec<EvidenceFile>) -> Self {
        files.sort();
        Self { files }
    }

    /// The files, by name.
    pub fn files(&self) -> &[EvidenceFile] {
        &self.files
    }

    pub(crate) fn of_kind(&self, kind: FileKind) -> impl Iterator<Item = &EvidenceFile> {
        self.files.iter().filter(move |file| file.kind() == kind)
    }
}

impl EvidenceFile {
    /// The name without its directories.
    fn base(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// The lines and their numbers, from 1.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &str)> {
        let number = |index: usize| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            self.skipped_lines.saturating_add(index).saturating_add(1)
        };
        self.text
            .lines()
            .enumerate()
            .map(move |(index, text)| (number(index), text))
    }

    pub(crate) fn kind(&self) -> FileKind {
        let base = self.base().to_ascii_lowercase();
        let starts = |words: &[&str]| words.iter().any(|word| base.starts_with(word));
        match base.as_str() {
            "context.toml" => FileKind::Context,
            "clocks.toml" => FileKind::Clocks,
            "state.toml" => FileKind::State,
            "steps.csv" => FileKind::Steps,
            _ if starts(&[
                "kmsg", "dmesg", "syslog", "kern.", "kern-", "kernel", "messages", "journal",
            ]) =>
            {
                FileKind::Kernel
            }
            "df" => FileKind::Disk,
            _ if starts(&["df.", "df-", "df_"]) => FileKind::Disk,
            _ if starts(&["nvidia-smi", "nvidia_smi", "nvml"]) => FileKind::Gpus,
            _ if starts(&["listing", "ls.", "ls-"]) => FileKind::Listing,
            _ => FileKind::Log,
        }
    }

    /// The rank whose output it is, says its name.
    pub(crate) fn rank(&self) -> Option<u32> {
        RANK.captures(&self.name)
            .and_then(|found| number(&found, "rank"))
    }

    /// The local rank whose output it is, says its directory.
    pub(crate) fn local_rank(&self) -> Option<u32> {
        LOCAL_RANK
            .captures(&self.name)
            .and_then(|found| number(&found, "rank"))
    }

    /// The node that it comes from, says its name: one of `known`, or what stands where a node's name stands.
    pub(crate) fn node<'a>(&'a self, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let stands_in = |node: &str| {
            let found = self.name.find(node)?;
            let edge = |character: Option<char>| {
                character.is_none_or(|character| !character.is_ascii_alphanumeric())
            };
            let before = self.name[..found].chars().next_back();
            let after = self.name[found + node.len()..].chars().next();
            (edge(before) && edge(after)).then_some(())
        };
        known
            .filter(|node| stands_in(node).is_some())
            .max_by_key(|node| node.len())
            .or_else(|| Some(NAMED_NODE.captures(&self.name)?.name("node")?.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> EvidenceFile {
        EvidenceFile {
            name: name.to_owned(),
            text: String::new(),
            skipped_lines: 0,
        }
    }

    #[test]
    fn names_say_what_a_file_is() {
        assert_eq!(file("rank-12.log").rank(), Some(12));
        assert_eq!(file("out/rank_3.err").rank(), Some(3));
        assert_eq!(file("launcher.log").rank(), None);
        assert_eq!(file("frank-3x.log").rank(), None);
        assert_eq!(file("attempt_0/3/stderr.log").local_rank(), Some(3));
        assert_eq!(file("kmsg.pod-1.txt").kind(), FileKind::Kernel);
        assert_eq!(
            file("kmsg.pod-1.txt").node(std::iter::empty()),
            Some("pod-1")
        );
        let known = ["node-1", "node-10"];
        assert_eq!(
            file("slurmd-node-10.log").node(known.into_iter()),
            Some("node-10")
        );
        assert_eq!(file("df.txt").kind(), FileKind::Disk);
        assert_eq!(file("nvidia-smi-q.txt").kind(), FileKind::Gpus);
        assert_eq!(file("nvml.n3.txt").kind(), FileKind::Gpus);
        assert_eq!(file("listing.txt").kind(), FileKind::Listing);
        assert_eq!(file("all.log").kind(), FileKind::Log);
    }
}
