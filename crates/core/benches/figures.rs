//! What the state costs at full size, for those who change it: `cargo bench -p lockkeeper-core --bench figures`.
//! Prints; asserts nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use std::time::Instant;

use lockkeeper_core::*;

use support::{MeasuredLog, acquire, lock, token};

/// As many as a session may have, but for the one that the cycles need.
const WAITERS: u32 = 99_999;

const SESSION: SessionId = SessionId(1);

/// Runs something and says how long one of `count` took.
fn timed<T>(what: &str, count: u32, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    println!("{what}: {took:.2?} in all, {:.2?} each", took / count);
    result
}

fn main() {
    let mut log = MeasuredLog::new(u64::MAX);
    log.open();
    let own = lock("own");
    let cycles = |log: &mut MeasuredLog, count: u32| {
        for uuid in 0..count {
            let token = token(&log.act(SESSION, acquire(vec![own.clone()], LockMode::Exclusive, u128::from(uuid))));
            log.act(SESSION, LockOp::Release { locks: vec![own.clone()], token });
        }
    };
    timed("acquire and release, small state", 200_000, || cycles(&mut log, 200_000));

    timed("create 1,000,000 nodes", 1_000_000, || log.make_nodes(1_000_000));
    timed("acquire and release, large state", 200_000, || cycles(&mut log, 200_000));

    let queue = lock("queue");
    let waiters = timed("99,999 requests in one queue, one in ten exclusive", WAITERS, || {
        let mode = |i| if i % 10 == 0 { LockMode::Exclusive } else { LockMode::Shared };
        let ask = |i| log.act(SESSION, acquire(vec![queue.clone()], mode(i), i));
        (0..u128::from(WAITERS)).map(ask).collect::<Vec<_>>()
    });
    let paths: Vec<NodePath> = log.state.lock(&queue).into_iter().flat_map(|q| q.requests()).map(|r| r.path).collect();
    timed("standing of each", WAITERS, || paths.iter().for_each(|path| drop(log.state.standing(path))));
    timed("verify of each", WAITERS, || waiters.iter().filter(|w| log.state.verify(&queue, token(w))).count());

    let clone = timed("clone", 1, || log.state.clone());
    timed("acquire and release beside a clone", 10_000, || cycles(&mut log, 10_000));
    let mut bytes = Vec::new();
    timed("write a snapshot", 1, || clone.write_snapshot(&mut bytes)).unwrap_or_else(|e| panic!("{e}"));
    println!("snapshot: {} bytes for {} nodes", bytes.len(), clone.node_count());
    timed("checksum", 1, || clone.checksum());
    let restored = timed("read a snapshot", 1, || State::read_snapshot(&bytes[..])).unwrap_or_else(|e| panic!("{e}"));
    timed("validate", 1, || restored.validate()).unwrap_or_else(|e| panic!("{e}"));
    let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", memory.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    timed("end a session with 99,999 ephemerals", 1, || log.apply(Command::CloseSession { session: SESSION }));
}
