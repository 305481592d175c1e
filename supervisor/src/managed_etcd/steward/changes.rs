// SPDX-License-Identifier: Apache-2.0
//! What a steward does about the members of a cluster that can be reached.

use std::time::Duration;

use steadfast_coord::StoreError;
use steadfast_coord::etcd::{EtcdCluster, EtcdMember, EtcdStore};
use tokio::time::{Instant, sleep};

use super::exclusive::exclusively;
use super::{Condition, Steward};

/// How long a new member may take to take part before the next change is let in.
const STARTS_WITHIN: Duration = Duration::from_secs(25);
/// How long etcd may not be well enough for a new member: it wants five quiet seconds.
const WELL_WITHIN: Duration = Duration::from_secs(15);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Rounds in a row without us before the place is given up: the answer of a member that lags behind is no proof.
const ROUNDS_WITHOUT_US: u32 = 3;

impl Steward {
    /// Does what is to be done next about the members.
    pub(super) async fn tend(&mut self, store: &EtcdStore, members: &[EtcdMember]) {
        let own_url = self.layout.own().peer_url();
        let own = members
            .iter()
            .find(|member| member.peer_urls.contains(&own_url));
        let place = self.state.place.as_ref().map(|place| place.number);
        self.memory.rounds_without_us = match (own, place) {
            (None, Some(_)) => self.memory.rounds_without_us + 1,
            _ => 0,
        };
        let data_lost =
            place.is_some_and(|place| *self.condition.borrow() == Condition::DataLost { place });
        match (own, place) {
            (Some(own), Some(_)) if data_lost => {
                let reason = "its data are lost";
                self.join(store, Some(own), reason).await;
            }
            (Some(_), Some(_)) => {}
            (None, Some(_)) if self.memory.rounds_without_us >= ROUNDS_WITHOUT_US => {
                self.give_up_place();
            }
            (None, Some(_)) => {}
            (Some(own), None) if self.may_still_begin(own) => {
                let initial_cluster = self.layout.initial_cluster();
                self.take_place(false, initial_cluster);
            }
            (Some(own), None) => {
                let reason = "an earlier supervisor on this node was a member";
                self.join(store, Some(own), reason).await;
            }
            (None, None) => self.fill_vacancy(store, members).await,
        }
    }

    /// A founder that is late: the others have begun without it, and wait.
    fn may_still_begin(&self, own: &EtcdMember) -> bool {
        let is_awaited = own.client_urls.is_empty() && !own.name.is_empty();
        let is_new_here = self.state.places == 0 && !self.files.had_predecessor;
        is_awaited && is_new_here && self.layout.is_founder()
    }

    fn give_up_place(&mut self) {
        self.memory.rounds_without_us = 0;
        self.state.place = None;
        self.events.news(
            "etcd.place.lost",
            "this node is no member of etcd any more: another one has taken its place".to_owned(),
        );
        self.publish();
    }

    /// Joins where too few are left, or where one has been gone for long, if this node is the next in line.
    async fn fill_vacancy(&mut self, store: &EtcdStore, members: &[EtcdMember]) {
        let rank = self.layout.candidates_before(members);
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let now = Instant::now();
        if members.len() < self.layout.servers {
            let since = *self.memory.short_since.get_or_insert(now);
            // Somebody who is being replaced is missing for a moment only.
            if now - since >= self.pace.turn.saturating_mul(rank.saturating_add(1)) {
                self.join(store, None, "too few were left").await;
            }
            return;
        }
        self.memory.short_since = None;
        self.note_silent(members).await;
        let patience = self.pace.replace_after + self.pace.turn.saturating_mul(rank);
        let gone = members.iter().find_map(|member| {
            let silent_for = self.memory.silent_since.get(&member.id)?.elapsed();
            (silent_for >= patience).then_some((member, silent_for))
        });
        if let Some((gone, silent_for)) = gone {
            let name = match self.layout.host_of(gone) {
                Some(host) => host.to_string(),
                None => gone.name.clone(),
            };
            let reason = format!("{name} has been gone for {} s", silent_for.as_secs());
            self.join(store, Some(gone), &reason).await;
        }
    }

    async fn note_silent(&mut self, members: &[EtcdMember]) {
        let known: Vec<_> = members
            .iter()
            .filter_map(|member| Some((member.id, self.layout.host_of(member)?.clone())))
            .collect();
        let hosts = known.iter().map(|(_, host)| host.clone()).collect();
        let answers = self.ask(hosts).await;
        let asked_at = Instant::now();
        let silent: Vec<u64> = known
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_err())
            .map(|((id, _), _)| *id)
            .collect();
        self.memory.silent_since.retain(|id, _| silent.contains(id));
        for id in silent {
            self.memory.silent_since.entry(id).or_insert(asked_at);
        }
    }

    /// Becomes a member, in the place of `instead` if that is still one.
    async fn join(&mut self, store: &EtcdStore, instead: Option<&EtcdMember>, reason: &str) {
        let own = self.layout.own().clone();
        let (servers, instead) = (self.layout.servers, instead.map(|member| member.id));
        let cluster = store.cluster();
        let joined = exclusively(store, &own.host, async || {
            // What was seen before may have been changed by another node meanwhile.
            let members = cluster.members().await?;
            let url = own.peer_url();
            let is_ours = |member: &&EtcdMember| member.peer_urls.contains(&url);
            let leaving = members
                .iter()
                .find(is_ours)
                .or_else(|| members.iter().find(|member| Some(member.id) == instead));
            if leaving.is_none() && members.len() >= servers {
                return Ok(None);
            }
            if let Some(leaving) = leaving {
                cluster.remove(leaving.id).await?;
            }
            let (id, members) = add(&cluster, &url).await?;
            let entries: Vec<_> = members
                .iter()
                .flat_map(|member| member.peer_urls.iter().map(move |url| (member, url)))
                .map(|(member, url)| {
                    let own_name = own.member_name();
                    let name = if member.id == id {
                        &own_name
                    } else {
                        &member.name
                    };
                    format!("{name}={url}")
                })
                .collect();
            self.take_place(true, entries.join(","));
            self.wait_until_it_takes_part(store, id).await;
            Ok(Some(()))
        });
        match joined.await {
            Ok(Some(Some(()))) => {
                self.memory.silent_since.clear();
                self.memory.short_since = None;
                self.memory.told = None;
                self.events.news(
                    "etcd.member.joined",
                    format!("this node has become a member of etcd: {reason}"),
                );
            }
            // Another node was faster, or is at it.
            Ok(_) => {}
            Err(error) => self.tell_once(not_joined(reason, &error)),
        }
    }

    async fn wait_until_it_takes_part(&self, store: &EtcdStore, id: u64) {
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            let members = store.cluster().members().await.unwrap_or_default();
            let takes_part =
                |member: &EtcdMember| member.id == id && !member.client_urls.is_empty();
            if members.iter().any(takes_part) {
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Adds a member, as soon as the cluster takes one: who was removed for it must not leave a gap for others to fill.
async fn add(cluster: &EtcdCluster, url: &str) -> Result<(u64, Vec<EtcdMember>), StoreError> {
    let deadline = Instant::now() + WELL_WITHIN;
    loop {
        match cluster.add(url).await {
            Err(StoreError::Refused(_)) if Instant::now() < deadline => sleep(LOOK_EVERY).await,
            other => return other,
        }
    }
}

fn not_joined(reason: &str, error: &StoreError) -> String {
    format!(
        "etcd lacks a member ({reason}), and this node could not become one: {error}. It tries again"
    )
}
