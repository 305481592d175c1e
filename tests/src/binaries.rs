// SPDX-License-Identifier: Apache-2.0
//! Where the built programs are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The built `steadfast`.
pub fn steadfast() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| built("steadfast", "steadfast", "--bins"))
}

/// The built `fake-worker`.
pub fn fake_worker() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| built("fake-worker", "steadfast-tests", "--bins"))
}

/// The built stand-in for NVIDIA's management library.
pub fn fake_nvml() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| built("libnvidia_ml.so", "steadfast-fake-nvml", "--lib"))
}

/// A program in the directory that this test itself was built into; built first if it is missing.
fn built(program: &str, package: &str, kind: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile_dir = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/PROFILE/deps");
    let path = profile_dir.join(program);
    if !path.exists() {
        build(package, kind, profile_dir);
    }
    path
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn build(package: &str, kind: &str, profile_dir: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--package", package, kind]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if profile_dir.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be run");
    assert!(
        status.success(),
        "{package} was not there and could not be built: {status}"
    );
}
