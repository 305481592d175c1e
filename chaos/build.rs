// SPDX-License-Identifier: Apache-2.0
//! Puts the scenarios of `scenarios/` into the program.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=scenarios");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = fs::read_dir(&directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    let mut text = "/// Name and text of each.\nconst SCENARIOS: &[(&str, &str)] = &[\n".to_owned();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.to_string_lossy();
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "    ({name:?}, include_str!({path:?})),");
    }
    text.push_str("];\n");
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("library.rs"), text)
}
