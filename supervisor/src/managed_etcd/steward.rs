// SPDX-License-Identifier: Apache-2.0
//! This node's place in the cluster: begun, joined, taken over from a node that is gone, given up when somebody else has it.
//!
//! Every node has a steward. It looks at the cluster again and again and does what is to be done next, so that it does not
//! matter where an earlier one stopped. Members are changed by one node at a time, who holds a key in etcd for it
//! ([`exclusive`]).

mod changes;
mod exclusive;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfast_coord::etcd::{
    EtcdEndpoint, EtcdMember, EtcdSettings, EtcdSilence, EtcdStatus, EtcdStore, ask_status,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Pace;
use super::events::Events;
use super::files::{Files, Place, State};
use super::founding::{Evidence, Founding, decide};
use super::layout::{EtcdHost, Layout};
use super::server::Condition;

/// How long an etcd may take to say how it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long founders that do not answer are waited for.
const FOUNDERS_ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The pause between two rounds while the cluster cannot be reached.
const UNREACHED: Duration = Duration::from_millis(250);
/// The longest pause between two looks at the cluster.
const LONGEST_ROUND: Duration = Duration::from_mins(1);
/// How often the members of a large job that come late look for the cluster where it began before they look further.
const TRIES_AT_FOUNDERS: usize = 4;
/// How many hosts are looked at in one go then.
const HOSTS_AT_ONCE: usize = 8;

/// The task.
#[derive(Debug)]
pub(super) struct Steward {
    pub(super) layout: Arc<Layout>,
    /// How to get in; the endpoints are not used.
    pub(super) access: EtcdSettings,
    /// Where the secret is from, for messages.
    pub(super) secret_origin: String,
    pub(super) files: Files,
    pub(super) state: State,
    pub(super) pace: Pace,
    pub(super) events: Events,
    pub(super) place: watch::Sender<Option<Place>>,
    pub(super) condition: watch::Receiver<Condition>,
    pub(super) store: watch::Sender<Option<EtcdStore>>,
    /// Why the cluster is not used at the moment.
    pub(super) trouble: watch::Sender<Option<String>>,
    pub(super) memory: Memory,
}

/// What is remembered from one round to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    began: Option<Instant>,
    tries: usize,
    /// Since when members do not answer.
    silent_since: BTreeMap<u64, Instant>,
    /// Since when there are too few members.
    short_since: Option<Instant>,
    /// Rounds in a row in which this node was no member although it has a place.
    rounds_without_us: u32,
    told_strangers: bool,
    told: Option<String>,
}

