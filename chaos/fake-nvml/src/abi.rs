// SPDX-License-Identifier: Apache-2.0
//! The types of NVIDIA's header that the answered calls use, written anew from it (`nvml.h` of version 13), so that a
//! mistake in somebody's bindings shows.

use std::ffi::{c_char, c_int, c_longlong, c_uchar, c_uint, c_ulonglong, c_void};

/// `nvmlReturn_t`.
pub(crate) type Return = c_uint;
/// `nvmlDevice_t`: the number of the GPU plus one; never followed.
pub(crate) type Device = *mut c_void;
/// `nvmlEventSet_t`: the number of the set; never followed.
pub(crate) type EventSet = *mut c_void;

pub(crate) const SUCCESS: Return = 0;
pub(crate) const UNINITIALIZED: Return = 1;
pub(crate) const INVALID_ARGUMENT: Return = 2;
pub(crate) const NOT_SUPPORTED: Return = 3;
pub(crate) const NOT_FOUND: Return = 6;
pub(crate) const INSUFFICIENT_SIZE: Return = 7;
pub(crate) const DRIVER_NOT_LOADED: Return = 9;
pub(crate) const TIMEOUT: Return = 10;
pub(crate) const GPU_IS_LOST: Return = 15;
pub(crate) const ARGUMENT_VERSION_MISMATCH: Return = 25;

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) device_id: c_uint,
    pub(crate) subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlEventData_t`.
#[repr(C)]
pub(crate) struct EventData {
    pub(crate) device: Device,
    pub(crate) kind: c_ulonglong,
    pub(crate) data: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlFieldValue_t`; the value is a union of eight bytes.
#[repr(C)]
pub(crate) struct FieldValue {
    pub(crate) field: c_uint,
    pub(crate) scope: c_uint,
    pub(crate) timestamp: c_longlong,
    pub(crate) latency: c_longlong,
    pub(crate) kind: c_uint,
    pub(crate) result: Return,
    pub(crate) value: c_ulonglong,
}

/// `nvmlProcessInfo_t` of the calls with `_v3`.
#[repr(C)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) memory: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
pub(crate) struct FabricInfo {
    pub(crate) version: c_uint,
    pub(crate) cluster: [c_uchar; 16],
    pub(crate) status: Return,
    pub(crate) clique: c_uint,
    pub(crate) state: c_uchar,
    pub(crate) health_mask: c_uint,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlEnableState_t`.
pub(crate) type Enabled = c_int;

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use nvml_wrapper_sys::bindings as theirs;

    use super::*;

    #[test]
    fn sizes_are_those_of_the_header_on_64_bits() {
        for (name, ours, bindings, header) in [
            (
                "PciInfo",
                size_of::<PciInfo>(),
                size_of::<theirs::nvmlPciInfo_t>(),
                68,
            ),
            (
                "EventData",
                size_of::<EventData>(),
                size_of::<theirs::nvmlEventData_t>(),
                32,
            ),
            (
                "Memory",
                size_of::<Memory>(),
                size_of::<theirs::nvmlMemory_v2_t>(),
                40,
            ),
            (
                "FieldValue",
                size_of::<FieldValue>(),
                size_of::<theirs::nvmlFieldValue_t>(),
                40,
            ),
            (
                "ProcessInfo",
                size_of::<ProcessInfo>(),
                size_of::<theirs::nvmlProcessInfo_t>(),
                24,
            ),
            (
                "FabricInfo",
                size_of::<FabricInfo>(),
                size_of::<theirs::nvmlGpuFabricInfo_v2_t>(),
                36,
            ),
            (
                "Utilization",
                size_of::<Utilization>(),
                size_of::<theirs::nvmlUtilization_t>(),
                8,
            ),
        ] {
            assert_eq!((ours, bindings), (header, header), "{name}");
        }
    }

    #[test]
    fn offsets_are_those_of_the_header() {
        assert_eq!(offset_of!(EventData, kind), 8);
        assert_eq!(offset_of!(EventData, gpu_instance), 24);
        assert_eq!(offset_of!(FieldValue, value), 32);
        assert_eq!(offset_of!(FieldValue, result), 28);
        assert_eq!(offset_of!(PciInfo, domain), 16);
        assert_eq!(offset_of!(PciInfo, bus_id), 36);
        assert_eq!(offset_of!(Memory, total), 8);
        assert_eq!(offset_of!(ProcessInfo, memory), 8);
        assert_eq!(offset_of!(FabricInfo, status), 20);
        assert_eq!(offset_of!(FabricInfo, state), 28);
        assert_eq!(offset_of!(theirs::nvmlFieldValue_t, value), 32);
        assert_eq!(offset_of!(theirs::nvmlGpuFabricInfo_v2_t, state), 28);
        assert_eq!(offset_of!(theirs::nvmlEventData_t, gpuInstanceId), 24);
        assert_eq!(offset_of!(theirs::nvmlPciInfo_t, busId), 36);
    }
}
