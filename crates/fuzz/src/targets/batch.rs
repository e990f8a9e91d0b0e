//! The payload of a log entry.

use std::num::NonZeroU64;

use lockkeeper_core::{
    Actor, Batch, ClusterUid, Command, FeatureLevel, GateKey, GateOp, LockMode, LockName, LockOp, NodeId, NodeKind,
    NodeOp, NodePath, Op, Origin, Rate, RateName, RateOp, RequestId, RequestKey, Sequential, SessionId, State, Term,
};

pub(super) fn examine(input: &[u8]) {
    let Ok(batch) = Batch::decode(input) else { return };
    assert_eq!(Batch::decode(&batch.encode()).as_ref(), Ok(&batch), "a batch does not decode to itself");
    // The state has something of every kind, so that the names in the batch may exist.
    let mut state = State::new();
    for seed in seeds() {
        if let Ok(before) = Batch::decode(&seed) {
            state.apply(Term(1), &before);
        }
    }
    state.apply(Term(2), &batch);
    assert_eq!(state.validate(), Ok(()), "after {batch:?}");
}

fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn path(path: &str) -> NodePath {
    NodePath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn gate(key: &str) -> GateKey {
    GateKey::parse(key).unwrap_or_else(|error| panic!("{key}: {error}"))
}

fn acquire(name: &str, mode: LockMode, uuid: u128) -> LockOp {
    LockOp::Acquire { locks: vec![lock(name)], mode, delay_ms: 50, uuid: RequestId(uuid), label: "who".into() }
}

fn create(at: &str, kind: NodeKind, sequential: Sequential) -> NodeOp {
    NodeOp::Create {
        path: path(at),
        data: (*b"data").into(),
        kind,
        sequential,
        acl: vec![lockkeeper_core::AclEntry::open()],
    }
}

fn take(name: &str, permits: Vec<u32>, ahead: u32) -> RateOp {
    let name = RateName::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    RateOp::Take { name, rate: Rate { limit: 100, per_ms: 1_000 }, permits, ahead, reconfigure: false }
}

fn by(session: u64, op: impl Into<Op>) -> Command {
    Command::Do { actor: Actor::of(SessionId(session)), op: op.into() }
}

/// A small history, one batch per seed.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let request = Some(RequestKey { id: RequestId(9), acknowledged: vec![RequestId(8)] });
    let begin = GateOp::Begin { key: gate("g"), fingerprint: "f".into(), pending_ms: 1000, label: "l".into() };
    let batches: Vec<Vec<Command>> = vec![
        vec![
            Command::OpenSession { secret_hash: [3; 32], timeout_ms: 1000, label: "s".into() },
            Command::OpenSession { secret_hash: [4; 32], timeout_ms: 1000, label: "t".into() },
        ],
        vec![
            Command::Do {
                actor: Actor::of(SessionId(1)).asking(request),
                op: acquire("l", LockMode::Shared, 5).into(),
            },
            by(2, acquire("l", LockMode::Exclusive, 6)),
            by(1, acquire("s", LockMode::Permit(2), 7)),
        ],
        vec![
            by(1, create("/a", NodeKind::Persistent, Sequential::No)),
            by(1, create("/a/e", NodeKind::Ephemeral, Sequential::Suffix)),
            by(1, create("/t", NodeKind::Ttl { ttl_ms: 5 }, Sequential::No)),
            by(
                1,
                Op::Multi(vec![
                    create("/a/c", NodeKind::Container, Sequential::No),
                    NodeOp::Check { path: path("/a"), version: None },
                ]),
            ),
        ],
        vec![by(2, begin)],
        vec![Command::CloseSession { session: SessionId(2) }],
        vec![
            Command::RaiseFeatureLevel { level: FeatureLevel::LATEST },
            Command::SetClusterUid { uid: ClusterUid(NonZeroU64::MAX) },
            by(1, take("r", vec![1, 2, 9], 0)),
            by(1, take("s/t", vec![1], 5)),
            by(1, NodeOp::Add { path: path("/n"), delta: -3, min: Some(-5), max: None }),
        ],
    ];
    let origin = |sequence| Origin { node: NodeId(1), incarnation: 1, sequence };
    let batches = batches.into_iter().zip(1..);
    let batch = |(commands, sequence)| Batch::consecutive(origin(sequence), sequence * 10, commands).encode();
    batches.map(batch).collect()
}
