// SPDX-License-Identifier: Apache-2.0
//! The secret that all nodes of a job share, and what follows from it.
//!
//! It is given (a file, or an environment variable), or it is made on first use in the user's home, which the nodes of a
//! cluster usually share. It opens every managed etcd of its owner, so it is never shown, logged or sent; each run of a job
//! uses a key that is derived from it.

use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Names a file with the secret.
pub(crate) const TOKEN_FILE_VARIABLE: &str = "STEADFAST_TOKEN_FILE";
/// Holds the secret itself.
pub(crate) const TOKEN_VARIABLE: &str = "STEADFAST_TOKEN";
/// Fewer bytes than this can be guessed.
const SHORTEST: usize = 16;
/// Nobody's secret is longer; something else was named by mistake.
const LONGEST: u64 = 64 * 1024;
/// How often a file is looked for again: on a network file system it can take a moment until everybody sees it.
const TRIES: u32 = 5;

/// The secret. It shows in no message.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret {
    bytes: Vec<u8>,
    origin: String,
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// It cannot be read.
    #[error("could not read the secret of managed etcd from {path}")]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be made.
    #[error(
        "could not make a secret for managed etcd in {path}; write one yourself, the same on every node, and name it in {TOKEN_FILE_VARIABLE}"
    )]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error(
        "{0} can be read by others than its owner, or belongs to somebody else: `chmod 600` it if nobody has looked, else remove it"
    )]
    NotPrivate(PathBuf),
    /// It is no secret.
    #[error(
        "the secret from {origin} is shorter than {SHORTEST} bytes: make one with `openssl rand -hex 32`"
    )]
    TooShort {
        /// Where it is from.
        origin: String,
    },
    /// There is no place for one.
    #[error(
        "there is no home directory for the secret of managed etcd: name a file with one, the same on every node, in {TOKEN_FILE_VARIABLE}"
    )]
    Homeless,
}

/// Where a secret may come from.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecretSources {
    /// The value of [`TOKEN_FILE_VARIABLE`].
    pub(crate) file: Option<PathBuf>,
    /// The value of [`TOKEN_VARIABLE`].
    pub(crate) text: Option<SecretText>,
    /// The user's home.
    pub(crate) home: Option<PathBuf>,
}

/// A secret on its way.
#[derive(Clone)]
pub(crate) struct SecretText(pub(crate) Vec<u8>);

impl SecretSources {
    /// Those of a process with these environment variables.
    pub(crate) fn of_environment(variable: &dyn Fn(&str) -> Option<OsString>) -> SecretSources {
        let given = |name| variable(name).filter(|value| !value.is_empty());
        let text = given(TOKEN_VARIABLE).map(OsString::into_encoded_bytes);
        SecretSources {
            file: given(TOKEN_FILE_VARIABLE).map(PathBuf::from),
            text: text.map(SecretText),
            home: given("HOME")
                .map(PathBuf::from)
                .filter(|home| home.is_absolute()),
        }
    }

    /// The secret from the first source that there is; in the home it is made on first use. May take as long as the file
    /// system does.
    pub(crate) fn find(&self) -> Result<Secret, SecretError> {
        if let Some(path) = &self.file {
            let bytes = read(path).map_err(|source| SecretError::Read {
                path: path.clone(),
                source,
            })?;
            return Secret::new(bytes, path.display().to_string());
        }
        if let Some(SecretText(text)) = &self.text {
            return Secret::new(text.clone(), TOKEN_VARIABLE.to_owned());
        }
        let home = self.home.as_ref().ok_or(SecretError::Homeless)?;
        let path = home.join(".steadfast/secret");
        let bytes = read_or_make(&path)?;
        Secret::new(bytes, path.display().to_string())
    }
}

impl Secret {
    fn new(mut bytes: Vec<u8>, origin: String) -> Result<Secret, SecretError> {
        // Editors and `echo` end it with a line feed, which must not make another secret of it.
        while bytes.last().is_some_and(u8::is_ascii_whitespace) {
            bytes.pop();
        }
        if bytes.len() < SHORTEST {
            return Err(SecretError::TooShort { origin });
        }
        Ok(Secret { bytes, origin })
    }

