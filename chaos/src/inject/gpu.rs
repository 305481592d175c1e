// SPDX-License-Identifier: Apache-2.0
//! GPUs that are not well: as the kernel log and the fake NVML library tell it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Active, Order};
use crate::bench::launch::write;
use crate::failure::Failure;
use crate::scenario::{GpuVia, Injection};
use crate::world::World;

/// What was told of a GPU.
#[derive(Debug)]
pub(super) struct Told {
    evidence: String,
    /// The state of the GPUs before, where it is to come back.
    before: Option<(PathBuf, String)>,
}

/// Tells it.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<Told, Failure> {
    let index = order.node()?;
    let name = world
        .nodes
        .get(index)
        .map(|node| node.name.clone())
        .unwrap_or_default();
    let gpus = world.layout.gpus(&name);
    match injection {
        Injection::KernelLog { line } => append(&world.layout.kernel_log(&name), line),
        Injection::Xid {
            code,
            gpu,
            via: GpuVia::KernelLog,
        } => {
            let line = format!(
                "NVRM: Xid (PCI:0000:{:02x}:00): {code}, pid='<unknown>', name=<unknown>, injected",
                0x18 + gpu
            );
            append(&world.layout.kernel_log(&name), &line)
        }
        Injection::Xid { code, gpu, .. } => change(gpus, |state| {
            if let Some(events) = state["events"].as_array_mut() {
                let id = events.len() + 1;
                events.push(json!({ "id": id, "gpu": gpu, "xid": code }));
            }
        }),
        Injection::Gpu { gpu, set } => change(gpus, |state| {
            let index = usize::try_from(*gpu).unwrap_or(usize::MAX);
            if let Some(fields) = state["gpus"].get_mut(index).and_then(Value::as_object_mut) {
                fields.extend(
                    set.iter()
                        .map(|(name, value)| (name.clone(), value.clone())),
                );
            }
        }),
        Injection::NvmlHang { call, gpu } => change(gpus, |state| {
            state["hang"] = json!([{ "call": call, "gpu": gpu, "seconds": 3600 }]);
        }),
        _ => Err(Failure::Unexpected(format!(
            "{} is nothing that a GPU does",
            injection.name()
        ))),
    }
}

fn append(path: &PathBuf, line: &str) -> Result<Told, Failure> {
    let failed = |error| Failure::write(path.display(), error);
    let record = format!("{line}\n");
    OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(record.as_bytes()))
        .map_err(failed)?;
    Ok(Told {
        evidence: format!("the kernel log has grown by `{}`", record.trim_end()),
        before: None,
    })
}

/// Changes the state of the GPUs; the library looks at it in every call.
fn change(path: PathBuf, edit: impl FnOnce(&mut Value)) -> Result<Told, Failure> {
    let before = fs::read_to_string(&path).map_err(|error| Failure::read(path.display(), error))?;
    let mut state: Value = serde_json::from_str(&before)
        .map_err(|error| Failure::Unexpected(format!("{}: {error}", path.display())))?;
    edit(&mut state);
    let after = state.to_string();
    if serde_json::from_str::<Value>(&before).is_ok_and(|before| before == state) {
        return Err(Failure::Unexpected("there is no such GPU".to_owned()));
    }
    put(&path, &after)?;
    Ok(Told {
        evidence: format!("the library now reads {after}"),
        before: Some((path, before)),
    })
}

fn put(path: &PathBuf, text: &str) -> Result<(), Failure> {
    let new = path.with_extension("new");
    write(&new, text)?;
    fs::rename(&new, path).map_err(|error| Failure::write(path.display(), error))
}

impl Active for Told {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        Ok(Some(self.evidence.clone()))
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        match &self.before {
            // What was said stays said.
            None => Ok(None),
            Some((path, before)) => {
                put(path, before)?;
                Ok(Some("the GPUs are as they were".to_owned()))
            }
        }
    }
}
