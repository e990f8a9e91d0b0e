//! Turns raw numbers into commands that meet existing nodes. proptest draws and shrinks the numbers; their meaning
//! depends on the state of the model at that moment.

use std::sync::Arc;

use lockkeeper_core::*;

use super::access;
use super::naive::Model;

/// One raw command.
pub(crate) type Raw = [u16; 6];

const NAMES: [&str; 14] = [
    "a",
    "b",
    "n-",
    "lock-",
    "q-lock-",
    "x-__READ__",
    "lock-0000000002",
    "_c_00000000-0000-0000-0000-000000000001-lock-",
    "permit-2-",
    "_c_00000000-0000-0000-0000-000000000002-delay-900-__READ__",
    "delay-500-7-lock-",
    "k__lock__",
    "k__rlock__",
    "_c_00000000-0000-0000-0000-000000000002-delay-900-__lock__",
];
const LOCKS: [&str; 10] = [
    "l",
    "m",
    "l/m",
    "s",
    "t",
    "l/lock-0000000002",
    "a",
    "lock-0000000002",
    "delay-500-7-lock-0000000001",
    "delay-500-7-lock-0000000001/x",
];
const GATES: [&str; 5] = ["g", "g", "h", "d/g", "g/h"];

fn pick<T: Clone>(from: &[T], by: u16) -> Option<T> {
    if from.is_empty() { None } else { Some(from[usize::from(by) % from.len()].clone()) }
}

/// Draws a command's parts from raw numbers.
struct Chooser<'a> {
    model: &'a Model,
    raw: Raw,
}

