// SPDX-License-Identifier: Apache-2.0
//! What shall the job do? Stores, and the session that feeds the decision core from one.
//!
//! Owns [`Store`], the interface to a key-value store with revisions, watches and leases; [`embedded`], the store of a
//! job on one machine, whose contents outlive the process in a [`embedded::Medium`]; [`etcd`], the store of a job on many
//! machines; and the session ([`run_session`]), which turns
//! store changes and the agent's events into events of the decision core, and the core's effects into store calls and
//! orders for the agent.
//!
//! Tasks: a session is one future without any tasks of its own. An embedded store has one task, which ends leases; it goes
//! when the last handle of the store goes. An etcd store has one task for each watch, which goes when nobody watches, and
//! short ones while it connects.
//!
//! Invariants: an acknowledged write of the embedded store survives the death of the process at any instant; a watch
//! delivers every revision once, whole and in order, or says that it cannot. The session decides nothing: what it does
//! follows from the core's effects.
//!
//! Not here: anything that starts or signals processes.

pub mod embedded;
pub mod etcd;
pub mod retry;
mod session;
mod store;

pub use session::{
    Clock, Hint, HostEffect, Peer, Peers, SessionError, SessionPorts, SessionSettings, StatusView,
    run_session,
};
pub use store::{Store, StoreError, Watch, WatchError, WatchFeed, watch_channel};
