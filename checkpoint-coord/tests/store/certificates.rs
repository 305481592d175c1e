// SPDX-License-Identifier: Apache-2.0
//! A certificate authority for one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use steadfast_coord::etcd::EtcdClientCertificate;
use tempfile::TempDir;

use crate::server::own_address;

/// `ca.pem`, and what it has signed: `server.pem`, `server.key`, `client.pem`, `client.key`.
#[derive(Debug)]
pub(crate) struct Certificates {
    directory: TempDir,
}

impl Certificates {
    /// `None` where there is no openssl, which is said.
    pub(crate) fn make() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let made = Self { directory };
        if !made.openssl("version") {
            let is_ci = std::env::var_os("CI").is_some();
            assert!(
                !is_ci,
                "missing: openssl; scripts/setup.sh --test installs it"
            );
            eprintln!("SKIPPED: no openssl; scripts/setup.sh --test installs it");
            return None;
        }
        let new_key = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        assert!(made.openssl(&format!(
            "{new_key} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"
        )));
        let names = format!("subjectAltName=IP:{}\n", own_address());
        std::fs::write(made.path("names"), names).unwrap();
        for owner in ["server", "client"] {
            assert!(made.openssl(&format!(
                "{new_key} -subj /CN={owner} -keyout {owner}.key -out {owner}.csr"
            )));
            assert!(made.openssl(&format!(
                "x509 -req -days 2 -in {owner}.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                 -extfile names -out {owner}.pem"
            )));
        }
        Some(made)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a client shows.
    pub(crate) fn client(&self) -> EtcdClientCertificate {
        EtcdClientCertificate {
            certificate_file: self.path("client.pem"),
            key_file: self.path("client.key"),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "openssl is not a process of the supervisor"
    )]
    fn openssl(&self, arguments: &str) -> bool {
        Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.directory.path())
            .output()
            .is_ok_and(|output| output.status.success())
    }
}
