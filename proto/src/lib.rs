// SPDX-License-Identifier: Apache-2.0
//! The messages of Steadfast: what detectors find, how a running job is controlled, and how its agents talk.
//!
//! Owns the wire format and nothing else: no logic lives here. With the feature `grpc` it also holds
//! the generated clients and servers of the services `Control` and `Node`; without it, plain messages only, so that
//! the decision core can use them without pulling in an async runtime.

/// Version 1 of the messages.
pub mod v1 {
    #![allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        clippy::pedantic,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        reason = "generated code"
    )]
    include!(concat!(env!("OUT_DIR"), "/steadfast.v1.rs"));
}
