// SPDX-License-Identifier: Apache-2.0
//! The steps that a worker can be told to do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use serde_json::json;

use crate::identity::Identity;
use crate::{family, noise, signals};

/// Does one step.
pub(crate) fn perform(words: &[String], identity: &Identity) {
    let text = |index: usize| words.get(index).map_or("", String::as_str);
    let number = |index: usize| -> u64 {
        text(index)
            .parse()
            .unwrap_or_else(|_| panic!("a number was expected at {index} in {words:?}"))
    };
    match text(0) {
        // Ends.
        "exit" => std::process::exit(i32::try_from(number(1)).unwrap()),
        "raise" => kill_self(i32::try_from(number(1)).unwrap()),
        "hang" => pause_forever(),
        // Waits.
        "sleep" => pause(Duration::from_millis(number(1))),
        "wait-file" => wait_for_file(Path::new(text(1))),
        // Tells.
        "touch" => std::fs::write(text(1), "").unwrap(),
        "record" => identity.record(text(1), json!({})),
        "error-file" => write_error_file(text(1), text(2)),
        // Signals.
        "ignore-term" => signals::ignore(),
        "on-term" => {
            let after = if words.len() > 2 { number(2) } else { 0 };
            let code = i32::try_from(number(1)).unwrap();
            signals::exit_on_term(identity, code, Duration::from_millis(after));
        }
        "note-signals" => signals::note(identity),
        // Output.
        "out" => noise::out(&format!("{}\n", text(1))),
        "err" => noise::err(&format!("{}\n", text(1))),
        "partial" => noise::out(text(1)),
        "steps" => noise::steps(number(1), number(2), Duration::from_millis(number(3))),
        "lines" => noise::lines(identity, number(1), Duration::from_micros(number(2))),
        "long-line" => noise::long_line(number(1)),
        "binary" => noise::binary(number(1)),
        "flood" => noise::flood(number(1)),
        // Memory and children.
        "memory" => hold_memory(number(1)),
        "child" | "polite-child" | "session-child" | "daemon" => family::start(text(0), 1),
        "storm" => family::start("storm", number(1)),
        "chain" => family::start("chain", number(1)),
        // The other ranks.
        "meet" => meet(identity),
        other => panic!("`{other}` is no step"),
    }
}

#[expect(clippy::disallowed_methods, reason = "a worker of a test may sleep")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

pub(crate) fn pause_forever() -> ! {
    loop {
        pause(Duration::from_hours(1));
    }
}

fn kill_self(number: i32) {
    let signal = Signal::try_from(number).unwrap();
    // Rust's own handler for SIGSEGV and SIGBUS only lets go of the first one.
    for _ in 0..2 {
        raise(signal).unwrap();
    }
}

fn wait_for_file(path: &Path) {
    while !path.exists() {
        pause(Duration::from_millis(5));
    }
}

/// In the form of torch 2's `@record`, or, as `plain`, in the older one.
fn write_error_file(form: &str, message: &str) {
    let content = match form {
        "plain" => json!({ "message": message, "timestamp": 1_796_042_610 }),
        _ => json!({
            "message": {
                "message": message,
                "extraInfo": { "py_callstack": format!("Traceback (most recent call last):\n{message}"), "timestamp": "1796042610" },
            }
        }),
    };
    std::fs::write(
        std::env::var_os("TORCHELASTIC_ERROR_FILE").unwrap(),
        content.to_string(),
    )
    .unwrap();
}

/// Takes hold of this many MiB and touches every page; for the rest of the worker's life.
fn hold_memory(mebibytes: u64) {
    let size = usize::try_from(mebibytes).unwrap() * 1024 * 1024;
    let mut memory = vec![0_u8; size];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    std::mem::forget(std::hint::black_box(memory));
}

/// All ranks meet at `MASTER_ADDR:MASTER_PORT`, where rank 0 listens; each tells its rank.
fn meet(identity: &Identity) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let port: u16 = variable("MASTER_PORT").parse().unwrap();
    if identity.rank != 0 {
        let mut connection = loop {
            match TcpStream::connect((variable("MASTER_ADDR"), port)) {
                Ok(connection) => break connection,
                Err(_) => pause(Duration::from_millis(10)),
            }
        };
        connection
            .write_all(&[u8::try_from(identity.rank).unwrap()])
            .unwrap();
        // The answer: everybody is there.
        connection.read_exact(&mut [0]).unwrap();
        return;
    }
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    let mut peers = Vec::new();
    let mut ranks = Vec::new();
    while (peers.len() as u64) < identity.world_size - 1 {
        let (mut peer, _) = listener.accept().unwrap();
        let mut rank = [0];
        peer.read_exact(&mut rank).unwrap();
        ranks.push(rank[0]);
        peers.push(peer);
    }
    ranks.sort_unstable();
    identity.record("met", json!({ "ranks": ranks, "port": port }));
    for mut peer in peers {
        peer.write_all(&[0]).unwrap();
    }
}
