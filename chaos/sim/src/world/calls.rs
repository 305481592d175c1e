// SPDX-License-Identifier: Apache-2.0
//! Calls to the store, on their way there and back.

use steadfast_core::{Incarnation, LeaseId, Revision, View};

use super::{Checked, MS, World};
use crate::checker::Author;
use crate::etcd::Refusal;
use crate::event::{Address, Answer, Call, Event, Listing, Request};

/// How long a caller waits for an answer, in milliseconds.
const CALL_TIMEOUT_MS: u64 = 5_000;
/// The same for requests about leases: a third of the shortest lease, as the product has it.
const LEASE_TIMEOUT_DIVISOR: u64 = 3;

impl World {
    /// Sends a request; its number tells the answer to the one that waits for it.
    pub(super) fn send(&mut self, from: Address, request: Request) -> u64 {
        let number = self.number();
        match &request {
            Request::Renew(..) | Request::Grant { .. } => self.traffic.lease_calls += 1,
            Request::Open
            | Request::TakeOffice
            | Request::Relist
            | Request::LeaderRelist
            | Request::OwnRecord => self.traffic.reads += 1,
            _ => self.traffic.writes += 1,
        }
        let is_renewal = matches!(request, Request::Renew(..));
        let call = Box::new(Call {
            from,
            number,
            sent: self.now,
            request,
        });
        if !self.nodes[from.node].sends_to_store(self.now) {
            self.give_up(call);
        } else if is_renewal {
            // There are many of them, and nothing depends on when exactly they arrive.
            self.renew_at_once(call);
        } else {
            let way = self.way();
            self.after(way, Event::Arrives(call));
        }
        number
    }

    pub(super) fn arrives(&mut self, call: Box<Call>) -> Checked {
        let down = self.now < self.outage.down_until;
        let lost = self.loses();
        if down || lost {
            let done = self.random.below(if down { 1 } else { 3 });
            if done == 1 {
                self.perform(&call)?;
            } else if done == 2 {
                let late = self.random.between(1, 2 * CALL_TIMEOUT_MS) * MS;
                self.after(late, Event::LateWrite(call.clone()));
            }
            self.give_up(call);
            return Ok(());
        }
        let answer = self.perform(&call)?;
        if self.nodes[call.from.node].hears_store(self.now) {
            let way = self.way();
            self.answer(call, answer, way);
        } else {
            self.give_up(call);
        }
        Ok(())
    }

    pub(super) fn arrives_late(&mut self, call: &Call) -> Checked {
        if self.now >= self.outage.down_until {
            self.perform(call)?;
        }
        Ok(())
    }

    /// A renewal takes effect as if it had arrived already; only its answer takes its time.
    fn renew_at_once(&mut self, call: Box<Call>) {
        let (there, back) = (self.way(), self.way());
        let down = self.now < self.outage.down_until;
        let lost = self.loses();
        let Request::Renew(first, second) = call.request else {
            return;
        };
        let done = !down && (!lost || self.random.chance(50));
        let heard = !lost && self.nodes[call.from.node].hears_store(self.now);
        if done && heard {
            let first = self.renew(call.from, first, there);
            let second = second.and_then(|lease| self.renew(call.from, lease, there));
            self.answer(call, Some(Answer::Renewed(first, second)), there + back);
        } else {
            if done {
                // The answer is lost, not the request.
                for lease in std::iter::once(first).chain(second) {
                    self.etcd.keep_alive(self.now + there, lease).ok();
                }
            }
            self.give_up(call);
        }
    }

    /// Renews a lease; if it has ended, gives the one that takes its place.
    fn renew(&mut self, from: Address, lease: LeaseId, way: u64) -> Option<LeaseId> {
        if self.etcd.keep_alive(self.now + way, lease).is_ok() {
            return None;
        }
        let ttl = self.lease_ttl(from, lease);
        Some(self.grant(ttl))
    }

    /// Whether this answer gets lost.
    fn loses(&mut self) -> bool {
        let percent = self.schedule.pace.lost_percent;
        percent > 0 && !self.healed && !self.schedule.is_alone() && self.random.chance(percent)
    }

    fn answer(&mut self, call: Box<Call>, answer: Option<Answer>, delay: u64) {
        let at = self.now + delay;
        let latest = call.sent + self.timeout(&call);
        if at > latest {
            self.give_up(call);
        } else {
            self.at(at, Event::Answered(call, answer));
        }
    }

    /// Nobody will hear of it: its sender gives up.
    fn give_up(&mut self, call: Box<Call>) {
        let at = call.sent + self.timeout(&call);
        self.at(at, Event::Answered(call, None));
    }

    fn timeout(&self, call: &Call) -> u64 {
        match call.request {
            Request::Renew(..) | Request::Grant { .. } => {
                self.schedule.pace.witness_lease_ms * MS / LEASE_TIMEOUT_DIVISOR
            }
            _ => CALL_TIMEOUT_MS * MS,
        }
    }

    /// One way to or from the store.
    fn way(&mut self) -> u64 {
        let most = if self.now < self.outage.slow_until {
            self.outage.slow_way_ms
        } else {
            self.schedule.pace.store_ms
        };
        self.delay(most)
    }

