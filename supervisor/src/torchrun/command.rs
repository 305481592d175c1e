// SPDX-License-Identifier: Apache-2.0
//! The workers' command under `steadfast torchrun`.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use crate::config::{ConfigError, Host, TorchrunError, program};
use crate::settings::WorkerCommand;

/// Runs a script with runpy: what is left of `sys.argv` is then as the script expects it.
const RUN_PATH: &str =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// How the script is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `python -u SCRIPT`.
    Script,
    /// `python -u -m MODULE`.
    Module,
    /// The script is a program.
    Program,
    /// Through Python's runpy.
    RunPath,
}

/// The command for `script`, the script with its arguments.
pub(crate) fn build(
    host: &Host,
    how: How,
    script: Vec<OsString>,
    working_dir: &Path,
) -> Result<WorkerCommand, ConfigError> {
    let Some(first) = script.first() else {
        return Err(ConfigError::Torchrun(TorchrunError::NoScript));
    };
    if how == How::Program {
        let program = program::resolve(host, first, working_dir)?;
        return Ok(WorkerCommand {
            program,
            argv: script,
            substitute_local_rank: true,
        });
    }
    if how != How::Module {
        check_script(&working_dir.join(first))?;
    }
    let (program, name) = python(host, working_dir)?;
    let mut argv = vec![name, "-u".into()];
    match how {
        How::Module => argv.push("-m".into()),
        How::RunPath => argv.extend(["-c".into(), RUN_PATH.into()]),
        How::Script | How::Program => {}
    }
    argv.extend(script);
    Ok(WorkerCommand {
        program,
        argv,
        substitute_local_rank: true,
    })
}

/// The interpreter: `PYTHON_EXEC`, else the first Python in PATH.
fn python(host: &Host, working_dir: &Path) -> Result<(std::path::PathBuf, OsString), ConfigError> {
    if let Some(python) = host
        .environment
        .get("PYTHON_EXEC")
        .filter(|value| !value.is_empty())
    {
        return Ok((program::resolve(host, python, working_dir)?, python.clone()));
    }
    match program::first_of(host, &["python3", "python"], working_dir) {
        Some(path) => Ok((path.clone(), path.into_os_string())),
        None => program::resolve(host, "python3".as_ref(), working_dir)
            .map(|path| (path.clone(), path.into())),
    }
}

/// A directory or an archive with a `__main__.py` is a script too, so only being there and readable is checked.
fn check_script(script: &Path) -> Result<(), ConfigError> {
    match File::open(script) {
        Ok(_) => Ok(()),
        Err(error) => Err(ConfigError::Script {
            script: script.to_owned(),
            reason: match error.kind() {
                std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
                _ => error.to_string(),
            },
        }),
    }
}
