// SPDX-License-Identifier: Apache-2.0
//! The reference page `docs/checks.md`, written from the table of checks.

use std::fmt::{self, Write as _};

use super::list::profiles;
use crate::spec::Spec;
use crate::table::CHECKS;
use crate::units::show_duration;

const HEAD: &str = "\
<!-- Written from the table of checks in health/checks/src/table.rs. To renew it:
     UPDATE_DOCS=1 cargo nextest run -p steadfast-checks reference -->

# Checks

What `steadfast check` looks at, and what can be configured in `/etc/steadfast/checks.toml` or the file of `--config`. How to
use it: [guide](guides/checks.md).

```toml
[check.gpu-count]
expected = 8

[check.mounts]
required = [\"/scratch\"]
severity = \"warn\"

[command.our-own]
run = [\"/usr/local/lib/checks/our-own\", \"--quick\"]
profiles = [\"health\"]
```

Every check, and every command, has these keys:

| key | takes | |
| --- | --- | --- |
| `enabled` | true or false | whether it is made, unless it is named on the command line |
| `severity` | `\"warn\"` or `\"fail\"` | how bad everything is that it finds: `\"warn\"` keeps no jobs away, `\"fail\"` always does |
| `deadline` | a duration, at most `5m` | how long it may take |
| `profiles` | a list of `prolog`, `epilog`, `health`, `full` | when it is made |

A number can be `\"off\"`: then it is not looked at. A command also has `run`, the program and its arguments; it may take 10 s,
and is run in `health` and `full`, unless configured.
";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for spec in CHECKS {
        // Writing to a text cannot fail.
        let _written = entry(&mut page, spec);
    }
    page
}

fn entry(page: &mut String, spec: &Spec) -> fmt::Result {
    writeln!(page, "\n## `{}`\n\n{}\n", spec.name, spec.doc)?;
    writeln!(
        page,
        "Made in {}; may take {}.",
        profiles(spec).join(", "),
        show_duration(spec.deadline)
    )?;
    if spec.thresholds.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n| key | takes | default | |\n| --- | --- | --- | --- |"
    )?;
    for threshold in spec.thresholds {
        writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            threshold.name(),
            threshold.form(),
            threshold.default_in_words(),
            threshold.doc()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn reference_page_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks.md");
        let page = page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == page,
            "docs/checks.md is out of date: run this test with UPDATE_DOCS=1"
        );
    }
}