    pub(super) fn grant(&mut self, ttl: u64) -> LeaseId {
        let lease = self.etcd.grant(self.now, ttl);
        self.watch_lease(lease);
        lease
    }

    /// Does at the store what the call asks for. `None`: refused, and the sender learns no more than of a lost answer.
    fn perform(&mut self, call: &Call) -> Result<Option<Answer>, crate::checker::Violation> {
        Ok(match &call.request {
            Request::Open => self.open(call.from).map(Answer::Listing),
            Request::MemberWrite(transaction) => self
                .transact(transaction, &Author::Member)?
                .map(Answer::Outcome),
            Request::LeaderWrite(transaction, epoch) => {
                let author = Author::Leader {
                    node: call.from.node,
                    epoch: epoch.0,
                    decided: call.sent,
                };
                self.transact(transaction, &author)?.map(Answer::Outcome)
            }
            Request::Elect(transaction)
            | Request::Retire(transaction)
            | Request::MoveLeader(transaction) => self
                .transact(transaction, &Author::Member)?
                .map(Answer::Outcome),
            Request::TakeOffice | Request::LeaderRelist => {
                let prefix = self.keys.prefix().to_owned();
                let (entries, revision) = self.read(&prefix);
                Some(Answer::Listing(Listing {
                    entries,
                    revision,
                    lease: None,
                }))
            }
            Request::Relist => Some(Answer::Listing(self.read_own(call.from.node))),
            Request::OwnRecord => {
                let key = self.keys.member(&self.nodes[call.from.node].name);
                let (mut entries, revision) = self.read(&key);
                entries.retain(|entry| entry.key == key);
                Some(Answer::Record(entries.pop(), revision))
            }
            Request::Renew(..) => None,
            Request::Grant { ttl } => Some(Answer::Granted(self.grant(*ttl))),
        })
    }

    /// Where an agent begins: what it must know, and a lease, the one of its predecessor if that holds.
    fn open(&mut self, from: Address) -> Option<Listing> {
        let mut listing = self.read_own(from.node);
        let node = &self.nodes[from.node];
        if self.schedule.is_alone() {
            return Some(listing);
        }
        let view = View::load(self.keys.clone(), &listing.entries, listing.revision);
        let own = view
            .member(&node.name)
            .filter(|record| record.value.incarnation == Incarnation(node.incarnation));
        let kept = own
            .and_then(|record| record.lease)
            .filter(|lease| self.etcd.keep_alive(self.now, *lease).is_ok());
        let ttl = self.schedule.pace.lease_ms * MS;
        listing.lease = Some(match kept {
            Some(lease) => lease,
            None => self.grant(ttl),
        });
        Some(listing)
    }

    /// The keys that everybody watches, the node's own record, and its findings.
    fn read_own(&mut self, index: usize) -> Listing {
        if self.schedule.is_alone() {
            let prefix = self.keys.prefix().to_owned();
            let (entries, revision) = self.read(&prefix);
            return Listing {
                entries,
                revision,
                lease: None,
            };
        }
        let name = self.nodes[index].name.clone();
        let common = self.common.clone();
        let (mut entries, revision) = self.read(&common);
        let own = self.keys.member(&name);
        let record = self.etcd.get(&own).cloned();
        let load =
            |entries: &[steadfast_core::KeyValue]| View::load(self.keys.clone(), entries, revision);
        let of_record = record.as_ref().and_then(|record| {
            Some(
                load(std::slice::from_ref(record))
                    .member(&name)?
                    .value
                    .generation,
            )
        });
        let planned = load(&entries).plan().map(|plan| plan.value.generation);
        let mut generations: Vec<_> = of_record.into_iter().chain(planned).collect();
        generations.dedup();
        for generation in generations {
            let findings = self.etcd.get(&self.keys.findings(generation, &name));
            entries.extend(findings.cloned());
        }
        entries.extend(record);
        Listing {
            entries,
            revision,
            lease: None,
        }
    }

    /// Reads from a member of the store's cluster, which may be behind.
    fn read(&mut self, prefix: &str) -> (Vec<steadfast_core::KeyValue>, Revision) {
        let newest = self.etcd.revision();
        if self.now < self.outage.stale_until {
            let behind = self
                .random
                .below(self.outage.stale_behind.unsigned_abs() + 1);
            let behind = i64::try_from(behind).unwrap_or(0);
            let revision = Revision((newest.0 - behind).max(self.etcd.oldest().0).max(1));
            return (self.etcd.range_at(prefix, revision), revision);
        }
        (self.etcd.range(prefix), newest)
    }

    /// The time of the lease that takes the place of one that has ended.
    fn lease_ttl(&self, from: Address, ended: LeaseId) -> u64 {
        let session = self.session(from);
        let lease = session.and_then(|session| session.lease.as_ref());
        let all = lease.map(steadfast_core::Lease::all).unwrap_or_default();
        let ttl = all.iter().find(|(lease, _)| *lease == ended);
        ttl.map_or(self.schedule.pace.lease_ms * MS, |(_, ttl)| {
            u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
        })
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.note(|| format!("store: refused: {refusal:?}"));
    }
}
