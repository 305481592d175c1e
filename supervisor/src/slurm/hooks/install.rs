// SPDX-License-Identifier: Apache-2.0
//! What has to be added to `slurm.conf`, and the small scripts that it points at.
//!
//! slurmd starts its hooks without arguments, so each needs a file of its own. The script keeps a missing or broken program
//! from draining the cluster: only the one exit code that means a proven fault is passed on.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Hook;
use crate::config::Host;
use crate::console_line::say;
use crate::exit_code::ExitCode;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Install {
    /// Only say what would be done.
    pub(crate) dry_run: bool,
    /// Where the scripts go.
    pub(crate) directory: PathBuf,
    /// The settings that the scripts name; absent for the usual file.
    pub(crate) config: Option<PathBuf>,
}

pub(super) fn run(host: &Host, request: &Install) -> u8 {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            say(&format!(
                "error: cannot tell where this program is: {error}"
            ));
            return ExitCode::Infrastructure as u8;
        }
    };
    let mut text = String::new();
    let directory = host.working_dir.join(&request.directory);
    for hook in Hook::ALL {
        let file = directory.join(hook.name());
        let script = script(hook, &program, request.config.as_deref());
        if !request.dry_run
            && let Err(error) = write(&file, &script)
        {
            say(&format!("error: cannot write {}: {error}", file.display()));
            return ExitCode::Configuration as u8;
        }
        let verb = if request.dry_run {
            "would be written"
        } else {
            "was written"
        };
        let title = format!("# --- {} {verb}, mode 0755:\n", file.display());
        let lines = script.lines().map(|line| format!("#   {line}\n"));
        text.extend([title].into_iter().chain(lines));
    }
    text.push_str("\n# --- to be added to slurm.conf on every node, then: scontrol reconfigure\n");
    text.push_str(&slurm_conf(&directory));
    // A reader that went away (`| head`) is no failure.
    drop(io::stdout().write_all(text.as_bytes()));
    ExitCode::Success as u8
}

/// The lines for `slurm.conf`.
fn slurm_conf(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "# Before a job on each of its nodes, at allocation; a node that is proven sick fails it and is drained.\n\
         Prolog={directory}/prolog\n\
         PrologFlags=Alloc\n\
         # After a job on each of its nodes.\n\
         Epilog={directory}/epilog\n\
         # Above the deadlines of both (20 s and 40 s unless /etc/steadfast/slurm.toml says otherwise).\n\
         PrologEpilogTimeout=120\n\
         # Before each task, as the user: variables only.\n\
         TaskProlog={directory}/task-prolog\n\
         # From time to time, on nodes in any state: drains sick nodes, and resumes what it drained.\n\
         HealthCheckProgram={directory}/health\n\
         HealthCheckInterval=300\n\
         HealthCheckNodeState=ANY,CYCLE\n\
         # 75: the infrastructure was at fault; 76: this node was. The batch script has to end with srun's code.\n\
         RequeueExit=75,76\n"
    )
}

fn script(hook: Hook, program: &Path, config: Option<&Path>) -> String {
    let program = quoted(program);
    let name = hook.name();
    let config = config.map_or_else(String::new, |config| {
        format!(" --config {}", quoted(config))
    });
    let sick = ExitCode::Node as u8;
    let last = match hook {
        Hook::Prolog | Hook::Epilog => {
            format!("[ \"$?\" -eq {sick} ] && exit 1\nexit 0\n")
        }
        Hook::Health | Hook::TaskProlog => "exit 0\n".to_owned(),
    };
    format!(
        "#!/bin/sh\n\
         # Written by `steadfast slurm install`. Only a proven fault of the node may fail.\n\
         [ -x {program} ] || exit 0\n\
         {program} slurm {name}{config}\n\
         {last}"
    )
}

/// For a shell, whatever is in it.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

fn write(file: &Path, script: &str) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = file.with_extension("new");
    fs::write(&new, script)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_passes_on_a_proven_fault_and_nothing_else() {
        let script = script(Hook::Prolog, Path::new("/opt/it's/steadfast"), None);
        insta::assert_snapshot!(script, @r#"
        #!/bin/sh
        # Written by `steadfast slurm install`. Only a proven fault of the node may fail.
        [ -x '/opt/it'\''s/steadfast' ] || exit 0
        '/opt/it'\''s/steadfast' slurm prolog
        [ "$?" -eq 76 ] && exit 1
        exit 0
        "#);
    }
}
