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
        wants_lock: false,
        unheard_by: None,
        reported: None,
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

#[test]
fn a_rank_that_cannot_get_the_interpreters_lock_is_to_blame_wherever_it_seems_to_be() {
    let mut locked = rank(2, Doing::Collective, &IN_REDUCE);
    locked.wants_lock = true;
    let verdict = against(locked.clone());
    blames_rank_2(&verdict, FaultClass::Hang, Confidence::Fair);
    assert!(verdict.signs[0].contains("lock"), "{verdict:?}");
    // It gets the lock now and then.
    locked.still = false;
    assert_eq!(against(locked).culprit, None);
}

#[test]
fn where_all_have_entered_lost_packets_make_it_the_networks_fault() {
    let mut ranks: Vec<RankSigns> = (0..4)
        .map(|number| rank(number, Doing::Collective, &IN_REDUCE))
        .collect();
    assert_eq!(find_culprit(&ranks).unwrap().class, FaultClass::Hang);
    ranks[1].unheard_by = Some("10.0.0.2:4000".to_owned());
    let verdict = find_culprit(&ranks).unwrap();
    assert_eq!(
        (verdict.class, verdict.culprit.clone(), verdict.confidence),
        (FaultClass::Network, None, Confidence::Fair)
    );
    assert!(verdict.summary.contains("10.0.0.2"), "{verdict:?}");
    // That nobody acknowledges is no wonder when somebody is stopped.
    ranks[2].kernel = KernelState::Stopped;
    blames_rank_2(
        &find_culprit(&ranks).unwrap(),
        FaultClass::Hang,
        Confidence::Strong,
    );
}

#[test]
fn what_the_communication_library_says_is_a_sign_of_its_own() {
    let mut reported = rank(2, Doing::Collective, &IN_REDUCE);
    reported.reported = Some("does not answer".to_owned());
    blames_rank_2(
        &against(reported.clone()),
        FaultClass::Hang,
        Confidence::Fair,
    );
    reported.kernel = KernelState::Stopped;
    let verdict = against(reported);
    assert!(
        verdict
            .signs
            .iter()
            .any(|sign| sign.contains("does not answer")),
        "{verdict:?}"
    );
}

mod numbering {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const STACKS: [&[&str]; 4] = [&[], &IN_REDUCE, &["get", "__next__"], &["spin", "train"]];

    fn any_rank() -> impl Strategy<Value = RankSigns> {
        let kernels = vec![
            KernelState::Running,
            KernelState::Sleeping,
            KernelState::Sleeping,
            KernelState::Uninterruptible,
            KernelState::Stopped,
            KernelState::Unheard,
        ];
        let doings = vec![
            Doing::Collective,
            Doing::Collective,
            Doing::Network,
            Doing::Data,
            Doing::Storage,
            Doing::Pause,
            Doing::Computing,
            Doing::Waiting,
            Doing::Unknown,
        ];
        (
            select(kernels),
            select(doings),
            select(STACKS.to_vec()),
            any::<[bool; 3]>(),
            6..8_u64,
        )
            .prop_map(
                |(kernel, doing, stack, [still, locked, sends], step)| RankSigns {
                    kernel,
                    still,
                    wants_lock: locked,
                    unheard_by: sends.then(|| "10.0.0.9:1".to_owned()),
                    step: Some(step),
                    ..rank(0, doing, stack)
                },
            )
    }

    proptest! {
        /// Whoever numbers the ranks and in whatever order they are told of, the same are blamed for the same.
        #[test]
        fn the_verdict_does_not_depend_on_it(
            crowd in proptest::collection::vec(any_rank(), 1..9),
            order in any::<u64>(),
        ) {
            let number = |numbers: &[u32]| {
                let ranks = crowd.iter().zip(numbers).map(|(signs, &number)| RankSigns {
                    rank: Rank(number),
                    ..signs.clone()
                });
                ranks.collect::<Vec<_>>()
            };
            let plain: Vec<u32> = (0..).take(crowd.len()).collect();
            let mut numbers = plain.clone();
            // A permutation for each number that is drawn.
            let mut left = order;
            for index in (1..numbers.len()).rev() {
                let with = usize::try_from(left % (index as u64 + 1)).unwrap();
                left /= index as u64 + 1;
                numbers.swap(index, with);
            }
            let straight = find_culprit(&number(&plain)).unwrap();
            let mut shuffled = number(&numbers);
            shuffled.reverse();
            let other = find_culprit(&shuffled).unwrap();
            // The ranks that are blamed, as places in the crowd.
            let blamed = |verdict: &StallVerdict, numbers: &[u32]| {
                let named = verdict.culprit.iter().map(|culprit| culprit.rank);
                let named = named.chain(verdict.others.iter().copied());
                let mut places: Vec<usize> = named
                    .map(|rank| numbers.iter().position(|&number| number == rank.0).unwrap())
                    .collect();
                places.sort_unstable();
                places
            };
            prop_assert_eq!(blamed(&straight, &plain), blamed(&other, &numbers));
            prop_assert_eq!(straight.class, other.class);
            prop_assert_eq!(straight.culprit.is_some(), other.culprit.is_some());
            prop_assert_eq!(straight.kind, other.kind);
        }
    }
}
