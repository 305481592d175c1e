// SPDX-License-Identifier: Apache-2.0
//! Managed etcds at work: real processes, several nodes on one machine.

mod cluster;
mod node;

/// Whether the tests with a real etcd can run; with `CI=true` they must.
fn etcd_is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if super::find_program("etcd".as_ref(), &path).is_ok() {
        return true;
    }
    let is_ci = std::env::var_os("CI").is_some();
    assert!(!is_ci, "missing: etcd; scripts/setup.sh --test installs it");
    eprintln!("SKIPPED: no etcd on the PATH; scripts/setup.sh --test installs it");
    false
}