impl Chooser<'_> {
    fn existing(&self) -> NodePath {
        let paths: Vec<&String> = self.model.nodes.keys().collect();
        NodePath::parse(pick(&paths, self.raw[1]).unwrap()).unwrap()
    }

    /// Mostly something that is there, sometimes something that may not be.
    fn path(&self) -> NodePath {
        if self.raw[2].is_multiple_of(5) { self.new_path() } else { self.existing() }
    }

    fn new_path(&self) -> NodePath {
        let parent = self.existing();
        let name = NAMES[usize::from(self.raw[2] / 5) % NAMES.len()];
        let deep = parent.as_str().matches('/').count() > 4;
        let child = if deep { NodePath::root().child(name) } else { parent.child(name) };
        child.unwrap_or_else(|_| NodePath::root())
    }

    fn session(&self) -> Option<SessionId> {
        let alive: Vec<u64> = self.model.sessions.keys().copied().collect();
        match self.raw[3] % 16 {
            0 => None,
            1 => Some(SessionId(u64::from(self.raw[4] % 64))),
            _ => pick(&alive, self.raw[3] / 16).map(SessionId),
        }
    }

    fn version(&self, read: impl Fn(&super::naive::MNode) -> i32, path: &NodePath) -> Option<i32> {
        match self.raw[4] % 4 {
            0 => Some(i32::from(self.raw[4] / 4 % 3)),
            1 => self.model.nodes.get(path.as_str()).map(read),
            _ => None,
        }
    }

    /// Null and empty now and then: they are not the same.
    fn data(&self) -> NodeData {
        match self.raw[5] % 16 {
            0 => NodeData::NULL,
            1 => NodeData::from([]),
            _ => format!("{}", self.raw[5] % 100).into_bytes().into(),
        }
    }

    /// Mostly open, so that not everything is refused.
    fn acl(&self) -> Vec<AclEntry> {
        access::list(self.raw[5])
    }

    /// Who asks.
    fn caller(&self) -> Principals {
        access::caller((self.raw[0] / 100) ^ (self.raw[4] / 8))
    }

    /// Over which attachment: mostly that which counts, sometimes an earlier one, or any.
    fn attachment(&self, session: Option<SessionId>) -> Option<Zxid> {
        let known = self.model.sessions.get(&session?.0);
        match self.raw[2] / 16 % 8 {
            0..=2 => None,
            3..=6 => known.map(|session| Zxid(session.attachment)),
            _ => Some(Zxid(session?.0)),
        }
    }

    fn kind(&self) -> NodeKind {
        match self.raw[4] % 10 {
            0..=2 => NodeKind::Persistent,
            3..=5 => NodeKind::Ephemeral,
            6 | 7 => NodeKind::Container,
            8 => NodeKind::Ttl { ttl_ms: u64::from(self.raw[5] % 3000) },
            _ => NodeKind::Ttl { ttl_ms: 4000 },
        }
    }

    fn lock(&self) -> LockName {
        let busy = self.busy();
        match pick(&busy, self.raw[1]).filter(|_| !self.raw[2].is_multiple_of(4)) {
            Some((lock, _)) => lock,
            None => LockName::parse(LOCKS[usize::from(self.raw[1]) % LOCKS.len()]).unwrap(),
        }
    }

    /// Mostly one lock, often several; sorted but for a slip now and then.
    fn locks(&self) -> Vec<LockName> {
        let mut locks = vec![self.lock()];
        let more = usize::from(self.raw[3] / 256 % 8).saturating_sub(4);
        for number in 0..more {
            let name = LOCKS[(usize::from(self.raw[3]) / 16 + number * 3) % 5];
            locks.push(LockName::parse(name).unwrap());
        }
        if !self.raw[4].is_multiple_of(32) {
            locks.sort();
            locks.dedup();
        }
        locks
    }

    /// Semaphores mostly by their own names, so that they do not keep everything else out.
    fn mode(&self, lock: &LockName) -> LockMode {
        let modes = [LockMode::Exclusive, LockMode::Shared, LockMode::Write, LockMode::Shared];
        let by = self.raw[4];
        match lock.as_str() {
            "s" | "t" if !by.is_multiple_of(8) => LockMode::Permit(2),
            _ if (by / 8).is_multiple_of(24) => LockMode::Permit(by / 256 % 4),
            _ => modes[usize::from(by % 4)],
        }
    }

    fn delay_ms(&self) -> u32 {
        match self.raw[2] % 16 {
            0..=5 => 0,
            6 => 600_001,
            more => u32::from(more) * 300,
        }
    }

    /// The locks that a request stands in, with its token and owner; or some that may not be.
    fn set(&self) -> (Vec<LockName>, FencingToken, Option<SessionId>) {
        let (lock, token, owner) = self.request();
        let mut locks: Vec<LockName> =
            self.busy().into_iter().filter(|(_, other)| *other == token).map(|(lock, _)| lock).collect();
        if locks.is_empty() || self.raw[2].is_multiple_of(16) {
            locks = vec![lock];
        }
        locks.sort();
        locks.dedup();
        (locks, token, owner)
    }

    fn gate(&self) -> (GateKey, FencingToken, Option<SessionId>) {
        let key = GATES[usize::from(self.raw[1]) % GATES.len()];
        let node = self.model.nodes.get(&format!("/gates/{key}")).filter(|_| !self.raw[2].is_multiple_of(8));
        let token = node.map_or(u64::from(self.raw[4] % 64), |node| node.czxid);
        (GateKey::parse(key).unwrap(), FencingToken(token), node.and_then(|node| node.owner).map(SessionId))
    }

    /// Requests that stand in locks' queues.
    fn busy(&self) -> Vec<(LockName, FencingToken)> {
        let paths = self.model.nodes.keys().map(|path| NodePath::parse(path).unwrap());
        let requests = paths.filter(|path| lock::parse_request(path.name()).is_some());
        let lock = |path: NodePath| {
            let token = FencingToken(self.model.nodes[path.as_str()].czxid);
            Some((LockName::of_directory(&path.parent()?)?, token))
        };
        requests.filter_map(lock).collect()
    }

    /// A request that is there, with its owner; or one that may not be.
    fn request(&self) -> (LockName, FencingToken, Option<SessionId>) {
        let busy = self.busy();
        match pick(&busy, self.raw[1]).filter(|_| !self.raw[2].is_multiple_of(8)) {
            Some((lock, token)) => {
                let owner = self.model.nodes.values().find(|node| node.czxid == token.0 && node.owner.is_some());
                (lock, token, owner.and_then(|node| node.owner).map(SessionId))
            }
            None => (self.lock(), FencingToken(u64::from(self.raw[4] % 64)), self.session()),
        }
    }

    fn uuid(&self) -> RequestId {
        RequestId(u128::from(self.raw[5] % 6))
    }
}

