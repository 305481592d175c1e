// SPDX-License-Identifier: Apache-2.0
//! The calls that the library's wrapper does not have.

#![expect(
    unsafe_code,
    reason = "the wrapper gives these as bare C functions only"
)]

use std::mem::{MaybeUninit, size_of};

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t};

use super::reading::Fabric;

/// How the library wants to be told which structure it is given (`NVML_STRUCT_VERSION` in `nvml.h`).
const VERSION_2: u32 = version(size_of::<nvmlGpuFabricInfo_v2_t>(), 2);

#[expect(
    clippy::cast_possible_truncation,
    reason = "the size of a small structure"
)]
const fn version(size: usize, version: u32) -> u32 {
    size as u32 | version << 24
}

/// How the GPU stands in its fabric; `None` for a GPU that takes part in none.
pub(super) fn fabric(device: &Device<'_>) -> Result<Option<Fabric>, NvmlError> {
    let function = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // The newer structure only adds to the end of the older one, which every driver since 535 knows.
    let mut info = MaybeUninit::<nvmlGpuFabricInfoV_t>::zeroed();
    // SAFETY: all fields of the structure are integers, for which zero is a value.
    let info = unsafe { info.assume_init_mut() };
    info.version = VERSION_2;
    // SAFETY: the handle is only used for this call, while `device` keeps it valid.
    let handle = unsafe { device.handle() };
    // SAFETY: the function has this signature in `nvml.h`; it writes no more than the structure of the version that it is
    // told, which is not longer than the one that it is given.
    nvml_try(unsafe { function(handle, info) })?;
    Ok((info.state != 0).then_some(Fabric {
        state: info.state,
        status: info.status,
    }))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_older_structure_is_the_beginning_of_the_newer_one() {
        assert_eq!(size_of::<nvmlGpuFabricInfo_v2_t>(), 36);
        assert!(size_of::<nvmlGpuFabricInfoV_t>() >= 36);
        assert_eq!(
            offset_of!(nvmlGpuFabricInfo_v2_t, state),
            offset_of!(nvmlGpuFabricInfoV_t, state)
        );
        assert_eq!(
            offset_of!(nvmlGpuFabricInfo_v2_t, status),
            offset_of!(nvmlGpuFabricInfoV_t, status)
        );
        assert_eq!(VERSION_2, 0x0200_0024);
    }
}
