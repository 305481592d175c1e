// SPDX-License-Identifier: Apache-2.0
//! Stand-in until the real one is here.
use steadfast_core::*;
use tokio::sync::{mpsc, watch};
use crate::clock;

#[derive(Debug, Clone, Default)]
pub(super) struct StatusView { pub state: String, pub reason: String, pub generation: u64, pub restarts_used: u32, pub best_step: Option<u64>, pub last_fault: Option<steadfast_proto::v1::Finding>, pub world_size: u32 }

pub(super) async fn run(settings: MemberSettings, mut events: mpsc::Receiver<MemberEvent>, effects: mpsc::Sender<MemberEffect>, view: watch::Sender<StatusView>) {
    let mut store = StoreState::default();
    let keys = settings.keys.clone();
    let v = View::load(keys.clone(), &[], store.revision());
    let mut member = Member::new(settings.clone(), v);
    let leader_record = LeaderRecord { version: 1, node: settings.node.clone(), incarnation: settings.incarnation, extra: Default::default() };
    let (_, _) = store.apply(&Transaction { when: vec![], then: vec![Operation::Put { key: keys.leader(), value: serde_json::to_string(&leader_record).unwrap_or_default(), lease: None }] });
    let entries: Vec<_> = store.range(keys.prefix()).cloned().collect();
    let epoch = store.get(&keys.leader()).map(|e| e.create_revision).unwrap_or_default();
    let mut leader = Leader::new(LeaderSettings::default(), epoch, View::load(keys.clone(), &entries, store.revision()));
    let mut queue_m: std::collections::VecDeque<MemberEvent> = [MemberEvent::Relisted { entries: entries.clone(), revision: store.revision() }].into();
    let mut queue_l: std::collections::VecDeque<LeaderEvent> = [LeaderEvent::Tick].into();
    loop {
        while !queue_m.is_empty() || !queue_l.is_empty() {
            let now = Instant::from_nanos(clock::monotonic_ns());
            if let Some(event) = queue_m.pop_front() {
                for effect in member.handle(now, event) {
                    if let MemberEffect::Write(tx) = effect {
                        let (outcome, batch) = store.apply(&tx);
                        if let Some(batch) = batch { queue_m.push_back(MemberEvent::Changed(batch.clone())); queue_l.push_back(LeaderEvent::Changed(batch)); }
                        queue_m.push_back(MemberEvent::WriteDone(outcome));
                    } else { let _ = effects.send(effect).await; }
                }
            }
            if let Some(event) = queue_l.pop_front() {
                for effect in leader.handle(now, event) {
                    match effect {
                        LeaderEffect::Write(tx) => {
                            let (outcome, batch) = store.apply(&tx);
                            if let Some(batch) = batch { queue_m.push_back(MemberEvent::Changed(batch.clone())); queue_l.push_back(LeaderEvent::Changed(batch)); }
                            queue_l.push_back(LeaderEvent::WriteDone(outcome));
                        }
                        LeaderEffect::Say(text) => { let _ = effects.send(MemberEffect::Say(text)).await; }
                    }
                }
            }
        }
        let plan = leader.view().plan().map(|p| p.value.clone());
        let ledger = leader.view().ledger().map(|l| l.value.clone()).unwrap_or_default();
        view.send_replace(StatusView { state: format!("{:?}", leader.state()).to_lowercase(), reason: format!("{}; {}", leader.reason(), member.reason()), generation: plan.as_ref().map_or(0, |p| p.generation.0), restarts_used: ledger.restarts_used, best_step: member.best_step(), last_fault: ledger.last_fault, world_size: plan.map_or(0, |p| p.world_size) });
        let deadline = [member.next_deadline(), leader.next_deadline()].into_iter().flatten().min();
        let wait = deadline.map_or(std::time::Duration::from_secs(3600), |d| d.saturating_since(Instant::from_nanos(clock::monotonic_ns())));
        tokio::select! {
            event = events.recv() => match event { Some(event) => queue_m.push_back(event), None => return },
            () = tokio::time::sleep(wait) => { queue_m.push_back(MemberEvent::Tick); queue_l.push_back(LeaderEvent::Tick); }
        }
    }
}
