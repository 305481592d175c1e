// SPDX-License-Identifier: Apache-2.0
//! The numbered fields of a GPU (`NVML_FI_*` in the header).

use crate::abi::{FieldValue, NOT_SUPPORTED, SUCCESS};
use crate::state::Gpu;

/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED: u32 = 1;

/// Answers one field.
pub(crate) fn answer(gpu: &Gpu, value: &mut FieldValue) {
    let found = match value.field {
        91 => Some(gpu.facts().nvlinks),
        142 => Some(gpu.remapped_corrected),
        143 => Some(gpu.remapped_uncorrected),
        144 => Some(gpu.remap_pending.into()),
        145 => Some(gpu.remap_failed.into()),
        230 => Some(gpu.recovery),
        _ => None,
    };
    value.timestamp = 0;
    value.latency = 0;
    value.kind = UNSIGNED;
    value.value = u64::from(found.unwrap_or_default());
    value.result = if found.is_some() {
        SUCCESS
    } else {
        NOT_SUPPORTED
    };
}