fn node_op(chooser: &Chooser<'_>, what: u16) -> NodeOp {
    match what % 16 {
        0..=5 => NodeOp::Create {
            path: if (chooser.raw[0] / 100).is_multiple_of(4) { chooser.existing() } else { chooser.new_path() },
            data: chooser.data(),
            kind: chooser.kind(),
            sequential: [Sequential::No, Sequential::Suffix, Sequential::No, Sequential::Suffix, Sequential::Alone]
                [usize::from(chooser.raw[3] % 5)],
            acl: chooser.acl(),
        },
        6..=8 => {
            let path = chooser.path();
            NodeOp::Delete { version: chooser.version(|n| n.version, &path), path }
        }
        9 | 10 => {
            let path = chooser.path();
            NodeOp::SetData { version: chooser.version(|n| n.version, &path), path, data: chooser.data() }
        }
        11 | 12 => {
            let path = chooser.path();
            NodeOp::SetAcl { version: chooser.version(|n| n.aversion, &path), path, acl: chooser.acl() }
        }
        13 => {
            let path = chooser.path();
            let bound = |by: u16| (!by.is_multiple_of(3)).then_some(i64::from(by % 200) - 50);
            let (min, max) = (bound(chooser.raw[1]), bound(chooser.raw[4]));
            NodeOp::Add { path, delta: i64::from(chooser.raw[5] % 64) - 20, min, max }
        }
        14 => {
            let path = chooser.path();
            NodeOp::Check { version: chooser.version(|n| n.version, &path), path }
        }
        _ => {
            let (lock, token, _) = chooser.request();
            NodeOp::CheckLock { lock, token }
        }
    }
}

/// Limits that are soon reached, of the names that are used most.
fn namespace_op(chooser: &Chooser<'_>) -> AccessOp {
    let raw = chooser.raw;
    let name: Arc<str> = ["l", "m", "a", "g", "s", "n/o"][usize::from(raw[1] % 6)].into();
    if raw[2].is_multiple_of(4) {
        return AccessOp::DeleteNamespace { name };
    }
    let limit = |by: u16, most: u64| (!by.is_multiple_of(3)).then_some(u64::from(by / 3) % most);
    let limits = NamespaceLimits {
        sessions: limit(raw[2], 3),
        lock_requests: limit(raw[3], 4),
        nodes: limit(raw[4], 12),
        bytes: limit(raw[5], 8).map(|thousands| thousands * 1_000),
        requests_per_s: None,
    };
    let version = (raw[0] / 100).is_multiple_of(4).then_some(Zxid(u64::from(raw[1] % 2)));
    AccessOp::PutNamespace { name, owner: None, limits, version }
}

