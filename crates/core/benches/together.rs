//! How long other commands wait for a request that names many locks: `cargo bench -p lockkeeper-core --bench together`.
//! Each acquire makes the directories of its locks anew, which is the most that it can cost. Prints; asserts nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

use std::time::{Duration, Instant};

use lockkeeper_core::*;

/// Locks in the state beside those that are measured.
const OTHERS: u32 = 50_000;
const ROUNDS: u32 = 200;

struct Bench {
    state: State,
    sequence: u64,
}

impl Bench {
    fn apply(&mut self, command: Command) -> (Outcome, Duration) {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let rules = Rules { max_ephemerals_per_session: 100_000, ..Rules::default() };
        let batch = Batch { rules, ..Batch::consecutive(origin, self.sequence, vec![command]) };
        let began = Instant::now();
        let outcome = self.state.apply(Term(1), &batch).remove(0);
        (outcome, began.elapsed())
    }

    fn ask(&mut self, op: LockOp) -> (Outcome, Duration) {
        self.apply(Command::Do { actor: Actor::of(SessionId(1)), op: op.into() })
    }

    fn acquire(&mut self, locks: &[LockName], uuid: u128) -> (FencingToken, Duration) {
        let (locks, mode, uuid) = (locks.to_vec(), LockMode::Exclusive, RequestId(uuid));
        let (outcome, took) = self.ask(LockOp::Acquire { locks, mode, delay_ms: 0, uuid, label: "worker".into() });
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
    let mut bench = Bench { state: State::new(), sequence: 0 };
    bench.apply(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "bench".into() });
    bench.apply(Command::RaiseFeatureLevel { level: FeatureLevel::LATEST });
    for (number, lock) in names("others", OTHERS).into_iter().enumerate() {
        bench.acquire(&[lock], number as u128);
    }
    for count in [1, 32, 256] {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let locks = names(&format!("together/{count}/{round}"), count);
            let (token, took) = bench.acquire(&locks, u128::MAX - u128::from(round));
            acquires.push(took);
            releases.push(bench.ask(LockOp::Release { locks, token }).1);
        }
        show(&format!("acquire {count} locks together"), acquires);
        show(&format!("release {count} locks together"), releases);
    }
}
