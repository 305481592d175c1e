// SPDX-License-Identifier: Apache-2.0
//! `steadfast check`: the program as a person, Slurm or a monitor runs it, on machines that are made up.

#![expect(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use steadfast_tests::{Gpus, Requirement, eventually, is_alive, steadfast};
use tempfile::TempDir;

/// The checks that need nothing but the driver's answers.
const GPU_CHECKS: [&str; 14] = [
    "gpu-driver",
    "gpu-count",
    "gpu-lost",
    "gpu-recovery",
    "gpu-ecc",
    "gpu-remap",
    "gpu-nvlink",
    "gpu-fabric",
    "gpu-pcie",
    "gpu-throttle",
    "gpu-temperature",
    "gpu-persistence",
    "gpu-history",
    "gpu-processes",
];

/// A machine that is made up.
struct Machine {
    directory: TempDir,
    gpus: Option<Gpus>,
}

impl Machine {
    fn with_gpus(count: u32) -> Machine {
        let mut machine = Machine::bare();
        machine.gpus = Some(Gpus::new(machine.directory.path(), count));
        machine
    }

    fn bare() -> Machine {
        let machine = Machine {
            directory: tempfile::Builder::new().prefix("e2e-").tempdir().unwrap(),
            gpus: None,
        };
        machine.write("root/proc/uptime", "1000.00 2000.00\n");
        machine.write("root/proc/sys/kernel/random/boot_id", "boot-1\n");
        machine.configure("");
        machine
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn configure(&self, text: &str) {
        self.write("checks.toml", text);
    }

    fn gpus(&self) -> &Gpus {
        self.gpus.as_ref().unwrap()
    }

    /// `steadfast check` with these arguments.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = command(steadfast().to_str().unwrap());
        command
            .arg("check")
            .args(arguments)
            .arg("--root")
            .arg(self.path().join("root"))
            .arg("--config")
            .arg(self.path().join("checks.toml"))
            .arg("--state")
            .arg(self.path().join("state/checks.json"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        match &self.gpus {
            Some(gpus) => command.envs(gpus.variables()),
            None => command.env("STEADFAST_NVML", "/nonexistent/libnvidia-ml.so.1"),
        };
        command.output().unwrap()
    }

    /// The report, and the exit code.
    #[track_caller]
    fn report(&self, arguments: &[&str]) -> (Value, i32) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (report, output.status.code().unwrap())
    }
}

/// Status and summary of one check.
#[track_caller]
fn of<'r>(report: &'r Value, check: &str) -> (&'r str, &'r str) {
    let mut checks = report["checks"].as_array().unwrap().iter();
    let found = checks.find(|found| found["name"] == check);
    let found = found.unwrap_or_else(|| panic!("no {check} in {report:#}"));
    (
        found["status"].as_str().unwrap(),
        found["summary"].as_str().unwrap(),
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn healthy_gpus_of_every_model_are_fit_for_jobs() {
    for (model, fabric) in [
        ("a100", "unknown"),
        ("h100", "ok"),
        ("h200", "ok"),
        ("b200", "ok"),
    ] {
        let machine = Machine::with_gpus(8);
        for gpu in 0..8 {
            machine.gpus().set(gpu, "profile", json!(model));
        }
        let (report, code) = machine.report(&GPU_CHECKS);
        assert_eq!(
            (code, &report["fit"]),
            (0, &json!(true)),
            "{model}: {report:#}"
        );
        for check in GPU_CHECKS {
            let expected = if check == "gpu-fabric" { fabric } else { "ok" };
            assert_eq!(of(&report, check).0, expected, "{model}: {report:#}");
        }
    }
}

/// A field of the fake library's state, its value, and the check that sees it, with status and words.
type Fault = (
    &'static str,
    Value,
    &'static str,
    &'static str,
    &'static str,
);

#[rustfmt::skip]
fn faults() -> Vec<Fault> {
    vec![
        ("lost", json!(true), "gpu-lost", "fail", "GPU 1 is lost"),
        ("recovery", json!(2), "gpu-recovery", "fail", "recovery action 2"),
        ("uncorrected_errors", json!(3), "gpu-ecc", "fail", "had 3 memory errors"),
        ("ecc", json!(0), "gpu-ecc", "warn", "told not to notice"),
        ("remap_failed", json!(true), "gpu-remap", "fail", "could not be replaced"),
        ("remap_pending", json!(true), "gpu-remap", "warn", "next reset"),
        ("links_down", json!([3]), "gpu-nvlink", "fail", "NVLink 3 is down"),
        ("fabric_state", json!(2), "gpu-fabric", "fail", "has not finished joining"),
        ("pcie_width", json!(8), "gpu-pcie", "warn", "uses 8 of 16 PCIe lanes"),
        ("throttle", json!(0x40), "gpu-throttle", "warn", "slowed down for heat"),
        ("temperature", json!(101), "gpu-temperature", "fail", "has 101 °C"),
        ("persistence", json!(0), "gpu-persistence", "warn", "is not in persistence mode"),
        ("processes", json!([[4_000_000, 1_073_741_824]]), "gpu-processes", "fail", "holds 1 GiB"),
    ]
}

#[test]
fn each_fault_of_a_gpu_is_found_by_its_check() {
    for (field, value, check, status, said) in faults() {
        let machine = Machine::with_gpus(2);
        machine.gpus().set(1, field, value);
        let (report, code) = machine.report(&["--profile", "prolog", check]);
        let (found, summary) = of(&report, check);
        assert_eq!(found, status, "{field}: {report:#}");
        assert!(summary.contains(said), "{field}: {summary}");
        assert_eq!(code, if status == "fail" { 76 } else { 0 }, "{field}");
        // A job that does not use that GPU may start.
        let (report, code) = machine.report(&["--profile", "prolog", "--gpus", "0", check]);
        assert_eq!(
            (code, of(&report, check).0),
            (0, "ok"),
            "{field}: {report:#}"
        );
    }
}

#[test]
fn a_gpu_that_is_missing_is_seen_by_the_number_that_is_expected() {
    let machine = Machine::with_gpus(7);
    machine.configure("[check.gpu-count]\nexpected = 8\n");
    let (report, code) = machine.report(&["gpu-count"]);
    assert_eq!(
        of(&report, "gpu-count"),
        ("fail", "7 of 8 GPUs can be used")
    );
    assert_eq!(
        (code, report["reason"].as_str()),
        (76, Some("gpu-count: 7 of 8 GPUs can be used"))
    );
}

#[test]
fn a_call_that_hangs_is_named_others_are_judged_and_nothing_piles_up() {
    let machine = Machine::with_gpus(2);
    machine.configure("[check.gpu-driver]\nanswer_within = \"1s\"\n");
    machine.gpus().change(|state| {
        state["hang"] = json!([{ "call": "nvmlDeviceGetTemperature", "gpu": 1, "seconds": 600.0 }]);
        state["gpus"][0]["remap_failed"] = json!(true);
    });
    let checks = ["--profile", "prolog", "gpu-driver", "gpu-remap", "gpu-ecc"];
    let (report, code) = machine.report(&checks);
    assert_eq!(code, 76, "{report:#}");
    let said = "NVIDIA's driver does not answer: nvmlDeviceGetTemperature about GPU 1 (0000:19:00) had not returned after 1s";
    assert_eq!(of(&report, "gpu-driver"), ("fail", said));
    assert_eq!(
        of(&report, "gpu-remap").0,
        "fail",
        "GPU 0 is judged: {report:#}"
    );
    let said = "GPU 1 (0000:19:00) did not answer (see gpu-driver)";
    assert_eq!(of(&report, "gpu-ecc"), ("unknown", said));

    // The process that hangs was not killed, and a second one is not put beside it.
    let lock = std::fs::read_to_string(machine.path().join("state/nvml.lock")).unwrap();
    let pid: i32 = lock.split(' ').next().unwrap().parse().unwrap();
    assert!(is_alive(pid));
    let (report, code) = machine.report(&checks);
    let (status, summary) = of(&report, "gpu-driver");
    assert_eq!((code, status), (76, "fail"), "{report:#}");
    assert!(
        summary.contains(&format!("(pid {pid}) has not ended")),
        "{summary}"
    );

    machine.gpus().change(|state| {
        state["hang"] = json!([]);
        state["gpus"][0]["remap_failed"] = json!(false);
    });
    eventually("the end of the process that hung", || {
        (!is_alive(pid))
            .then_some(())
            .ok_or_else(|| format!("{pid} is there"))
    });
    let (report, code) = machine.report(&checks);
    assert_eq!((code, of(&report, "gpu-driver").0), (0, "ok"), "{report:#}");
}

#[test]
fn a_driver_that_is_not_loaded_is_a_fault_where_the_bus_has_gpus() {
    let machine = Machine::with_gpus(1);
    machine
        .gpus()
        .change(|state| state["fail"] = json!({ "nvmlInit_v2": 9 }));
    let checks = ["gpu-driver", "gpu-count", "gpu-ecc"];
    let (report, code) = machine.report(&checks);
    assert_eq!(
        (code, of(&report, "gpu-driver").0),
        (0, "unknown"),
        "{report:#}"
    );
    let device = "root/sys/bus/pci/devices/0000:18:00.0";
    machine.write(&format!("{device}/vendor"), "0x10de\n");
    machine.write(&format!("{device}/class"), "0x030200\n");
    let (report, code) = machine.report(&checks);
    assert_eq!(
        (code, of(&report, "gpu-driver").0),
        (76, "fail"),
        "{report:#}"
    );
    assert_eq!(of(&report, "gpu-count").0, "fail", "{report:#}");
    assert_eq!(
        of(&report, "gpu-ecc"),
        ("unknown", "NVIDIA's driver is not loaded")
    );
    machine
        .gpus()
        .change(|state| state["fail"] = json!({ "nvmlInit_v2": 18 }));
    let (report, _) = machine.report(&checks);
    assert!(
        of(&report, "gpu-driver")
            .1
            .contains("of another version than the driver"),
        "{report:#}"
    );
}

#[test]
fn without_gpus_a_node_is_fit_and_what_could_not_be_checked_is_said() {
    let machine = Machine::bare();
    let output = machine.run(&["--profile", "prolog"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        said.contains("NVIDIA's library (libnvidia-ml.so.1) is not here"),
        "{said}"
    );
    assert!(
        said.contains("there is no InfiniBand or RoCE adapter"),
        "{said}"
    );
    assert!(said.contains(" is fit for jobs: of "), "{said}");
    assert!(
        !said.contains('\x1b'),
        "no colour but on a terminal: {said}"
    );
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn counters_are_compared_from_one_run_to_the_next() {
    let machine = Machine::bare();
    let counter = "root/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error";
    machine.write(counter, "7\n");
    let (report, _) = machine.report(&["infiniband-counters"]);
    assert_eq!(
        of(&report, "infiniband-counters").0,
        "unknown",
        "{report:#}"
    );
    machine.write(counter, "700\n");
    machine.write("root/proc/uptime", "4600.00 2000.00\n");
    let (report, _) = machine.report(&["infiniband-counters"]);
    let said = "port mlx5_0:1 counts symbol_error: 693 in 1h";
    assert_eq!(of(&report, "infiniband-counters"), ("warn", said));
}

#[test]
fn a_mount_of_a_file_server_is_asked_in_a_process_of_its_own() {
    let machine = Machine::bare();
    let export = machine.path().join("export");
    std::fs::create_dir(&export).unwrap();
    let line = |path: &Path| format!("40 22 0:40 / {} rw - nfs4 server:/x rw\n", path.display());
    machine.write("root/proc/self/mountinfo", &line(&export));
    machine.configure(&format!(
        "[check.mounts]\nrequired = {export:?}\nwrite = true\n"
    ));
    let (report, code) = machine.report(&["mounts"]);
    assert_eq!(
        (code, of(&report, "mounts")),
        (0, ("ok", "1 mounts asked, all answer"))
    );
    assert_eq!(
        std::fs::read_dir(&export).unwrap().count(),
        0,
        "nothing is left there"
    );
    machine.write("root/proc/self/mountinfo", &line(&export.join("gone")));
    let (report, code) = machine.report(&["mounts"]);
    let (status, summary) = of(&report, "mounts");
    assert_eq!((code, status), (76, "fail"), "{report:#}");
    assert!(summary.contains("nothing is mounted on"), "{summary}");
    assert!(
        summary.contains("gone (nfs4, server:/x) cannot be asked"),
        "{summary}"
    );
}

/// A file system on which whoever writes sleeps beyond SIGKILL, until it is dropped.
struct Frozen {
    directory: PathBuf,
}

impl Frozen {
    fn below(directory: &Path) -> Frozen {
        let (image, mounted) = (directory.join("image"), directory.join("frozen"));
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        succeed("mkfs.ext4", &["-q".as_ref(), image.as_ref()]);
        succeed(
            "mount",
            &[
                "-o".as_ref(),
                "loop".as_ref(),
                image.as_ref(),
                mounted.as_ref(),
            ],
        );
        let frozen = Frozen { directory: mounted };
        succeed("fsfreeze", &["-f".as_ref(), frozen.directory.as_ref()]);
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        succeed("fsfreeze", &["-u".as_ref(), self.directory.as_ref()]);
        eventually("the end of those who slept", || {
            let done = command("umount").arg(&self.directory).output().unwrap();
            done.status
                .success()
                .then_some(())
                .ok_or_else(|| text(&done.stderr))
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn command(program: &str) -> Command {
    Command::new(program)
}

#[track_caller]
fn succeed(program: &str, arguments: &[&OsStr]) {
    let output = command(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

#[test]
fn a_mount_that_puts_to_sleep_beyond_sigkill_is_seen_and_holds_nobody_up() {
    let machine = Machine::bare();
    if !(Requirement::Root.met() && Requirement::FreezableDisk.met()) {
        return;
    }
    let frozen = Frozen::below(machine.path());
    let path = &frozen.directory;
    let line = format!("40 22 7:0 / {} rw - ext4 /dev/loop0 rw\n", path.display());
    machine.write("root/proc/self/mountinfo", &line);
    machine.configure(&format!(
        "[check.mounts]\nrequired = {path:?}\nwrite = true\ndeadline = \"2s\"\n"
    ));
    let (report, code) = machine.report(&["mounts"]);
    let (status, summary) = of(&report, "mounts");
    assert_eq!((code, status), (76, "fail"), "{report:#}");
    assert!(
        summary.contains("does not answer: who asks it sleeps"),
        "{summary}"
    );
    assert!(summary.contains("(state D)"), "{summary}");
}

#[test]
fn commands_of_the_site_answer_by_their_exit_code_and_break_alone() {
    let machine = Machine::bare();
    machine.configure(
        r#"
        [command.well]
        run = ["sh", "-c", "echo 'OK - fine | load=1'"]
        [command.bad]
        run = ["sh", "-c", "echo too much; exit 2"]
        [command.hung]
        run = ["sleep", "1000"]
        deadline = "1s"
        [command.absent]
        run = ["/nonexistent/check"]
        "#,
    );
    let (report, code) = machine.report(&["well", "bad", "hung", "absent"]);
    assert_eq!(code, 76, "{report:#}");
    assert_eq!(of(&report, "well"), ("ok", "OK - fine"));
    assert_eq!(of(&report, "bad"), ("fail", "too much"));
    assert_eq!(of(&report, "hung").0, "broken");
    assert_eq!(of(&report, "absent").0, "broken");
    let (report, code) = machine.report(&["hung", "absent"]);
    assert_eq!(
        (code, &report["fit"]),
        (0, &json!(true)),
        "what breaks fails nothing"
    );
}

#[test]
fn what_is_wrong_in_the_configuration_or_on_the_line_is_named() {
    let machine = Machine::bare();
    machine.configure("\n[check.gpu-cuont]\nexpected = 8\n");
    let output = machine.run(&[]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("checks.toml:2: `check.gpu-cuont` is unknown; did you mean `gpu-count`?"),
        "{said}"
    );
    machine.configure("");
    for (arguments, said) in [
        (
            &["gpu-eec"][..],
            "there is no check `gpu-eec`; did you mean `gpu-ecc`?",
        ),
        (
            &["--skip", "everything"],
            "there is no check `everything`; `steadfast check --list` names them",
        ),
        (
            &["--profile", "prologue"],
            "a similar value exists: 'prolog'",
        ),
        (&["--json", "--nagios"], "cannot be used with"),
    ] {
        let output = machine.run(arguments);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
}

#[test]
fn monitors_get_metrics_in_a_file_and_plugins_their_codes() {
    let machine = Machine::with_gpus(1);
    machine.gpus().set(0, "persistence", json!(0));
    let file = machine.path().join("metrics/checks.prom");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let checks = ["gpu-persistence", "gpu-ecc", "--prometheus", "--output"];
    let output = machine.run(&[&checks[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), String::new())
    );
    let metrics = std::fs::read_to_string(&file).unwrap();
    let line =
        "steadfast_check_status{profile=\"health\",check=\"gpu-persistence\",status=\"warn\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    assert_eq!(
        std::fs::read_dir(file.parent().unwrap()).unwrap().count(),
        1
    );
    for (checks, code, said) in [
        (&["gpu-ecc"][..], 0, "STEADFAST OK - 1 checks well"),
        (
            &["gpu-ecc", "gpu-persistence"],
            1,
            "STEADFAST WARNING - gpu-persistence: GPU 0",
        ),
        (
            &["infiniband"],
            3,
            "STEADFAST UNKNOWN - 0 checks well, 1 could not be made",
        ),
    ] {
        let output = machine.run(&[checks, &["--nagios"]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stdout).starts_with(said), "{output:?}");
    }
    machine.gpus().set(0, "lost", json!(true));
    let output = machine.run(&["gpu-lost", "--nagios"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn every_check_can_be_listed() {
    let machine = Machine::bare();
    let output = machine.run(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("gpu-driver  (prolog, epilog, health, full; at most 7s)")
    );
    let output = machine.run(&["--list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(list.as_array().unwrap().len() > 20);
}
