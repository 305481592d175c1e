// SPDX-License-Identifier: Apache-2.0
//! The reference page `docs/reference/xid.md`, written from the catalogue.

use super::catalogue::{Entry, entries};
use super::nvlink::sub_codes;
use super::recovery::RecoveryAction;
use super::terms::{Action, Kind};

const HEAD: &str = "\
<!-- Written from the catalogue in health/src/xid/. To renew it:
     UPDATE_DOCS=1 cargo nextest run -p steadfast-health reference -->

# XIDs and SXIDs

The driver of NVIDIA GPUs writes a numbered error to the kernel log when something goes wrong: an XID for a GPU, an SXID
for a switch between GPUs (NVSwitch). `steadfast xid CODE` explains one, and `steadfast xid -` reads a log:

```
steadfast xid 79
steadfast xid sxid:24007
dmesg | steadfast xid -
journalctl -k -b | steadfast xid - --json
```

Codes that are not in these tables are reported and decide nothing by themselves. Where a line says more than its
code (the recovery action of XID 154, the sub-code of an NVLink error, `Fatal` or `Non-fatal` of an SXID), the line goes before
the table. `--driver 570.86.15` decides what a renumbered code means; without it the message does, and else today's meaning
holds.

## Fields of `--json`

One object for each event, on a line of its own. What a line does not give is left out.

| field | meaning |
| --- | --- |
| `kind` | `xid`, `sxid`, `malformed`, or another event of the kernel log, such as `gpu_lost` or `oom_kill` |
| `code`, `pci`, `uuid` | the number; the device as `dddd:bb:dd`; the GPU's identity, where the log told it before |
| `pid`, `name` | the process, by the host's own numbers, or `unknown` where the driver says so |
| `gi`, `ci` | MIG: GPU instance and compute instance |
| `severity` | the driver's word where the line has one (`Fatal`, `Non-fatal`, `Nonfatal`), else the same as `rating` |
| `rating` | `info`, `unknown`, `warning`, `error` (a process is lost) or `fatal` (the GPU or fabric cannot go on) |
| `cause` | who is at fault as a rule: `program`, `hardware`, `driver`, `link`, `thermal` or `unknown` |
| `action`, `meaning` | what is to be done, and what it means, by itself |
| `incident`, `rank` | events of one incident have one number; rank 0 may be its cause, the higher ranks follow from others |
| `injected` | true if something other than the kernel wrote the line |
| others | what the line gives: `link`, `unit`, `regs`, `switch`, `first`, `rst`, `to_action`, `root_cause`, `row`, ... |

## Actions

From the lightest to the heaviest. From `drain-peer-to-peer` on the job cannot go on with the GPU as it is.

| action | what to do |
| --- | --- |
";

const POLICY: &str = "
## Changing an action

`steadfast xid - --policy FILE` applies a TOML file:

```toml
[xid.43]
action = \"report\"

[xid.92]                 # three in ten minutes on one GPU
action = \"exclude-node\"
count = 3
window = \"10m\"
before = \"ignore\"        # the first two; the action of the table if left out
```

Any code can stand there, also one that the tables do not hold; `[sxid.CODE]` is for switches. Windows are written with the units
d, h, m and s.
";

fn page() -> String {
    let mut parts = vec![HEAD.to_owned()];
    parts.extend(
        Action::ALL
            .iter()
            .map(|action| row(&[&format!("`{action}`"), action.advice()])),
    );
    parts.push(POLICY.to_owned());
    parts.push("\n## XIDs\n".to_owned());
    parts.push(table(Kind::Xid));
    parts.push(
        "\n## Recovery actions (XID 154)\n\nThe number decides, not the text beside it.\n"
            .to_owned(),
    );
    parts.push(recovery_actions());
    parts.push("\n## Errors of fifth-generation NVLink (XIDs 144 to 150)\n\n".to_owned());
    parts.push(
        "`Nonfatal` in the line makes them a warning at most, and `Fatal` a `reset-gpu` at least.\n"
            .to_owned(),
    );
    parts.push(nvlink());
    parts.push("\n## SXIDs\n".to_owned());
    parts.push(table(Kind::Sxid));
    parts.concat()
}

fn table(kind: Kind) -> String {
    let head = "\n| code | name | cause | severity | action | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
    let rows = entries()
        .iter()
        .filter(|entry| entry.kind == kind)
        .map(entry_row);
    std::iter::once(head.to_owned()).chain(rows).collect()
}

fn entry_row(entry: &Entry) -> String {
    let branches = entry.branches.words();
    let code = if branches.is_empty() {
        entry.code.to_string()
    } else {
        format!("{} ({branches})", entry.code)
    };
    row(&[
        &code,
        &format!("`{}`", entry.name),
        entry.cause.name(),
        entry.severity.name(),
        entry.action.name(),
        entry.meaning,
    ])
}

fn recovery_actions() -> String {
    let head = "\n| number | action | meaning |\n| --- | --- | --- |\n".to_owned();
    let rows = [0, 1, 2, 3, 4, 5, 255].map(|number| {
        let recovery = RecoveryAction::from_number(number);
        row(&[
            &number.to_string(),
            recovery.action().name(),
            recovery.meaning(),
        ])
    });
    std::iter::once(head).chain(rows).collect()
}

fn nvlink() -> String {
    let head = "\n| XID | unit | status or reason | severity | action | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
    let rows = sub_codes().iter().map(|code| {
        row(&[
            &code.code.to_string(),
            &format!("`{}`", code.units.join("`, `")),
            &code.condition.words(),
            code.severity.name(),
            code.action.name(),
            code.meaning,
        ])
    });
    std::iter::once(head.to_owned()).chain(rows).collect()
}

fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[test]
fn reference_page_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/xid.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/xid.md is out of date: run this test with UPDATE_DOCS=1"
    );
}