/// What the raw numbers ask for, as things stand.
pub(crate) fn command(model: &Model, raw: Raw, spare: &[Raw]) -> Command {
    let chooser = Chooser { model, raw };
    let what = raw[0] % 100;
    let plain = |op: Op| perform(&chooser, chooser.session(), op);
    match what {
        0..=5 => Command::OpenSession {
            secret_hash: [raw[5] as u8; 32],
            timeout_ms: u32::from(raw[4]),
            label: format!("s{}", raw[5]).into(),
        },
        6 => Command::CloseSession { session: chooser.session().unwrap_or_default() },
        7 | 8 => Command::ExpireSessions {
            term: Term(u64::from(raw[4] % 3)),
            seen: Zxid(if raw[2].is_multiple_of(4) { model.zxid / 2 } else { model.zxid }),
            sessions: chooser.session().into_iter().chain([SessionId(u64::from(raw[5] % 64))]).collect(),
        },
        9 => Command::AttachSession { session: chooser.session().unwrap_or_default() },
        10..=12 => {
            let mut paths: Vec<NodePath> = model.nodes.keys().map(|path| NodePath::parse(path).unwrap()).collect();
            if raw[1].is_multiple_of(2) {
                paths.reverse();
            }
            paths.truncate(usize::from(raw[2] % 64));
            Command::Reap { paths }
        }
        13..=34 => {
            let locks = chooser.locks();
            let mode = chooser.mode(&locks[0]);
            let (delay_ms, uuid, label) = (chooser.delay_ms(), chooser.uuid(), format!("w{}", raw[5]).into());
            plain(LockOp::Acquire { locks, mode, delay_ms, uuid, label }.into())
        }
        35..=46 => {
            let (locks, token, owner) = chooser.set();
            let owner = if raw[5].is_multiple_of(8) { chooser.session() } else { owner };
            let op = match what {
                35 | 36 => {
                    let (delay_ms, uuid, label) = (chooser.delay_ms(), chooser.uuid(), "again".into());
                    LockOp::AcquireReentrant { lock: locks[0].clone(), delay_ms, uuid, label }
                }
                37..=39 => LockOp::Release { locks, token },
                40 => LockOp::Claim { locks, token },
                41 => {
                    let version = i32::from(raw[4].is_multiple_of(8));
                    let count = locks.len() + usize::from(raw[4] % 16 == 1);
                    LockOp::Abandon { locks, token, versions: vec![version; count] }
                }
                42 => LockOp::Downgrade { lock: locks[0].clone(), token },
                43 | 44 => LockOp::Withdraw { locks, token, if_holding: IfHolding::Keep },
                _ => LockOp::Withdraw { locks, token, if_holding: IfHolding::Release },
            };
            perform(&chooser, owner, op)
        }
        47 | 48 => {
            let (lock, token, _) = chooser.request();
            plain(LockOp::ForceRelease { lock, token }.into())
        }
        49..=54 => {
            let ops = spare.iter().map(|raw| node_op(&Chooser { model, raw: *raw }, raw[0])).collect();
            plain(Op::Multi(ops))
        }
        55..=64 => {
            let (key, token, owner) = chooser.gate();
            let worker = if raw[5].is_multiple_of(8) { chooser.session() } else { owner };
            match what {
                55..=60 => {
                    let fingerprint = ["x", "x", "x", "y", ""][usize::from(raw[4] % 5)].into();
                    let (pending_ms, label) = (u64::from(raw[2] % 64) * 1_000, format!("g{}", raw[5]).into());
                    plain(GateOp::Begin { key, fingerprint, pending_ms, label }.into())
                }
                61..=63 => {
                    let (result, keep_ms) = (vec![raw[4] as u8 % 4; 2].into(), u64::from(raw[2] % 64) * 1_000);
                    let op = if raw[2].is_multiple_of(5) {
                        GateOp::FinishForever { key, token, result }
                    } else {
                        GateOp::Finish { key, token, result, keep_ms }
                    };
                    perform(&chooser, worker, op)
                }
                _ if raw[2].is_multiple_of(2) => {
                    let token = [None, Some(token), Some(FencingToken(token.0 + 1))][usize::from(raw[4] % 3)];
                    plain(GateOp::Reset { key, token }.into())
                }
                _ => perform(&chooser, worker, GateOp::Fail { key, token }),
            }
        }
        65 | 66 => plain(namespace_op(&chooser).into()),
        _ => plain(node_op(&chooser, what).into()),
    }
}

/// A third of the commands carry a request id, from a range so small that ids come again.
fn perform(chooser: &Chooser<'_>, session: Option<SessionId>, op: impl Into<Op>) -> Command {
    let raw = chooser.raw;
    let (attachment, principals) = (chooser.attachment(session), chooser.caller());
    let may_force = ((raw[0] / 100) ^ raw[3]).is_multiple_of(2);
    let actor = Actor { attachment, principals, may_force, ..Actor::maybe(session) };
    if !raw[5].is_multiple_of(3) {
        return Command::Do { actor, op: op.into() };
    }
    let id = RequestId(u128::from(raw[2] % 16));
    // Half of those whose id is known ask for the same again.
    let known = session.and_then(|s| chooser.model.memory.get(&s.0)).and_then(|m| m.iter().find(|(k, ..)| *k == id));
    let op = match known {
        Some((_, asked, _)) if raw[4].is_multiple_of(2) => asked.clone(),
        _ => op.into(),
    };
    let acknowledged = (0..raw[4] % 3).map(|i| RequestId((u128::from(raw[2]) + 1 + u128::from(i)) % 16)).collect();
    Command::Do { actor: actor.asking(Some(RequestKey { id, acknowledged })), op }
}
