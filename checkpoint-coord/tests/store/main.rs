// SPDX-License-Identifier: Apache-2.0
//! What every store must do, on each store; and what etcd does to one that is in it, on each etcd that is there: the one on
//! the PATH, and the one that `scripts/setup.sh --test` puts below the target directory.

#[cfg(test)]
#[macro_use]
mod server;

#[cfg(test)]
mod access;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod session;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod watching;
