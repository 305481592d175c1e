// SPDX-License-Identifier: Apache-2.0
//! The mounts of this machine, as the kernel lists them. Reading the list asks no file system.

use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// Such as `nfs4`.
    pub(crate) kind: String,
    /// What is mounted, such as `server:/export`.
    pub(crate) source: String,
    /// Whether the mount was asked to be read-only.
    pub(crate) read_only: bool,
    /// Whether the file system itself is read-only, as it becomes after errors.
    pub(crate) file_system_read_only: bool,
}

/// File systems whose server can be gone.
const REMOTE: [&str; 20] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.ceph",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.goofys",
    "fuse.juicefs",
    "fuse.s3fs",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "pvfs2",
    "smb3",
    "wekafs",
];

impl Mount {
    /// Whether a server is asked when it is used.
    pub(crate) fn is_remote(&self) -> bool {
        REMOTE.contains(&self.kind.as_str())
    }
}

/// Reads the text of `/proc/self/mountinfo`. Lines that are none are passed over.
pub(crate) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(4);
    let (path, options) = (fields.next()?, fields.next()?);
    let mut rest = after.split(' ');
    let (kind, source, super_options) = (rest.next()?, rest.next()?, rest.next()?);
    let has = |options: &str, wanted| options.split(',').any(|option| option == wanted);
    Some(Mount {
        path: PathBuf::from(unescape(path)),
        kind: kind.to_owned(),
        source: unescape(source),
        read_only: has(options, "ro"),
        file_system_read_only: has(super_options, "ro"),
    })
}

/// The kernel writes blanks, tabs, line ends and backslashes as `\040` and the like.
fn unescape(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            plain.push(code);
            rest = &after[3..];
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The mount that a path lies on: the longest that it begins with, and of those the last one, which hides the others.
pub(crate) fn containing<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.path));
    holding.max_by_key(|mount| mount.path.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
25 22 0:5 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1k
40 22 0:40 / /home rw,relatime shared:20 master:3 - nfs4 server:/home\\040old rw,vers=4.2
41 22 8:1 / /data rw - ext4 /dev/sda1 ro,errors=remount-ro
42 22 8:2 / /media ro - iso9660 /dev/sr0 ro
garbage
43 22 0:40 / /half rw";

    #[test]
    fn mounts_are_read_and_what_is_none_is_passed_over() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[2].source, "server:/home old");
        assert!(mounts[2].is_remote() && !mounts[0].is_remote());
        assert!(!mounts[3].read_only && mounts[3].file_system_read_only);
        assert!(mounts[4].read_only);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn a_path_lies_on_the_nearest_mount() {
        let mounts = parse(TEXT);
        let kind =
            |path: &str| containing(&mounts, Path::new(path)).map(|mount| mount.kind.as_str());
        assert_eq!(kind("/home/a"), Some("nfs4"));
        assert_eq!(kind("/homer"), Some("ext4"));
        assert_eq!(containing(&[], Path::new("/")), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape("a\\040b\\134c\\"), "a b\\c\\");
        assert_eq!(unescape("\\9zz\\777"), "\\9zz\\777");
    }
}
