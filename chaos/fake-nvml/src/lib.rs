// SPDX-License-Identifier: Apache-2.0
//! A stand-in for NVIDIA's management library (`libnvidia-ml.so.1`): any number of GPUs, and faults on demand.
//!
//! It answers the calls that a supervisor makes, with the C interface of the real one, from a JSON file that
//! `STEADFAST_FAKE_NVML` names (`state::State` says what can stand there). The file is looked at in every call, so a
//! change acts at once, on all processes that have loaded the library; write it beside and rename it into place.
//!
//! Invariants:
//! - FN-1: structures have the sizes and offsets of NVIDIA's header; a test holds them to it.
//! - FN-2: an event set delivers the events of the GPUs, and of the kinds, that were registered with it, each once, and none
//!   from before that.
//! - FN-3: what the state does not say is healthy.

mod abi;
mod device_calls;
mod event_calls;
mod events;
mod fields;
mod link_calls;
mod profile;
mod state;
mod system_calls;