impl Steward {
    /// Runs until the agent ends.
    pub(super) async fn run(mut self) {
        self.memory.began = Some(Instant::now());
        loop {
            let pause = self.round().await;
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.condition.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Looks at the cluster and does what is next. Returns when to look again.
    async fn round(&mut self) -> Duration {
        self.note_data();
        let has_nothing = self.state.place.is_none() && self.state.places == 0;
        if has_nothing && self.layout.is_founder() && self.store().is_none() {
            self.found().await;
        }
        let Some(store) = self.connect().await else {
            return UNREACHED;
        };
        let members = match store.cluster().members().await {
            Ok(members) => members,
            Err(error) => {
                self.trouble.send_replace(Some(error.to_string()));
                return UNREACHED;
            }
        };
        self.trouble.send_replace(None);
        self.follow(&store, &members);
        self.tend(&store, &members).await;
        self.pause(&members)
    }

    fn store(&self) -> Option<EtcdStore> {
        self.store.borrow().clone()
    }

    /// Remembers that the place has had data: from then on it is lost with them.
    fn note_data(&mut self) {
        let condition = self.condition.borrow_and_update().clone();
        let Condition::Running {
            place: number,
            has_data: true,
        } = condition
        else {
            return;
        };
        if let Some(place) = &mut self.state.place
            && place.number == number
            && !place.has_had_data
        {
            place.has_had_data = true;
            self.publish();
        }
    }

    /// Begins the cluster, if that is what this node has to do.
    async fn found(&mut self) {
        let others: Vec<_> = self
            .layout
            .founders()
            .iter()
            .filter(|host| *host != self.layout.own())
            .cloned()
            .collect();
        let answers = self.ask(others.clone()).await;
        self.tell_of_strangers(&others, &answers);
        let waited = self.memory.began.map(|began| began.elapsed());
        let founding = decide(&Evidence {
            answers: &answers,
            own_peer_url: &self.layout.own().peer_url(),
            had_predecessor: self.files.had_predecessor,
            is_patience_over: waited.is_some_and(|waited| waited >= FOUNDERS_ANSWER_WITHIN),
        });
        if founding == Founding::Begin {
            let initial_cluster = self.layout.initial_cluster();
            self.take_place(false, initial_cluster);
        }
    }

    /// Asks these hosts how their etcd is, all at once; the answers are in the same order.
    async fn ask(&self, hosts: Vec<EtcdHost>) -> Vec<Result<EtcdStatus, EtcdSilence>> {
        let mut asking = JoinSet::new();
        let count = hosts.len();
        for (index, host) in hosts.into_iter().enumerate() {
            let access = self.access.clone();
            asking.spawn(async move {
                (
                    index,
                    ask_status(&access, &host.endpoint(), ANSWER_WITHIN).await,
                )
            });
        }
        let mut answers = vec![Err(EtcdSilence::NoAnswer("asking broke off".to_owned())); count];
        while let Some(answer) = asking.join_next().await {
            if let Ok((index, answer)) = answer {
                answers[index] = answer;
            }
        }
        answers
    }

    /// Nodes that do not share a secret never find together: that must be said.
    fn tell_of_strangers(
        &mut self,
        hosts: &[EtcdHost],
        answers: &[Result<EtcdStatus, EtcdSilence>],
    ) {
        let stranger = hosts
            .iter()
            .zip(answers)
            .find_map(|(host, answer)| match answer {
                Err(EtcdSilence::NotOurs(reason)) => Some((host, reason)),
                _ => None,
            });
        let Some((host, reason)) = stranger else {
            return;
        };
        if std::mem::replace(&mut self.memory.told_strangers, true) {
            return;
        }
        self.events.news("etcd.secret.differs", format!(
            "what listens on {} does not belong to this run of the job ({reason}). Most often the nodes do not share a \
             secret: this one has its from {}. Where nodes share no home directory, put the same secret on each and name \
             it in {}",
            host.endpoint(),
            self.secret_origin,
            super::secret::TOKEN_FILE_VARIABLE,
        ));
    }

    /// A store in the cluster.
    async fn connect(&mut self) -> Option<EtcdStore> {
        if let Some(store) = self.store() {
            return Some(store);
        }
        let settings = EtcdSettings {
            endpoints: self.where_to_look(),
            ..self.access.clone()
        };
        self.memory.tries += 1;
        match EtcdStore::connect(settings).await {
            Ok(store) => {
                self.store.send_replace(Some(store.clone()));
                Some(store)
            }
            Err(error) => {
                self.trouble.send_replace(Some(error.to_string()));
                None
            }
        }
    }

    /// Where the members were last, then where they began, and in the end, a few hosts at a time, everywhere.
    fn where_to_look(&self) -> Vec<EtcdEndpoint> {
        let endpoints = |hosts: &[EtcdHost]| hosts.iter().map(EtcdHost::endpoint).collect();
        let known = self.state.endpoints();
        if self.memory.tries == 0 && !known.is_empty() {
            return known;
        }
        let beyond = &self.layout.hosts[self.layout.servers..];
        let chunks = beyond.len().div_ceil(HOSTS_AT_ONCE);
        match self.memory.tries.checked_sub(TRIES_AT_FOUNDERS) {
            Some(further) if chunks > 0 && further % (chunks + 1) < chunks => {
                let from = further % (chunks + 1) * HOSTS_AT_ONCE;
                endpoints(&beyond[from..beyond.len().min(from + HOSTS_AT_ONCE)])
            }
            _ => endpoints(self.layout.founders()),
        }
    }

    /// Lets the store use the members that there are now.
    fn follow(&mut self, store: &EtcdStore, members: &[EtcdMember]) {
        let mut endpoints: Vec<_> = members
            .iter()
            .filter(|member| !member.client_urls.is_empty())
            .filter_map(|member| Some(self.layout.host_of(member)?.endpoint()))
            .collect();
        endpoints.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
        let known = self.state.endpoints();
        if endpoints.is_empty() || endpoints == known {
            return;
        }
        self.state.endpoints = endpoints
            .iter()
            .map(|endpoint| (endpoint.host.clone(), endpoint.port))
            .collect();
        self.publish();
        store.use_endpoints(endpoints);
    }

    /// Notes and announces this node's place.
    fn publish(&mut self) {
        if let Err(error) = self.files.write_state(&self.state) {
            self.tell_once(format!("the state of etcd cannot be written: {error}"));
        }
        self.place.send_if_modified(|place| {
            let changed = *place != self.state.place;
            place.clone_from(&self.state.place);
            changed
        });
    }

    /// A new place, with new data.
    fn take_place(&mut self, cluster_exists: bool, initial_cluster: String) {
        self.state.places += 1;
        self.state.place = Some(Place {
            number: self.state.places,
            cluster_exists,
            initial_cluster,
            has_had_data: false,
        });
        // Never used again, and of no use: another keeper or place has other data.
        if let Err(error) = self.files.remove_other_data(self.state.place.as_ref()) {
            self.tell_once(format!("old data of etcd cannot be removed: {error}"));
        }
        self.publish();
    }

    /// Says something that stays true for many rounds, and what is different next.
    fn tell_once(&mut self, text: String) {
        if self.memory.told.as_ref() != Some(&text) {
            self.memory.told = Some(text.clone());
            self.events.news("etcd.members.trouble", text);
        }
    }

    /// Nodes that are far from being needed look less often: a large job has thousands of them.
    fn pause(&self, members: &[EtcdMember]) -> Duration {
        let rank = if self.state.place.is_some() {
            0
        } else {
            self.layout.candidates_before(members)
        };
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        self.pace
            .round
            .saturating_mul(rank.saturating_add(1))
            .min(LONGEST_ROUND)
    }
}