    /// Where it is from, to be shown.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// A key for one purpose in one run of a job. From it nobody learns the secret, nor a key for anything else.
    pub(crate) fn derive(&self, purpose: &str, run: &str) -> [u8; 32] {
        let mut hasher =
            blake3::Hasher::new_derive_key(&format!("steadfast managed etcd v1 {purpose}"));
        for part in [self.bytes.as_slice(), run.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Secret(from {})", self.origin)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretText")
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_or_make(path: &Path) -> Result<Vec<u8>, SecretError> {
    let unreadable = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    for _ in 0..TRIES {
        match std::fs::metadata(path) {
            Ok(found) => {
                let ours = found.uid() == nix::unistd::geteuid().as_raw();
                if !ours || found.mode() & 0o077 != 0 {
                    return Err(SecretError::NotPrivate(path.to_owned()));
                }
                return read(path).map_err(unreadable);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(path).map_err(|source| SecretError::Make {
                    path: path.to_owned(),
                    source,
                })?;
            }
            Err(error) => return Err(unreadable(error)),
        }
    }
    Err(unreadable(io::ErrorKind::NotFound.into()))
}

/// Makes the file, unless another node is faster: a link is made whole or not at all, and only one can be made. (A rename
/// would replace the secret that somebody else already uses.)
fn make(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    match DirBuilder::new().mode(0o700).create(parent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut random = [0_u8; 40];
    File::open("/dev/urandom")?.read_exact(&mut random)?;

    let draft = parent.join(format!(".secret-{}", hex(&random[32..])));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = file
        .write_all(format!("{}\n", hex(&random[..32])).as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => removed,
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::new();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _always_fits = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn at_home(home: &Path) -> SecretSources {
        SecretSources {
            home: Some(home.to_owned()),
            ..SecretSources::default()
        }
    }

    #[test]
    fn many_nodes_that_share_a_home_make_one_secret() {
        let home = tempfile::tempdir().unwrap();
        let secrets: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| at_home(home.path()).find().unwrap()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        let directory = home.path().join(".steadfast");
        let names: Vec<_> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["secret"], "drafts are removed");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("secret")), 0o600);
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        at_home(home.path()).find().unwrap();
        let path = home.path().join(".steadfast/secret");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = at_home(home.path()).find().unwrap_err();
        assert!(matches!(refused, SecretError::NotPrivate(at) if at == path));
    }

    #[test]
    fn a_file_goes_before_a_variable_and_both_before_the_home() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let mut sources = at_home(home.path());
        sources.text = Some(SecretText(b"fedcba9876543210".to_vec()));
        assert_eq!(sources.find().unwrap().origin(), TOKEN_VARIABLE);
        sources.file = Some(file.clone());
        let secret = sources.find().unwrap();
        assert_eq!(secret.origin(), file.display().to_string());
        assert!(!home.path().join(".steadfast").exists());
        std::fs::write(&file, "0123456789abcdef").unwrap();
        assert_eq!(
            sources.find().unwrap(),
            secret,
            "a line feed is no part of it"
        );
        std::fs::write(&file, "short\n").unwrap();
        let refused = sources.find().unwrap_err().to_string();
        assert!(refused.contains("shorter") && !refused.contains("short\n"));
        assert!(matches!(
            SecretSources::default().find(),
            Err(SecretError::Homeless)
        ));
    }

    #[test]
    fn keys_differ_by_purpose_run_and_secret_and_show_nothing() {
        let secret = |text: &str| Secret::new(text.into(), "here".to_owned()).unwrap();
        let one = secret("0123456789abcdef");
        assert_eq!(one.derive("a", "run"), one.derive("a", "run"));
        assert_ne!(one.derive("a", "run"), one.derive("b", "run"));
        assert_ne!(one.derive("a", "run"), one.derive("a", "run2"));
        let two = secret("0123456789abcdeg");
        assert_ne!(one.derive("a", "run"), two.derive("a", "run"));
        let shown = format!("{one:?} {:?}", SecretText(b"0123456789abcdef".to_vec()));
        assert!(!shown.contains("0123"), "{shown}");
    }

    #[test]
    fn what_the_environment_names_is_taken() {
        let set = |name: &str| match name {
            "STEADFAST_TOKEN" => Some("0123456789abcdef".into()),
            "STEADFAST_TOKEN_FILE" => Some(OsString::new()),
            "HOME" => Some("/home/someone".into()),
            _ => None,
        };
        let sources = SecretSources::of_environment(&set);
        assert_eq!(sources.file, None, "empty is as good as unset");
        assert_eq!(sources.find().unwrap().origin(), TOKEN_VARIABLE);
        assert_eq!(sources.home, Some(PathBuf::from("/home/someone")));
        let nothing = SecretSources::of_environment(&|_| None);
        assert!(matches!(nothing.find(), Err(SecretError::Homeless)));
    }
}
