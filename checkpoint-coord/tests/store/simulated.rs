// SPDX-License-Identifier: Apache-2.0
//! The simulator's etcd does what a real one does: random sequences of operations, the same on both. Without it the
//! simulator would prove things about a store that does not exist.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_coord::etcd::EtcdStore;
use steadfast_coord::{Store, StoreError};
use steadfast_core::{
    Change, ChangeBatch, Condition, KeyValue, LeaseId, Operation, Revision, Transaction,
};
use steadfast_sim::Random;
use steadfast_sim::etcd::{Etcd as Simulated, Refusal, narrow};

use crate::server::{Etcd, Server};

on_each_etcd!(random_operations_end_alike);

/// Longer than any test; leases that run out are another matter.
const LEASE: Duration = Duration::from_mins(10);
const SEQUENCES: u64 = 12;
const OPERATIONS: usize = 120;

/// Both stores, and how what one says is to be read in the other's terms.
struct Pair {
    real: EtcdStore,
    client: etcd_client::Client,
    simulated: Simulated,
    random: Random,
    /// The real one's revision where the simulated one's was 1.
    base: i64,
    /// What keys begin with, so that sequences do not see each other.
    prefix: String,
    /// Leases of both, living and dead.
    leases: Vec<(LeaseId, LeaseId)>,
}

async fn random_operations_end_alike(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    for seed in 0..SEQUENCES {
        let real = server.store().await;
        let (_, revision) = real.range("").await.unwrap();
        let mut pair = Pair {
            client: server.client().await,
            real,
            simulated: Simulated::default(),
            random: Random::new(seed),
            base: revision.0 - 1,
            prefix: format!("/sequence-{seed}/"),
            leases: Vec::new(),
        };
        for _ in 0..OPERATIONS {
            pair.operate().await;
        }
        pair.compare_contents("").await;
        let oldest = pair.simulated.oldest().0.max(1);
        pair.compare_history(oldest + 1, "").await;
        pair.clean_up().await;
    }
}

impl Pair {
    async fn operate(&mut self) {
        match self.random.below(100) {
            0..=64 => self.transact().await,
            65..=72 => self.grant().await,
            73..=77 => self.keep_alive().await,
            78..=82 => self.revoke().await,
            83..=90 => {
                let folder = self.folder();
                self.compare_contents(&folder).await;
            }
            91..=96 => {
                let newest = self.simulated.revision().0;
                let from = 2 + self.random.below(newest.unsigned_abs());
                let folder = self.folder();
                self.compare_history(i64::try_from(from).unwrap(), &folder)
                    .await;
            }
            _ => self.compact().await,
        }
    }

    fn folder(&mut self) -> String {
        ["", "a/", "b/"][usize::try_from(self.random.below(3)).unwrap()].to_owned()
    }

    fn key(&mut self) -> String {
        let number = self.random.below(3);
        let folder = if self.random.chance(50) { "a" } else { "b" };
        format!("{}{folder}/{number}", self.prefix)
    }

    /// A revision in the simulated store's terms: of a key, some other, or none.
    fn guess_revision(&mut self, key: &str) -> i64 {
        let actual = self.simulated.get(key);
        match self.random.below(4) {
            0 => actual.map_or(0, |entry| entry.mod_revision.0),
            1 => actual.map_or(0, |entry| entry.create_revision.0),
            2 => 0,
            _ => i64::try_from(self.random.below(20)).unwrap(),
        }
    }

    fn to_real(&self, revision: i64) -> Revision {
        Revision(if revision == 0 {
            0
        } else {
            revision + self.base
        })
    }

    fn transaction(&mut self) -> (Transaction, Transaction) {
        let mut simulated = Transaction::default();
        let mut real = Transaction::default();
        for _ in 0..self.random.below(3) {
            let key = self.key();
            let guess = self.guess_revision(&key);
            let created = self.random.chance(40);
            let condition = |key: String, revision: Revision| {
                if created {
                    Condition::CreateRevision { key, revision }
                } else {
                    Condition::ModRevision { key, revision }
                }
            };
            real.when.push(condition(key.clone(), self.to_real(guess)));
            simulated.when.push(condition(key, Revision(guess)));
        }
        for _ in 0..=self.random.below(3) {
            let key = self.key();
            if self.random.chance(25) {
                let delete = Operation::Delete { key };
                real.then.push(delete.clone());
                simulated.then.push(delete);
                continue;
            }
            let value = self.random.draw().to_string();
            let lease = self.random.chance(50).then(|| self.lease()).flatten();
            let put = |lease| Operation::Put {
                key: key.clone(),
                value: value.as_str().into(),
                lease,
            };
            real.then.push(put(lease.map(|(real, _)| real)));
            simulated
                .then
                .push(put(lease.map(|(_, simulated)| simulated)));
        }
        (real, simulated)
    }

