// SPDX-License-Identifier: Apache-2.0
//! How many workers `auto`, `gpu` and `cpu` mean on this machine.

use super::host::Host;

/// Reads `--nproc-per-node`.
pub(crate) fn workers(host: &Host, text: &str) -> Result<u32, String> {
    match text.trim() {
        "cpu" => Ok(host.cpus),
        "gpu" => match gpus(host) {
            0 => Err("no GPU is visible on this machine".to_owned()),
            count => Ok(count),
        },
        "auto" => match gpus(host) {
            0 => Ok(host.cpus),
            count => Ok(count),
        },
        number => match number.parse() {
            Ok(count @ 1..) => Ok(count),
            _ => Err("must be a whole number of at least 1, or `auto`, `gpu` or `cpu`".to_owned()),
        },
    }
}

/// The GPUs that a worker can see, without asking the driver: what is named by the variables that hide GPUs, of those
/// that have a device file.
fn gpus(host: &Host) -> u32 {
    let present = device_files(host);
    if present == 0 {
        return 0;
    }
    // An empty CUDA_VISIBLE_DEVICES hides every GPU, so unset and empty differ here.
    if let Some(list) = host.environment.get("CUDA_VISIBLE_DEVICES") {
        return list.to_str().map_or(0, |list| listed(list, present));
    }
    match host.variable("NVIDIA_VISIBLE_DEVICES") {
        Some("none" | "void") => 0,
        Some("all") | None => present,
        Some(list) => listed(list, present),
    }
}

/// Entries up to the first that cannot be a GPU, which is where CUDA stops reading.
fn listed(list: &str, present: u32) -> u32 {
    let valid = list
        .split(',')
        .map(str::trim)
        .take_while(|entry| match entry.parse::<i64>() {
            Ok(index) => (0..i64::from(present)).contains(&index),
            Err(_) => ["GPU-", "MIG-"]
                .iter()
                .any(|prefix| entry.starts_with(prefix)),
        })
        .count();
    u32::try_from(valid).unwrap_or(u32::MAX)
}

/// `/dev/nvidia0`, `/dev/nvidia1`, ...
fn device_files(host: &Host) -> u32 {
    let Ok(entries) = std::fs::read_dir(host.root.join("dev")) else {
        return 0;
    };
    let count = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .and_then(|name| name.strip_prefix("nvidia"))
                .is_some_and(|index| {
                    !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())
                })
        })
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpus: u32) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev");
        std::fs::create_dir(&dev).unwrap();
        for name in ["nvidiactl", "nvidia-uvm", "null"] {
            std::fs::write(dev.join(name), "").unwrap();
        }
        for index in 0..gpus {
            std::fs::write(dev.join(format!("nvidia{index}")), "").unwrap();
        }
        let host = Host::for_test(root.path());
        (root, host)
    }

    #[test]
    fn auto_prefers_gpus_and_falls_back_to_cpus() {
        let (_root, host) = machine(8);
        assert_eq!(workers(&host, "auto"), Ok(8));
        assert_eq!(workers(&host, "cpu"), Ok(4));
        let (_root, host) = machine(0);
        assert_eq!(workers(&host, "auto"), Ok(4));
        assert_eq!(
            workers(&host, "gpu").unwrap_err(),
            "no GPU is visible on this machine"
        );
    }

    #[test]
    fn hidden_gpus_do_not_count() {
        let (_root, host) = machine(4);
        for (list, count) in [
            ("0,2", 2),
            ("", 0),
            ("-1", 0),
            ("1,9,2", 1),
            ("GPU-aa,GPU-bb", 2),
        ] {
            assert_eq!(
                gpus(&host.clone().with("CUDA_VISIBLE_DEVICES", list)),
                count,
                "{list}"
            );
        }
        for (list, count) in [("all", 4), ("none", 0), ("0,1", 2)] {
            assert_eq!(
                gpus(&host.clone().with("NVIDIA_VISIBLE_DEVICES", list)),
                count,
                "{list}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let (_root, host) = machine(0);
        for text in ["0", "-1", "xpu", "1.5", ""] {
            assert!(workers(&host, text).is_err(), "{text}");
        }
    }
}
