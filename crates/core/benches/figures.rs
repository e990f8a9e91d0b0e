//! What the state costs at full size, for those who change it: `cargo bench -p lockkeeper-core --bench figures`.
//! Prints; asserts nothing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures the pure core from outside, with a clock

use std::time::Instant;

use lockkeeper_core::*;

struct Bench {
    state: State,
    sequence: u64,
}

impl Bench {
    fn apply(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        self.state.apply(Term(1), &Batch::consecutive(origin, self.sequence, commands))
    }

    fn ask(&mut self, op: impl Into<Op>) -> Outcome {
        self.apply(vec![Command::Do { actor: Actor::of(SessionId(1)), op: op.into() }]).remove(0)
    }
}

/// Runs something and says how long one of `count` took.
fn timed<T>(what: &str, count: u32, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    println!("{what}: {took:.2?} in all, {:.2?} each", took / count);
    result
}

fn acquire(lock: &LockName, uuid: u128, mode: LockMode) -> LockOp {
    LockOp::Acquire { locks: vec![lock.clone()], mode, delay_ms: 0, uuid: RequestId(uuid), label: "worker".into() }
}

fn token(outcome: &Outcome) -> FencingToken {
    match &outcome.reply {
        Ok(Reply::Queued { token, .. }) => *token,
        other => panic!("{other:?}"),
    }
}

fn main() {
    let mut bench = Bench { state: State::new(), sequence: 0 };
    bench.apply(vec![Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "bench".into() }]);
    let own = LockName::parse("own").unwrap_or_else(|e| panic!("{e}"));
    let cycles = |bench: &mut Bench, count: u32| {
        for uuid in 0..count {
            let token = token(&bench.ask(acquire(&own, u128::from(uuid), LockMode::Exclusive)));
            bench.ask(LockOp::Release { locks: vec![own.clone()], token });
        }
    };
    timed("acquire and release, small state", 200_000, || cycles(&mut bench, 200_000));

    let data = NodeData::from([b'x'; 32]);
    let create = |path: String, data: &NodeData| NodeOp::Create {
        path: NodePath::parse(&path).unwrap_or_else(|e| panic!("{e}")),
        data: data.clone(),
        kind: NodeKind::Persistent,
        sequential: Sequential::No,
        acl: vec![AclEntry::open()],
    };
    timed("create 1,000,000 nodes", 1_000_000, || {
        for directory in 0..1_000 {
            bench.ask(create(format!("/d{directory}"), &data));
            for node in 1..1_000 {
                bench.ask(create(format!("/d{directory}/node-{node}"), &data));
            }
        }
    });
    timed("acquire and release, large state", 200_000, || cycles(&mut bench, 200_000));

    let queue = LockName::parse("queue").unwrap_or_else(|e| panic!("{e}"));
    let waiters = timed("100,000 requests in one queue, one in ten exclusive", 100_000, || {
        let mode = |i| if i % 10 == 0 { LockMode::Exclusive } else { LockMode::Shared };
        (0..100_000_u128).map(|i| bench.ask(acquire(&queue, i, mode(i)))).collect::<Vec<_>>()
    });
    let paths: Vec<NodePath> =
        bench.state.lock(&queue).into_iter().flat_map(|q| q.requests()).map(|r| r.path).collect();
    timed("standing of each", 100_000, || paths.iter().for_each(|path| drop(bench.state.standing(path))));
    timed("verify of each", 100_000, || waiters.iter().filter(|w| bench.state.verify(&queue, token(w))).count());

    let clone = timed("clone", 1, || bench.state.clone());
    timed("acquire and release beside a clone", 10_000, || cycles(&mut bench, 10_000));
    let mut bytes = Vec::new();
    timed("write a snapshot", 1, || clone.write_snapshot(&mut bytes)).unwrap_or_else(|e| panic!("{e}"));
    println!("snapshot: {} bytes for {} nodes", bytes.len(), clone.node_count());
    timed("checksum", 1, || clone.checksum());
    let restored = timed("read a snapshot", 1, || State::read_snapshot(&bytes[..])).unwrap_or_else(|e| panic!("{e}"));
    timed("validate", 1, || restored.validate()).unwrap_or_else(|e| panic!("{e}"));
    let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", memory.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    timed("end a session with 100,000 ephemerals", 1, || {
        bench.apply(vec![Command::CloseSession { session: SessionId(1) }])
    });
}
