// SPDX-License-Identifier: Apache-2.0
//! Managed etcds at work: real processes, several nodes on one machine.

mod cluster;
mod node;

use std::path::PathBuf;

/// The program.
fn etcd() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    steadfast_process::spawn::find_program("etcd".as_ref(), &path).ok()
}

/// Whether the tests with a real etcd can run; with `CI=true` they must.
fn etcd_is_there() -> bool {
    if etcd().is_some() {
        return true;
    }
    let is_ci = std::env::var_os("CI").is_some();
    assert!(!is_ci, "missing: etcd; scripts/setup.sh --test installs it");
    eprintln!("SKIPPED: no etcd on the PATH; scripts/setup.sh --test installs it");
    false
}
