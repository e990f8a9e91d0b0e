//! How long other commands wait for a request that names many locks: `cargo bench -p lockkeeper-core --bench together`.
//! Each acquire makes the directories of its locks anew, which is the most that it can cost. Prints; asserts nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use std::time::{Duration, Instant};

use lockkeeper_core::*;

use support::{MeasuredLog, acquire, lock, token};

/// Locks in the state beside those that are measured.
const OTHERS: u32 = 50_000;
const ROUNDS: u32 = 200;

const SESSION: SessionId = SessionId(1);

fn timed(log: &mut MeasuredLog, op: impl Into<Op>) -> (Outcome, Duration) {
    let began = Instant::now();
    let outcome = log.act(SESSION, op);
    (outcome, began.elapsed())
}

fn names(prefix: &str, count: u32) -> Vec<LockName> {
    (0..count).map(|n| lock(&format!("{prefix}/{n:06}"))).collect()
}

/// The middle one and the longest.
fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    println!("{what}: {:.2?}, at most {:.2?}", took[took.len() / 2], took[took.len() - 1]);
}

fn main() {
    let mut log = MeasuredLog::new(Rules::default().max_state_bytes);
    log.open();
    for (number, name) in (0..).zip(names("others", OTHERS)) {
        log.act(SESSION, acquire(vec![name], LockMode::Exclusive, number));
    }
    for count in [1, 32, 256] {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let locks = names(&format!("together/{count}/{round}"), count);
            let uuid = u128::MAX - u128::from(round);
            let (held, took) = timed(&mut log, acquire(locks.clone(), LockMode::Exclusive, uuid));
            acquires.push(took);
            releases.push(timed(&mut log, LockOp::Release { locks, token: token(&held) }).1);
        }
        show(&format!("acquire {count} locks together"), acquires);
        show(&format!("release {count} locks together"), releases);
    }
}
