// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::LocalRank;

const IN_REDUCE: [&str; 3] = ["receive", "all_reduce", "train"];

fn rank(number: u32, doing: Doing, stack: &[&str]) -> RankSigns {
    RankSigns {
        node: NodeName(format!("n{}", number / 2)),
        rank: Rank(number),
        local_rank: LocalRank(number % 2),
        pid: 100 + number,
        step: Some(7),
        activity: None,
        kernel: KernelState::Sleeping,
        wchan: None,
        doing,
        stack: stack.iter().map(|&function| function.to_owned()).collect(),
        still: true,
        cpu: 0.0,
    }
}

/// Three ranks in the same collective, and this one.
fn against(mut odd: RankSigns) -> StallVerdict {
    odd.rank = Rank(2);
    odd.node = NodeName("n1".to_owned());
    let mut ranks: Vec<RankSigns> = [0, 1, 3]
        .map(|number| rank(number, Doing::Collective, &IN_REDUCE))
        .into();
    ranks.insert(1, odd);
    find_culprit(&ranks).unwrap()
}

#[track_caller]
fn blames_rank_2(verdict: &StallVerdict, class: FaultClass, confidence: Confidence) {
    let culprit = verdict
        .culprit
        .as_ref()
        .map(|culprit| (culprit.rank, culprit.node.0.as_str()));
    assert_eq!(culprit, Some((Rank(2), "n1")), "{verdict:#?}");
    assert_eq!(
        (verdict.class, verdict.confidence),
        (class, confidence),
        "{verdict:#?}"
    );
    assert!(verdict.others.is_empty());
}

#[test]
fn a_stopped_rank_is_to_blame_wherever_it_was_stopped() {
    let mut stopped = rank(2, Doing::Unknown, &[]);
    stopped.kernel = KernelState::Stopped;
    blames_rank_2(
        &against(stopped.clone()),
        FaultClass::Hang,
        Confidence::Strong,
    );
    stopped.stack = IN_REDUCE.map(str::to_owned).to_vec();
    blames_rank_2(&against(stopped), FaultClass::Hang, Confidence::Strong);
}

#[test]
fn a_rank_that_waits_for_its_data_is_to_blame() {
    let verdict = against(rank(2, Doing::Data, &["get", "__next__", "train"]));
    blames_rank_2(&verdict, FaultClass::Hang, Confidence::Strong);
    assert!(verdict.advice.contains("data loader"));
    let verdict = against(rank(2, Doing::Pause, &["fetch", "train"]));
    blames_rank_2(&verdict, FaultClass::Hang, Confidence::Strong);
}

#[test]
fn a_spinning_rank_and_one_in_a_file_system_might_be_slow_only() {
    let mut spins = rank(2, Doing::Computing, &["spin", "train"]);
    spins.cpu = 1.0;
    blames_rank_2(&against(spins.clone()), FaultClass::Hang, Confidence::Fair);
    spins.still = false;
    blames_rank_2(&against(spins), FaultClass::Straggler, Confidence::Fair);
    let mut writes = rank(2, Doing::Storage, &["write", "train"]);
    writes.kernel = KernelState::Uninterruptible;
    writes.wchan = Some("rpc_wait_bit_killable".to_owned());
    blames_rank_2(
        &against(writes.clone()),
        FaultClass::Storage,
        Confidence::Fair,
    );
    writes.wchan = Some("uvm_lock".to_owned());
    blames_rank_2(&against(writes), FaultClass::GpuHardware, Confidence::Fair);
}

#[test]
fn without_stacks_the_system_call_and_the_step_decide() {
    let mut ranks: Vec<RankSigns> = (0..4)
        .map(|number| rank(number, Doing::Network, &[]))
        .collect();
    assert_eq!(find_culprit(&ranks).unwrap().culprit, None);
    ranks[2].doing = Doing::Pause;
    blames_rank_2(
        &find_culprit(&ranks).unwrap(),
        FaultClass::Hang,
        Confidence::Strong,
    );
    ranks[2].step = Some(6);
    blames_rank_2(
        &find_culprit(&ranks).unwrap(),
        FaultClass::Hang,
        Confidence::Strong,
    );
    ranks[0].doing = Doing::Unknown;
    ranks[2].doing = Doing::Unknown;
    blames_rank_2(
        &find_culprit(&ranks).unwrap(),
        FaultClass::Hang,
        Confidence::Fair,
    );
}

