// SPDX-License-Identifier: Apache-2.0
//! Whatever stands in the files of a node, checks end, and none of them breaks.

use proptest::prelude::*;

use crate::testing::Made;
use crate::{CHECKS, Status};

/// Files that checks read, of every kind.
const FILES: [&str; 38] = [
    "proc/uptime",
    "proc/sys/kernel/random/boot_id",
    "proc/sys/kernel/tainted",
    "proc/meminfo",
    "proc/modules",
    "proc/self/mountinfo",
    "proc/7/stat",
    "proc/7/status",
    "proc/7/wchan",
    "proc/8/stat",
    "dev/shm/left",
    "run/docker.sock",
    "sys/module/nvidia/version",
    "sys/bus/pci/devices/0000:18:00.0/vendor",
    "sys/bus/pci/devices/0000:18:00.0/class",
    "sys/bus/pci/devices/0000:18:00.0/config",
    "sys/class/infiniband/mlx5_0/board_id",
    "sys/class/infiniband/mlx5_0/ports/1/state",
    "sys/class/infiniband/mlx5_0/ports/1/phys_state",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error",
    "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err",
    "sys/class/infiniband/mlx5_1/ports/1/state",
    "sys/class/infiniband/mlx5_1/ports/1/rate",
    "sys/class/infiniband/mlx5_1/ports/1/counters/link_downed",
    "sys/class/net/eth0/type",
    "sys/class/net/eth0/flags",
    "sys/class/net/eth0/carrier",
    "sys/class/net/eth0/speed",
    "sys/class/net/eth0/carrier_changes",
    "sys/class/net/eth0/device/vendor",
    "sys/devices/system/edac/mc/mc0/ce_count",
    "sys/devices/system/edac/mc/mc0/ue_count",
    "sys/devices/system/edac/mc/mc1/ce_count",
    "sys/devices/system/edac/mc/mc1/ue_count",
    "sys/devices/system/clocksource/clocksource0/current_clocksource",
    "state/checks.json",
];

/// What may stand in a file: nothing, what belongs into another one, numbers at the edges, and anything.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let edges: [&[u8]; 14] = [
        b"",
        b"\n",
        b"\0",
        b"-1\n",
        b"0\n",
        b"18446744073709551615\n",
        b"18446744073709551616\n",
        b"1e309 nan\n",
        b"4: ACTIVE\n",
        b"400 Gb/sec (4X NDR)\n",
        b"7 (x) D 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 18446744073709551615 0 0\n",
        b"voluntary_ctxt_switches:\t18446744073709551615\nnonvoluntary_ctxt_switches:\t1\nUid:\t5\n",
        b"40 22 0:40 / /x\\777\\04 rw - nfs4 s ro\nMemTotal: 1 kB\nMemAvailable: 18446744073709551 kB\n",
        b"{\"version\":1,\"checks\":{\"infiniband-counters\":{\"boot\":5},\"memory\":[],\"edac\":{\"boot\":\"\",\"at_ms\":18446744073709551615,\"counters\":{}}}}",
    ];
    prop_oneof![
        4 => prop::sample::select(edges.to_vec()).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whatever_stands_in_files_no_check_breaks(
        contents in prop::collection::vec(prop::option::of(content()), FILES.len())
    ) {
        let made = Made::running();
        for (file, content) in FILES.iter().zip(contents) {
            if let Some(content) = content {
                made.write(file, content);
            }
        }
        let names: Vec<&str> = CHECKS.iter().map(|spec| spec.name).collect();
        // Twice: the second run reads what the first one has left.
        for _ in 0..2 {
            let report = made.report(&names);
            prop_assert_eq!(report.results.len(), CHECKS.len());
            for result in report.with(Status::Broken) {
                prop_assert!(false, "{:#?}", result);
            }
        }
    }
}
