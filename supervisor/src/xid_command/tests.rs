// SPDX-License-Identifier: Apache-2.0

use std::path::Path;

use serde_json::Value;
use steadfast_health::xid::{Driver, Judge, Kind, Policy};

use super::log::Log;
use super::{CommandError, explain};

const BURST: &str = "\
[171167.600] NVRM: GPU at PCI:0000:3b:00: GPU-00000000-0000-0000-0000-00000000003b
[171167.601] NVRM: Xid (PCI:0000:3b:00): 45, pid=1234, name=python, Ch 00000001
[171167.601] NVRM: Xid (PCI:0000:3b:00): 45, pid=1234, name=python, Ch 00000002
[171167.610] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
[171167.700] NVRM: Xid (PCI:0000:3b:00): 94, pid=1234, name=python, Ch 00000008
[171167.800] NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper Error: (0x00000002eebc4100) - All reserved rows for bank are remapped
[171167.800] NVRM: Xid (PCI:0000:3b:00): 43, pid=1234, name=python, Ch 00000008
[171300.800] NVRM: Xid (PCI:0000:3c:00 GPU-I:05): 43, pid=77, name=\u{1b}[31mred, Ch 00000008
";

fn read(log: &str, policy: &str, json: bool) -> String {
    let policy = Policy::parse(Path::new("site.toml"), policy).unwrap();
    let mut output = Vec::new();
    Log::new(None, Judge::new(policy), json)
        .read(log.as_bytes(), || false, &mut output)
        .unwrap();
    String::from_utf8(output).unwrap()
}

fn objects(log: &str) -> Vec<Value> {
    read(log, "", true)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn explained(kind: Kind, code: u32, driver: Option<&str>, json: bool) -> String {
    let driver = driver.map(|text| Driver::parse(text).unwrap());
    let mut output = Vec::new();
    explain::code(kind, code, driver, json, &mut output).unwrap();
    String::from_utf8(output).unwrap()
}

#[test]
fn the_cause_of_an_incident_stands_before_what_followed() {
    insta::assert_snapshot!(read(BURST, "", false), @r"
    incident 1 (171167.601 s after the start): reset-gpu
      XID 64 at 0000:3b:00 (GPU-00000000-0000-0000-0000-00000000003b)
        fatal, hardware: Bad memory could not be retired or remapped, as a rule because no spare is left
      what followed:
        XID 94 at 0000:3b:00 (GPU-00000000-0000-0000-0000-00000000003b), pid 1234 (python)
          error, hardware: A memory error that could not be corrected hit one process only; the others may go on
        XID 43 at 0000:3b:00 (GPU-00000000-0000-0000-0000-00000000003b), pid 1234 (python)
          error, program: The driver stopped a channel because of what its program did; the GPU goes on working for others
        XID 45 at 0000:3b:00 (GPU-00000000-0000-0000-0000-00000000003b), pid 1234 (python), 2 times
          warning, program: The driver took down the channels of a process: what follows a kill, a crash or another XID, one line for each channel
        XID 154 at 0000:3b:00 (GPU-00000000-0000-0000-0000-00000000003b)
          fatal, cause unknown: The GPU needs a reset before it can be used again
      Continue the job without this GPU, and reset it (`nvidia-smi --gpu-reset`) before it is used again

    incident 2 (171300.800 s after the start): restart-in-place
      XID 43 at 0000:3c:00, MIG instance 5, pid 77 (\u{1b}[31mred)
        error, program: The driver stopped a channel because of what its program did; the GPU goes on working for others
      Start the workers again on the same node
    ");
}

#[test]
fn one_object_an_event_in_the_order_of_the_log() {
    let objects = objects(BURST);
    let of = |index: usize, field: &str| objects[index][field].clone();
    assert_eq!(objects.len(), 8);
    assert_eq!(of(0, "kind"), "gpu_identity");
    assert_eq!(of(0, "incident"), Value::Null);
    assert_eq!(of(1, "code"), 45);
    assert_eq!(of(1, "pci"), "0000:3b:00");
    assert_eq!(of(1, "uuid"), "GPU-00000000-0000-0000-0000-00000000003b");
    assert_eq!(of(1, "pid"), 1234);
    assert_eq!(of(1, "name"), "python");
    assert_eq!(of(1, "action"), "follow-cause");
    assert_eq!(of(3, "action"), "reset-gpu");
    assert_eq!(of(3, "to_action"), 1);
    assert_eq!(
        (of(5, "severity"), of(5, "rank")),
        ("fatal".into(), 0.into())
    );
    assert_eq!(of(7, "gi"), 5);
    assert_eq!((of(6, "incident"), of(7, "incident")), (1.into(), 2.into()));
}

#[test]
fn the_word_of_the_line_is_its_severity() {
    let line = "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 33 x (First)";
    let object = &objects(line)[0];
    assert_eq!(object["severity"], "Non-fatal");
    assert_eq!(object["rating"], "warning");
    assert_eq!(object["action"], "report");
}

#[test]
fn a_policy_changes_what_is_done() {
    let policy = "[xid.43]\naction = 'exclude-node'";
    let text = read(BURST, policy, false);
    assert_eq!(text.matches(": exclude-node\n").count(), 2, "{text}");
}

#[test]
fn a_log_without_incident_says_so_to_people_only() {
    let quiet = "[1.0] usb 1-1: new device\n[2.0] eth0: Link up\n";
    assert_eq!(read(quiet, "", false), "no incident in 2 lines\n");
    assert_eq!(read("", "", false), "no incident in 0 lines\n");
    assert_eq!(read("", "", true), "");
}

#[test]
fn a_silence_ends_an_incident() {
    let mut output = Vec::new();
    let mut asked = 0;
    let silent = || {
        asked += 1;
        true
    };
    // A reader that gives one line at a time.
    let lines = BURST.lines().map(|line| format!("{line}\n"));
    let input = lines.map(std::io::Cursor::new).fold(
        Box::new(std::io::empty()) as Box<dyn std::io::Read>,
        |all, line| Box::new(std::io::Read::chain(all, line)),
    );
    Log::new(None, Judge::default(), false)
        .read(std::io::BufReader::new(input), silent, &mut output)
        .unwrap();
    let text = String::from_utf8(output).unwrap();
    assert!(asked > 0);
    assert!(text.matches("incident ").count() > 2, "{text}");
}

#[test]
fn a_reader_that_went_away_is_no_failure_and_a_full_disk_is() {
    struct Broken(std::io::ErrorKind);
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let read = |kind| {
        let mut log = Log::new(None, Judge::default(), true);
        log.read(BURST.as_bytes(), || false, &mut Broken(kind))
    };
    assert!(read(std::io::ErrorKind::BrokenPipe).is_ok());
    let full = read(std::io::ErrorKind::StorageFull);
    assert!(matches!(full, Err(CommandError::Write(_))), "{full:?}");
}

#[test]
fn a_code_is_explained() {
    insta::assert_snapshot!(explained(Kind::Xid, 79, None, false), @"
    XID 79: GPU_HAS_FALLEN_OFF_THE_BUS
      meaning   The GPU no longer answers on PCIe: it has to be power-cycled, and its seat, power and cooling be looked at
      at fault  hardware, as a rule
      severity  fatal
      action    reboot-node: Continue the job without this node, and restart the machine
    ");
    insta::assert_snapshot!(explained(Kind::Xid, 154, None, false), @"
    XID 154: GPU_RECOVERY_ACTION_CHANGED
      meaning   The driver says what the GPU needs now; the number in the line decides
      at fault  unknown, as a rule
      severity  warning
      action    report: Nothing happens by itself; look at it when it comes again

      to   action              meaning
      0    ignore              The GPU needs no recovery, or none any more
      1    reset-gpu           The GPU needs a reset before it can be used again
      2    reboot-node         The machine has to be restarted: a reset of the GPU is not enough
      3    drain-peer-to-peer  Peer-to-peer work with this GPU has to end
      4    reset-gpu           What still runs on the GPU may end; then it needs a reset
      5    recover-imex        The NVLink domain between nodes (IMEX) needs repair first
    ");
    insta::assert_snapshot!(explained(Kind::Sxid, 28_002, None, false), @"
    SXID 28002: OSFP_THERM_WARN_DEACTIVATED
      meaning   NVSwitch, optical modules: temperature is back to normal
      at fault  thermal, as a rule
      severity  info
      action    ignore: Nothing is to be done

    SXID 28002: NPORT_MULTICASTTSTATE_TAGPOOL_ECC_DBE_ERR (drivers before 550)
      meaning   NVSwitch, switch port, multicast table: memory error that ECC cannot repair
      at fault  link, as a rule
      severity  fatal
      action    reset-fabric: Continue the job without this node, and reset its GPUs and switches together
    ");
    insta::assert_snapshot!(explained(Kind::Xid, 99_999, None, false), @"
    XID 99999: not in the catalogue
      It is reported when it comes, and decides nothing by itself: what the driver says of the
      recovery (XID 154), or a policy (`steadfast xid - --policy FILE`), does.

    hint: `steadfast xid --list` shows the codes that are known
    ");
}

#[test]
fn sub_codes_are_listed_with_their_code() {
    let text = explained(Kind::Xid, 149, None, false);
    assert!(
        text.contains("  NETIR_LINK_EVT    reason 33          reset-gpu "),
        "{text}"
    );
    let json = explained(Kind::Xid, 148, None, true);
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(object["sub_codes"][0]["condition"], "status 0x80000000");
}

#[test]
fn a_driver_decides_what_a_code_means() {
    let name = |driver| {
        let json = explained(Kind::Xid, 139, driver, true);
        let object: Value = serde_json::from_str(&json).unwrap();
        (
            object["code_name"].clone(),
            object["other_meanings"].is_array(),
        )
    };
    assert_eq!(name(None), ("OFA1_ERROR".into(), true));
    assert_eq!(name(Some("535.104.05")), ("FAST_PATH_ERROR".into(), false));
    assert_eq!(name(Some("570.86.15")), ("OFA1_ERROR".into(), false));
}

#[test]
fn all_codes_are_listed_as_text_and_as_json() {
    let list = |json| {
        let mut output = Vec::new();
        explain::all(json, &mut output).unwrap();
        String::from_utf8(output).unwrap()
    };
    let json: Vec<Value> = serde_json::from_str(&list(true)).unwrap();
    assert_eq!(list(false).lines().count(), json.len());
    assert!(json.len() > 590, "{}", json.len());
}