#[test]
fn a_rank_that_waits_elsewhere_gives_way_to_one_that_does_not_wait() {
    let mut ranks: Vec<RankSigns> = (0..4)
        .map(|number| {
            rank(
                number,
                Doing::Collective,
                &["receive", "broadcast", "train"],
            )
        })
        .collect();
    ranks[0].stack = vec!["accept".to_owned(), "join".to_owned(), "train".to_owned()];
    let verdict = find_culprit(&ranks).unwrap();
    assert_eq!(verdict.culprit.unwrap().rank, Rank(0));
    ranks[2] = rank(2, Doing::Pause, &["prepare"]);
    ranks[1].stack = vec![
        "receive".to_owned(),
        "broadcast".to_owned(),
        "train".to_owned(),
    ];
    // Two of four are no majority: the one that sleeps is still the one that the others wait for.
    blames_rank_2(
        &find_culprit(&ranks).unwrap(),
        FaultClass::Hang,
        Confidence::Strong,
    );
}

#[test]
fn who_might_be_slow_only_is_given_more_time() {
    let stall = Stall {
        since: crate::Instant::from_nanos(0),
        bound: Duration::from_secs(2),
        activity: super::super::Activity::Train,
        step: Some(7),
        typical: None,
    };
    let seconds = |verdict: &StallVerdict| verdict.patience(&stall).as_secs();
    let sleeps = against(rank(2, Doing::Pause, &["fetch"]));
    let mut works = rank(2, Doing::Computing, &["work"]);
    works.cpu = 1.0;
    let spins = against(works.clone());
    works.still = false;
    let works = against(works);
    let writes = against(rank(2, Doing::Storage, &["write"]));
    assert_eq!(
        [&sleeps, &spins, &writes, &works].map(seconds),
        [5, 12, 30, 600]
    );
    let stopped = RankSigns {
        kernel: KernelState::Stopped,
        ..rank(2, Doing::Unknown, &[])
    };
    assert_eq!(seconds(&against(stopped)), 2);
    let mut debugged = rank(2, Doing::Unknown, &[]);
    debugged.kernel = KernelState::Traced;
    assert!(against(debugged).is_held && !spins.is_held);
}

#[test]
fn everybody_in_one_place_is_nobodys_fault_and_thin_evidence() {
    for doing in [Doing::Collective, Doing::Computing, Doing::Waiting] {
        let ranks: Vec<RankSigns> = (0..4)
            .map(|number| rank(number, doing, &IN_REDUCE))
            .collect();
        let verdict = find_culprit(&ranks).unwrap();
        assert_eq!(
            (verdict.culprit, verdict.confidence),
            (None, Confidence::Thin),
            "{doing:?}"
        );
    }
    assert_eq!(find_culprit(&[]), None);
}

#[test]
fn what_is_true_of_most_ranks_lies_in_what_they_share() {
    let mut ranks: Vec<RankSigns> = (0..4)
        .map(|number| rank(number, Doing::Storage, &[]))
        .collect();
    ranks[0].doing = Doing::Network;
    for rank in &mut ranks[1..] {
        rank.kernel = KernelState::Uninterruptible;
        rank.wchan = Some("cl_sync_io_wait".to_owned());
    }
    let verdict = find_culprit(&ranks).unwrap();
    assert_eq!(
        (verdict.class, verdict.culprit),
        (FaultClass::Storage, None)
    );
    assert_eq!(verdict.others, [Rank(1), Rank(2), Rank(3)]);
}

#[test]
fn a_rank_by_itself_is_not_to_blame_for_computing() {
    let mut alone = rank(0, Doing::Computing, &["train"]);
    alone.still = false;
    assert_eq!(find_culprit(&[alone.clone()]).unwrap().culprit, None);
    alone.kernel = KernelState::Stopped;
    assert!(find_culprit(&[alone]).unwrap().culprit.is_some());
}

#[test]
fn a_node_of_which_nothing_is_heard_is_to_blame_for_all_its_ranks() {
    let mut ranks: Vec<RankSigns> = (0..4)
        .map(|number| rank(number, Doing::Network, &[]))
        .collect();
    for cut_off in &mut ranks[2..] {
        cut_off.kernel = KernelState::Unheard;
        cut_off.doing = Doing::Unknown;
    }
    let verdict = find_culprit(&ranks).unwrap();
    assert_eq!(verdict.class, FaultClass::NodeLost);
    assert_eq!(verdict.confidence, Confidence::Fair);
    assert_eq!(verdict.culprit.unwrap().node.0, "n1");
    assert_eq!(verdict.others, [Rank(3)]);
    // Whoever hears nothing of most others had better look at its own network.
    for cut_off in &mut ranks[1..] {
        cut_off.kernel = KernelState::Unheard;
    }
    let verdict = find_culprit(&ranks).unwrap();
    assert_eq!(
        (verdict.class, verdict.culprit),
        (FaultClass::Network, None)
    );
}
