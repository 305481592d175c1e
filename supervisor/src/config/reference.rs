// SPDX-License-Identifier: Apache-2.0
//! The reference page `docs/configuration.md`, written from the table of options.

use super::option::{Group, OptionSpec};
use super::show::default_in_words;
use super::table::OPTIONS;
use crate::settings::Mode;

const HEAD: &str = "\
<!-- Written from the table of options in supervisor/src/config/table.rs. To renew it:
     UPDATE_DOCS=1 cargo nextest run -p steadfast reference -->

# Configuration

Every option of `steadfast run` can be given in three places: as a flag, as an environment variable, and as a key of a
TOML file. A flag goes before the variable, the variable before the files, and the files before the default. The name is
the same everywhere: `--max-restarts 5`, `STEADFAST_MAX_RESTARTS=5`, `max_restarts = 5`. An empty variable counts as
unset.

`steadfast config` prints what is in force and where each value comes from; `steadfast config --sample` prints a file
with every key. An unknown key is an error.

Files, each going before the ones above it; the first two are read if they are there:

1. `/etc/steadfast/config.toml`
2. `$XDG_CONFIG_HOME/steadfast/config.toml`, or `~/.config/steadfast/config.toml`
3. the file of `--config FILE` or `STEADFAST_CONFIG`

Durations are written `30s`, `1m30s` or `500ms`; a bare number is seconds. Lists are TOML arrays, or strings with commas.

`steadfast torchrun` takes torchrun's own flags and their `PET_*` variables. Where an option below exists there too, the
order is: flag, `STEADFAST_*`, `PET_*`, files, default. All options below can also be given as flags before the script,
in full.

A wrong configuration ends with exit code 78 before anything is started.
";

fn page() -> String {
    let mut parts = vec![HEAD.to_owned()];
    let mut group: Option<Group> = None;
    for option in &OPTIONS {
        if group != Some(option.group) {
            group = Some(option.group);
            parts.push(format!("\n## {}\n", option.group.title()));
        }
        parts.push(entry(option));
    }
    parts.concat()
}

fn entry(option: &OptionSpec) -> String {
    let short = option
        .short
        .map(|short| format!(", `-{short}`"))
        .unwrap_or_default();
    let default = |mode| {
        default_in_words(option, mode)
            .map_or_else(|| "none".to_owned(), |words| format!("`{words}`"))
    };
    let torchrun = match option.torchrun_default {
        Some(_) => format!("; under `steadfast torchrun` {}", default(Mode::Torchrun)),
        None => String::new(),
    };
    format!(
        "\n### `{key}`\n\n{doc}\n\n- flag `--{name} {value}`{short}\n- variable `{variable}`\n- default {default}{torchrun}\n",
        key = option.file_key(),
        doc = option.doc,
        name = option.name,
        value = option.value_name,
        variable = option.environment(),
        default = default(Mode::Run),
    )
}

#[test]
fn reference_page_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/configuration.md is out of date: run this test with UPDATE_DOCS=1"
    );
}
