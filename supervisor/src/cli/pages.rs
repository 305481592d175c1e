// SPDX-License-Identifier: Apache-2.0
//! Completion scripts and manual pages.

use clap::ArgMatches;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Failure, tree};
use crate::config::Host;

/// The completion script for the shell that was named.
pub(super) fn completions(matches: &ArgMatches) -> Result<String, Failure> {
    let Some(shell) = matches.get_one::<Shell>("shell") else {
        return Err(Failure::Output("no shell was named".to_owned()));
    };
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut tree::root(), "steadfast", &mut script);
    as_text(script)
}

/// The manual page of the program; or, with `--dir`, one file for each command, and their names as the text.
pub(super) fn man(host: &Host, matches: &ArgMatches) -> Result<String, Failure> {
    let mut root = tree::root();
    root.build();
    let Some(directory) = matches.get_one::<String>("dir") else {
        return page(&root);
    };
    let directory = host.working_dir.join(directory);
    let mut written = Vec::new();
    let commands = std::iter::once(&root).chain(root.get_subcommands());
    for command in commands.filter(|command| command.get_name() != "help") {
        let name = match command.get_name() {
            "steadfast" => "steadfast.1".to_owned(),
            name => format!("steadfast-{name}.1"),
        };
        let path = directory.join(name);
        std::fs::write(&path, page(command)?).map_err(|error| {
            Failure::Output(format!("cannot write {}: {error}", path.display()))
        })?;
        written.push(format!("{}\n", path.display()));
    }
    Ok(written.concat())
}

fn page(command: &clap::Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Failure::Output(format!("cannot write the manual page: {error}")))?;
    as_text(page)
}

fn as_text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes)
        .map_err(|error| Failure::Output(format!("the text is not UTF-8: {error}")))
}