    fn lease(&mut self) -> Option<(LeaseId, LeaseId)> {
        let count = self.leases.len() as u64;
        let index = usize::try_from(self.random.below(count)).unwrap();
        self.leases.get(index).copied()
    }

    async fn transact(&mut self) {
        let (real, simulated) = self.transaction();
        let told = self.real.transact(real.clone()).await;
        let expected = self.simulated.transact(&simulated);
        match (told, expected) {
            (Ok(told), Ok((expected, _))) => {
                let told = (told.succeeded, told.revision.0 - self.base);
                assert_eq!(told, (expected.succeeded, expected.revision.0), "{real:?}");
            }
            (Err(told), Err(expected)) => assert!(
                matches!(
                    (&told, &expected),
                    (StoreError::LeaseNotFound(_), Refusal::LeaseNotFound(_))
                        | (StoreError::DuplicateKey(_), Refusal::DuplicateKey(_))
                ),
                "{told:?} instead of {expected:?}: {real:?}"
            ),
            (told, expected) => panic!("{told:?} instead of {expected:?}: {real:?}"),
        }
    }

    async fn grant(&mut self) {
        let real = self.real.lease_grant(LEASE).await.unwrap();
        let simulated = self.simulated.grant(0, 600_000_000);
        self.leases.push((real, simulated));
    }

    async fn keep_alive(&mut self) {
        let Some((real, simulated)) = self.lease() else {
            return;
        };
        let told = self.real.lease_keepalive(real).await;
        let expected = self.simulated.keep_alive(0, simulated);
        assert_eq!(told.is_ok(), expected.is_ok(), "{told:?}");
    }

    async fn revoke(&mut self) {
        let Some((real, simulated)) = self.lease() else {
            return;
        };
        let told = self.real.lease_revoke(real).await;
        let expected = self.simulated.revoke(simulated);
        assert_eq!(told.is_ok(), expected.is_ok(), "{told:?}");
    }

    async fn compact(&mut self) {
        let newest = self.simulated.revision().0;
        let oldest = self.simulated.oldest().0.max(1);
        if newest == oldest {
            return;
        }
        let span = (newest - oldest).unsigned_abs();
        let revision = oldest + 1 + i64::try_from(self.random.below(span)).unwrap();
        self.client
            .compact(revision + self.base, None)
            .await
            .unwrap();
        self.simulated.compact(Revision(revision));
    }

    /// An entry in the simulated store's terms.
    fn translated(&self, entry: &KeyValue) -> KeyValue {
        let leases: BTreeMap<_, _> = self.leases.iter().copied().collect();
        KeyValue {
            create_revision: Revision(entry.create_revision.0 - self.base),
            mod_revision: Revision(entry.mod_revision.0 - self.base),
            lease: entry.lease.map(|lease| leases[&lease]),
            ..entry.clone()
        }
    }

    async fn compare_contents(&self, folder: &str) {
        let prefix = format!("{}{folder}", self.prefix);
        let (entries, revision) = self.real.range(&prefix).await.unwrap();
        let told: Vec<_> = entries.iter().map(|entry| self.translated(entry)).collect();
        assert_eq!(told, self.simulated.range(&prefix));
        assert_eq!(revision.0 - self.base, self.simulated.revision().0);
    }

    /// What a watch that begins at `from` tells of keys below the folder.
    async fn compare_history(&self, from: i64, folder: &str) {
        if from == self.simulated.oldest().0 {
            // A real one shows a part of these changes: deletions are missing.
            return;
        }
        let prefix = format!("{}{folder}", self.prefix);
        let watch = self.real.watch(&prefix, self.to_real(from)).await;
        let expected = match self.simulated.changes_since(Revision(from)) {
            Ok(batches) => batches,
            Err(refusal) => {
                let Refusal::Compacted { oldest } = refusal else {
                    panic!("{refusal:?}");
                };
                let told = watch.map(|_| ()).unwrap_err();
                assert!(
                    matches!(&told, StoreError::Compacted { oldest: told, .. } if told.0 - self.base == oldest.0),
                    "{told:?} instead of {oldest}"
                );
                return;
            }
        };
        let mut watch = watch.unwrap();
        for batch in expected.iter().filter_map(|batch| narrow(batch, &prefix)) {
            let told = watch.next().await.unwrap();
            let told = ChangeBatch {
                revision: Revision(told.revision.0 - self.base),
                changes: told
                    .changes
                    .into_iter()
                    .map(|change| match change {
                        Change::Put(entry) => Change::Put(self.translated(&entry)),
                        gone @ Change::Delete { .. } => gone,
                    })
                    .collect(),
            };
            assert_eq!(told, batch);
        }
    }

    async fn clean_up(&self) {
        for (lease, _) in &self.leases {
            // Most of them are gone.
            drop(self.real.lease_revoke(*lease).await);
        }
    }
}
