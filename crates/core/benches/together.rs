//! How long other commands wait for a request that names many locks: `cargo bench -p lockkeeper-core --bench together`.
//! Each acquire makes the directories of its locks anew, which is the most that it can cost. Prints; asserts nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

mod support;

use std::time::{Duration, Instant};

use lockkeeper_core::*;

use support::MeasuredLog;

/// Locks in the state beside those that are measured.
const OTHERS: u32 = 50_000;
const ROUNDS: u32 = 200;

struct Timed(MeasuredLog);

impl Timed {
    fn act(&mut self, op: LockOp) -> (Outcome, Duration) {
        let began = Instant::now();
        let outcome = self.0.apply(Command::Do { actor: Actor::of(SessionId(1)), op: op.into() });
        (outcome, began.elapsed())
    }

    fn acquire(&mut self, locks: &[LockName], uuid: u128) -> (FencingToken, Duration) {
        let (locks, mode, uuid) = (locks.to_vec(), LockMode::Exclusive, RequestId(uuid));
        let (outcome, took) = self.act(LockOp::Acquire { locks, mode, delay_ms: 0, uuid, label: "worker".into() });
        match outcome.reply {
            Ok(Reply::Queued { token, held: true, .. }) => (token, took),
            other => panic!("{other:?}"),
        }
    }
}

fn names(prefix: &str, count: u32) -> Vec<LockName> {
    (0..count).map(|n| LockName::parse(&format!("{prefix}/{n:06}")).unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// The middle one and the longest.
fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    println!("{what}: {:.2?}, at most {:.2?}", took[took.len() / 2], took[took.len() - 1]);
}

fn main() {
    let mut timed = Timed(MeasuredLog::new(Rules { max_ephemerals_per_session: 100_000, ..Rules::default() }));
    timed.0.open();
    for (number, lock) in names("others", OTHERS).into_iter().enumerate() {
        timed.acquire(&[lock], number as u128);
    }
    for count in [1, 32, 256] {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let locks = names(&format!("together/{count}/{round}"), count);
            let (token, took) = timed.acquire(&locks, u128::MAX - u128::from(round));
            acquires.push(took);
            releases.push(timed.act(LockOp::Release { locks, token }).1);
        }
        show(&format!("acquire {count} locks together"), acquires);
        show(&format!("release {count} locks together"), releases);
    }
}
