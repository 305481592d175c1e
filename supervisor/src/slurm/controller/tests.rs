// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Slurm 22.05's own answer, shortened.
const DRAINED: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=1 
   CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=1.97
   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0 
   RealMemory=1000 AllocMem=0 FreeMem=1113 Sockets=2 Boards=1
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=p 
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
   Reason=steadfast: XID 79 at 0000:18:00; a [b] State=IDLE [root@2026-11-30T20:22:18]
";

#[test]
fn state_and_reason_of_a_node_are_read() {
    let node = NodeView::parse(DRAINED).unwrap();
    assert_eq!(node.state, "IDLE+DRAIN");
    assert_eq!(
        node.reason,
        "steadfast: XID 79 at 0000:18:00; a [b] State=IDLE"
    );
    assert!(node.is_drained() && node.is_ours() && !node.is_away());
    assert_eq!(NodeView::parse("slurm_load_node error: no"), None);
}

#[test]
fn marks_behind_a_state_do_not_hide_it() {
    let state = |state: &str| NodeView {
        state: state.to_owned(),
        reason: "Not responding".to_owned(),
    };
    assert!(state("DOWN*").is_away());
    assert!(state("IDLE+DRAIN+NOT_RESPONDING").is_drained());
    assert!(!state("IDLE+DRAIN").is_ours());
    assert!(!state("ALLOCATED+MAINTENANCE").is_drained());
    assert!(state("DOWN+DRAIN").is_away());
}

#[test]
fn a_reason_without_author_stays_whole() {
    let node = NodeView::parse("State=DOWN\n   Reason=Prolog error [root@2026-11-30T20:22:22]\n");
    assert_eq!(node.unwrap().reason, "Prolog error");
    let node = NodeView::parse("State=DOWN\n   Reason=see [ticket 7]\n");
    assert_eq!(node.unwrap().reason, "see [ticket 7]");
}

#[test]
fn the_state_of_a_job_is_read() {
    let job = |state: &str, reason: &str| {
        JobView::parse(&format!(
            "JobId=3 JobName=Reason=none\n   JobState={state} Reason={reason} Dependency=(null)\n   Requeue=1 Restarts=2 BatchFlag=1\n"
        ))
        .unwrap()
    };
    let waiting = |for_its_time, held| JobState::Pending { for_its_time, held };
    assert_eq!(job("PENDING", "BeginTime").state, waiting(true, false));
    assert_eq!(
        job("PENDING", "launch_failed_requeued_held").state,
        waiting(false, true)
    );
    assert_eq!(job("PENDING", "Resources").state, waiting(false, false));
    assert_eq!(job("COMPLETING", "None").state, JobState::Completing);
    assert_eq!(job("CONFIGURING", "None").state, JobState::Running);
    assert_eq!(job("NODE_FAIL", "None").state, JobState::Ended);
    assert_eq!(job("RUNNING", "None").restarts, 2);
    assert_eq!(JobView::parse("slurm_load_jobs error"), None);
}

#[test]
fn a_reason_is_one_line_of_bounded_length() {
    assert_eq!(one_line(" a\n\tb \"c\"\u{7} d\0"), "a b 'c' d");
    let long = one_line(&"word ".repeat(100));
    assert!(long.len() <= LONGEST_REASON + 4, "{}", long.len());
    assert!(long.ends_with("word ..."), "{long}");
}
