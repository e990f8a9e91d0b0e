//! The encoding of a batch in the log: one byte with the format, then postcard: the trace of the batch, if it has one,
//! and the batch. The bytes of a format never change their meaning, because logs outlive the programs that wrote them.
//!
//! The format is the number of the lowest feature level that has everything in the batch. So a batch may be proposed
//! only when the cluster's feature level says that every member reads it.

use thiserror::Error;

use crate::command::{Batch, BatchRef, Command};
use crate::feature::FeatureLevel;
use crate::trace_context::{BatchTrace, TraceContext};

/// Why bytes are not a batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("an encoded batch is not empty")]
    Empty,
    /// A later program wrote it.
    #[error(
        "the batch has format version {0}, this program reads up to {max}: upgrade this node",
        max = FeatureLevel::LATEST
    )]
    Version(u8),
    /// A later program raised the cluster's feature level.
    #[error(
        "the batch raises the cluster's feature level to {0}, this program supports level {max}: upgrade this node",
        max = FeatureLevel::LATEST
    )]
    FeatureLevel(FeatureLevel),
    /// The bytes are damaged, or never were a batch.
    #[error("the batch is damaged: {0}")]
    Damaged(postcard::Error),
    /// The format that the bytes name does not have what is in them.
    #[error("the batch is damaged: it has contents that format version {0} does not have")]
    Contents(u8),
    /// The trace in the bytes cannot belong to the batch.
    #[error("the batch is damaged: its trace has {0}")]
    Trace(&'static str),
    /// More bytes follow the batch.
    #[error("{0} bytes follow the batch")]
    Trailing(usize),
}

impl DecodeError {
    /// Whether a later program wrote the batch.
    pub fn is_too_new(&self) -> bool {
        matches!(self, Self::Version(_) | Self::FeatureLevel(_))
    }
}

impl Batch {
    /// Encodes this batch for the log and for other nodes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { origin, follows, clock_ms, rules, commands, trace } = self;
        let (origin, follows, clock_ms, rules) = (*origin, *follows, *clock_ms, *rules);
        let (commands, trace) = (commands.iter().collect(), trace.as_ref());
        BatchRef { origin, follows, clock_ms, rules, commands, trace }.encode()
    }

    /// The lowest feature level that has everything in this batch.
    fn level(&self) -> FeatureLevel {
        lowest_level(&self.commands)
    }

    /// The feature level that the cluster must have before a leader appends an encoded batch.
    pub fn level_in(bytes: &[u8]) -> FeatureLevel {
        bytes.first().map_or(FeatureLevel::FIRST, |format| FeatureLevel((*format).into()))
    }

    /// The level to which this batch raises the feature level, if it does.
    fn raised_to(&self) -> Option<FeatureLevel> {
        let level = |command: &Command| match command {
            Command::RaiseFeatureLevel { level } => Some(*level),
            _ => None,
        };
        self.commands.iter().filter_map(level).max()
    }

    /// The level to which an encoded batch raises the feature level, if it does and a program that supports the levels
    /// up to this one can read it.
    pub fn raised_in(supported: FeatureLevel, bytes: &[u8]) -> Option<FeatureLevel> {
        Self::decode_at(supported, bytes).ok()?.raised_to()
    }

    /// The span of the batch that an encoded batch carries, without decoding the rest.
    pub fn trace_in(bytes: &[u8]) -> Option<TraceContext> {
        let (_, rest) = bytes.split_first()?;
        postcard::take_from_bytes::<Option<TraceContext>>(rest).ok()?.0.filter(TraceContext::is_valid)
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_at(FeatureLevel::LATEST, bytes)
    }

    /// The same for a program that supports the feature levels up to this one.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_at(supported: FeatureLevel, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (format, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if !(FeatureLevel::FIRST..=supported).contains(&Self::level_in(bytes)) {
            return Err(DecodeError::Version(*format));
        }
        let (trace, body): (Option<BatchTrace>, _) = postcard::take_from_bytes(body).map_err(DecodeError::Damaged)?;
        let (mut batch, rest): (Self, _) = postcard::take_from_bytes(body).map_err(DecodeError::Damaged)?;
        if let Some(trace) = &trace {
            trace.check(batch.commands.len()).map_err(DecodeError::Trace)?;
        }
        batch.trace = trace;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing(rest.len()));
        }
        // Programs that know only an earlier level refuse what it does not have, so this one must as well.
        if batch.level() > Self::level_in(bytes) {
            return Err(DecodeError::Contents(*format));
        }
        match batch.raised_to().filter(|level| *level > supported) {
            Some(level) => Err(DecodeError::FeatureLevel(level)),
            None => Ok(batch),
        }
    }
}

impl BatchRef<'_> {
    /// As [`Batch::encode`].
    pub fn encode(&self) -> Vec<u8> {
        /// Room for a usual command, so that the bytes are seldom moved.
        const COMMAND_BYTES: usize = 128;
        let mut bytes = Vec::with_capacity(COMMAND_BYTES * (1 + self.commands.len()));
        bytes.push(lowest_level(self.commands.iter().copied()).0 as u8);
        // Encoding these types into memory cannot fail: every length is known and nothing is skipped. If it did, the
        // result would be an empty vector, which no reader accepts as a batch.
        let trace = postcard::to_extend(&self.trace, bytes);
        trace.and_then(|bytes| postcard::to_extend(self, bytes)).unwrap_or_default()
    }
}

/// The lowest feature level that has all these commands.
fn lowest_level<'a>(commands: impl IntoIterator<Item = &'a Command>) -> FeatureLevel {
    commands.into_iter().map(Command::level).max().unwrap_or(FeatureLevel::FIRST)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::*;

    fn batch(ops: Vec<Op>) -> Batch {
        let commands = ops.into_iter().map(|op| Command::Do { actor: Actor::default(), op }).collect();
        let origin = Origin { node: NodeId(1), incarnation: 2, sequence: 3 };
        let rules =
            Rules { max_ephemerals_per_session: 300, max_state_bytes: 1 << 20, foreign_names: ForeignNames::Refuse };
        Batch { origin, follows: 2, clock_ms: 4, rules, commands, trace: None }
    }

    fn create(path: &str) -> NodeOp {
        NodeOp::Create {
            path: NodePath::parse(path).unwrap(),
            data: (*b"data").into(),
            kind: NodeKind::Ttl { ttl_ms: 5 },
            sequential: Sequential::Suffix,
            acl: vec![AclEntry::open()],
        }
    }

    #[test]
    fn a_batch_comes_back_as_it_was() {
        let batch = batch(vec![create("/a").into(), Op::Multi(vec![create("/b"), create("/c")])]);
        assert_eq!(Batch::decode(&batch.encode()), Ok(batch));
    }

    /// Logs outlive programs: to change these bytes, change the format.
    #[test]
    fn the_bytes_of_format_1_stay_what_they_are() {
        for (sequential, byte) in [(Sequential::No, 0), (Sequential::Suffix, 1), (Sequential::Alone, 2)] {
            let mut op = create("/a");
            if let NodeOp::Create { sequential: kept, .. } = &mut op {
                *kept = sequential;
            }
            let mut expected = vec![1, 0, 1, 2, 3, 2, 4, 0xac, 2, 0x80, 0x80, 0x40, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 2];
            expected.extend(b"/a\x01\x04data\x03\x05");
            expected.push(byte);
            expected.extend(b"\x01\x1f\x05world\x06anyone");
            assert_eq!(batch(vec![op.into()]).encode(), expected);
        }
    }

    #[test]
    fn a_trace_comes_before_the_batch() {
        let plain = batch(vec![create("/a").into(), create("/b").into()]);
        let (span, request) = (context(7, 8), context(9, 10));
        let traced = Batch { trace: Some(BatchTrace { span, requests: vec![(1, request)] }), ..plain.clone() };
        let trace = [&[1][..], &[7; 16], &[8; 8], &[1], &[1, 1], &[9; 16], &[10; 8], &[1]].concat();
        let expected = [&[1][..], &trace, &plain.encode()[2..]].concat();
        assert_eq!(traced.encode(), expected);
        assert_eq!(Batch::decode(&expected), Ok(traced));
        assert_eq!(Batch::trace_in(&expected), Some(span));
        assert_eq!(Batch::trace_in(&plain.encode()), None);
        let cut = &expected[..expected.len() - 1];
        assert!(matches!(Batch::decode(cut), Err(DecodeError::Damaged(_))));
        assert_eq!(Batch::decode(&[&expected[..], &[0]].concat()), Err(DecodeError::Trailing(1)));
        for bytes in [&[][..], &[1], &[1, 0, 1], &expected[..20]] {
            assert_eq!(Batch::trace_in(bytes), None, "{bytes:?}");
        }
    }

    fn context(trace: u8, span: u8) -> TraceContext {
        TraceContext { trace_id: [trace; 16], span_id: [span; 8], flags: 1 }
    }

    #[test]
    fn a_trace_that_cannot_belong_to_the_batch_is_refused() {
        let commands = MAX_TRACED_REQUESTS as u32 + 1;
        let decoded = |span, requests: Vec<(u32, TraceContext)>| {
            let plain = batch((0..commands).map(|_| create("/a").into()).collect());
            let traced = Batch { trace: Some(BatchTrace { span, requests }), ..plain };
            Batch::decode(&traced.encode()).map(|batch| batch == traced)
        };
        let first = |many| (0..many).map(|index| (index, context(2, 3))).collect::<Vec<_>>();
        let good = context(1, 1);
        assert_eq!(decoded(good, vec![]), Ok(true));
        assert_eq!(decoded(good, first(commands - 1)), Ok(true));
        assert_eq!(decoded(good, vec![(commands - 1, good)]), Ok(true));
        for (span, requests) in [
            (good, first(commands)),
            (good, vec![(commands, good)]),
            (good, vec![(1, good), (0, good)]),
            (good, vec![(1, good), (1, good)]),
            (good, vec![(0, context(0, 1))]),
            (good, vec![(0, context(1, 0))]),
            (context(0, 1), vec![]),
            (context(1, 0), vec![]),
        ] {
            let refused = decoded(span, requests.clone());
            assert!(matches!(refused, Err(DecodeError::Trace(_))), "{span:?} {requests:?}: {refused:?}");
        }
        let zeros = Batch { trace: Some(BatchTrace { span: context(0, 1), requests: vec![] }), ..batch(vec![]) };
        assert_eq!(Batch::trace_in(&zeros.encode()), None);
    }

    #[test]
    fn each_command_has_the_trace_of_its_request() {
        let trace = BatchTrace { span: context(1, 1), requests: vec![(0, context(2, 2)), (7, context(3, 3))] };
        let of = |index| trace.of_command(index).map(|request| request.trace_id[0]);
        assert_eq!([0, 1, 6, 7, 8].map(of), [Some(2), None, None, Some(3), None]);
    }

    #[test]
    fn the_bytes_of_an_actor_stay_what_they_are() {
        let actor = Actor {
            session: Some(SessionId(9)),
            request: Some(RequestKey { id: RequestId(8), acknowledged: vec![RequestId(7)] }),
            attachment: Some(Zxid(300)),
            principals: Principals {
                address: Some([10, 0, 0, 7].into()),
                identities: vec![Identity { scheme: "digest".into(), id: "bob".into() }],
            },
            may_force: true,
        };
        let op = NodeOp::Check { path: NodePath::parse("/a").unwrap(), version: None };
        let batch = Batch { commands: vec![Command::Do { actor, op: op.into() }], ..batch(vec![]) };
        let expected =
            b"\x04\x01\x09\x01\x08\x01\x07\x01\xac\x02\x01\0\x0a\0\0\x07\x01\x06digest\x03bob\x01\0\x04\x02/a\0";
        assert_eq!(batch.encode()[14..], expected[..]);
        assert_eq!(Batch::decode(&batch.encode()), Ok(batch));
    }

    #[test]
    fn the_bytes_of_each_command_stay_what_they_are() {
        let (secret_hash, session) = ([7; 32], SessionId(9));
        let principals =
            Principals { address: None, identities: vec![Identity { scheme: "cert".into(), id: "bob".into() }] };
        let commands: [(Command, Vec<u8>); 8] = [
            (Command::RecordTokenUses { tokens: vec!["t".into()] }, b"\x08\x01\x01t".to_vec()),
            (
                Command::OpenSessionAs {
                    principals,
                    proves_later: true,
                    secret_hash,
                    timeout_ms: 300,
                    label: "l".into(),
                },
                [&b"\x06\0\x01\x04cert\x03bob\x01"[..], &secret_hash, b"\xac\x02\x01l"].concat(),
            ),
            (Command::EndUnauthorised { sessions: vec![session] }, b"\x07\x01\x09".to_vec()),
            (
                Command::OpenSession { secret_hash, timeout_ms: 300, label: "l".into() },
                [&[0][..], &secret_hash, b"\xac\x02\x01l"].concat(),
            ),
            (Command::CloseSession { session }, vec![1, 9]),
            (
                Command::ExpireSessions { term: Term(3), seen: Zxid(300), sessions: vec![session] },
                b"\x02\x03\xac\x02\x01\x09".to_vec(),
            ),
            (Command::Reap { paths: vec![NodePath::parse("/a").unwrap()] }, b"\x03\x01\x02/a".to_vec()),
            (Command::AttachSession { session }, vec![5, 9]),
        ];
        for (command, expected) in commands {
            let batch = Batch { commands: vec![command], ..batch(vec![]) };
            assert_eq!(batch.encode()[14..], expected);
        }
    }

    /// One of each operation, so that two of them cannot swap unnoticed.
    #[test]
    fn the_bytes_of_each_operation_stay_what_they_are() {
        let lock = |name| LockName::parse(name).unwrap();
        let (token, locks, key) = (FencingToken(7), || vec![lock("a"), lock("b")], || GateKey::parse("k").unwrap());
        let at = || NodePath::parse("/a").unwrap();
        let acquire =
            |mode| LockOp::Acquire { locks: locks(), mode, delay_ms: 300, uuid: RequestId(9), label: "l".into() };
        let rule = Rule { resource: Resource::Locks, prefix: "p".into(), rights: Rights::READ };
        let (name, hash): (Arc<str>, Arc<str>) = ("n".into(), "h".into());
        let put = AccessOp::PutRole { name: name.clone(), rules: vec![rule], version: Some(Zxid(5)) };
        let create = AccessOp::CreateToken { hash: hash.clone(), principal: name.clone(), ttl_ms: Some(5) };
        let (principal, role) = (name.clone(), hash.clone());
        let rates = |name: &str| RateName::parse(name).unwrap();
        let rate = Rate { limit: 300, per_ms: 5 };
        let (permits, ahead) = (vec![1, 2], 3);
        let ops: [(Op, &[u8]); 36] = [
            (AccessOp::Enable { first: Some(hash.clone()) }.into(), b"\x04\0\x01\x01h"),
            (AccessOp::Disable.into(), b"\x04\x01"),
            (put.into(), b"\x04\x02\x01n\x01\0\x01p\x01\x01\x05"),
            (AccessOp::DeleteRole { name: name.clone() }.into(), b"\x04\x03\x01n"),
            (AccessOp::Grant { principal: principal.clone(), role: role.clone() }.into(), b"\x04\x04\x01n\x01h"),
            (AccessOp::Revoke { principal, role }.into(), b"\x04\x05\x01n\x01h"),
            (create.into(), b"\x04\x06\x01h\x01n\x01\x05"),
            (AccessOp::RevokeToken { id: name }.into(), b"\x04\x07\x01n"),
            (AccessOp::Identify.into(), b"\x04\x08"),
            (NodeOp::Delete { path: at(), version: None }.into(), b"\0\x01\x02/a\0"),
            (
                NodeOp::SetData { path: at(), data: (*b"d").into(), version: Some(1) }.into(),
                b"\0\x02\x02/a\x01\x01d\x01\x02",
            ),
            (NodeOp::SetData { path: at(), data: NodeData::NULL, version: None }.into(), b"\0\x02\x02/a\0\0"),
            (NodeOp::SetAcl { path: at(), acl: vec![], version: None }.into(), b"\0\x03\x02/a\0\0"),
            (NodeOp::Check { path: at(), version: None }.into(), b"\0\x04\x02/a\0"),
            (NodeOp::CheckLock { lock: lock("a"), token }.into(), b"\0\x05\x01a\x07"),
            (Op::Multi(vec![]), b"\x01\0"),
            (acquire(LockMode::Exclusive).into(), b"\x02\0\x02\x01a\x01b\0\xac\x02\x09\x01l"),
            (acquire(LockMode::Shared).into(), b"\x02\0\x02\x01a\x01b\x01\xac\x02\x09\x01l"),
            (acquire(LockMode::Write).into(), b"\x02\0\x02\x01a\x01b\x02\xac\x02\x09\x01l"),
            (acquire(LockMode::Permit(5)).into(), b"\x02\0\x02\x01a\x01b\x03\x05\xac\x02\x09\x01l"),
            (
                LockOp::Withdraw { locks: locks(), token, if_holding: IfHolding::Release }.into(),
                b"\x02\x01\x02\x01a\x01b\x07\x01",
            ),
            (LockOp::Release { locks: locks(), token }.into(), b"\x02\x02\x02\x01a\x01b\x07"),
            (LockOp::Downgrade { lock: lock("a"), token }.into(), b"\x02\x03\x01a\x07"),
            (LockOp::Claim { locks: locks(), token }.into(), b"\x02\x04\x02\x01a\x01b\x07"),
            (
                LockOp::Abandon { locks: locks(), token, versions: vec![1, 2] }.into(),
                b"\x02\x05\x02\x01a\x01b\x07\x02\x02\x04",
            ),
            (LockOp::ForceRelease { lock: lock("a"), token }.into(), b"\x02\x06\x01a\x07"),
            (
                GateOp::Begin { key: key(), fingerprint: "f".into(), pending_ms: 5, label: "l".into() }.into(),
                b"\x03\0\x01k\x01f\x05\x01l",
            ),
            (
                GateOp::Finish { key: key(), token, result: (*b"r").into(), keep_ms: 5 }.into(),
                b"\x03\x01\x01k\x07\x01r\x05",
            ),
            (GateOp::Fail { key: key(), token }.into(), b"\x03\x02\x01k\x07"),
            (
                LockOp::AcquireReentrant { lock: lock("a"), delay_ms: 300, uuid: RequestId(9), label: "l".into() }
                    .into(),
                b"\x02\x07\x01a\xac\x02\x09\x01l",
            ),
            (GateOp::FinishForever { key: key(), token, result: (*b"r").into() }.into(), b"\x03\x03\x01k\x07\x01r"),
            (GateOp::Reset { key: key(), token: Some(token) }.into(), b"\x03\x04\x01k\x01\x07"),
            (GateOp::Reset { key: key(), token: None }.into(), b"\x03\x04\x01k\0"),
            (NodeOp::Add { path: at(), delta: -1, min: None, max: Some(5) }.into(), b"\0\x06\x02/a\x01\0\x01\x0a"),
            (
                Op::Multi(vec![NodeOp::Add { path: at(), delta: 1, min: Some(0), max: None }]),
                b"\x01\x01\x06\x02/a\x02\x01\0\0",
            ),
            (
                RateOp::Take { name: rates("r"), rate, permits, ahead, reconfigure: true }.into(),
                b"\x05\0\x01r\xac\x02\x05\x02\x01\x02\x03\x01",
            ),
        ];
        for (op, expected) in ops {
            let bytes = batch(vec![op.clone()]).encode();
            assert_eq!((bytes[0], &bytes[21..]), (1, expected), "{op:?}");
            assert_eq!(Batch::decode(&bytes), Ok(batch(vec![op])));
        }
    }

    #[test]
    fn the_bytes_of_a_raised_feature_level_stay_what_they_are() {
        let raise = |level| Batch { commands: vec![Command::RaiseFeatureLevel { level }], ..batch(vec![]) };
        let bytes = raise(FeatureLevel(1)).encode();
        assert_eq!(bytes, [1, 0, 1, 2, 3, 2, 4, 0xac, 2, 0x80, 0x80, 0x40, 0, 1, 9, 1]);
        assert_eq!(Batch::decode(&bytes), Ok(raise(FeatureLevel(1))));
        assert_eq!(Batch::raised_in(FeatureLevel::LATEST, &bytes), Some(FeatureLevel(1)));
        let other = batch(vec![create("/a").into()]).encode();
        assert_eq!(Batch::raised_in(FeatureLevel::LATEST, &other), None);
    }

    #[test]
    fn what_a_later_program_wrote_is_refused_until_the_program_supports_its_level() {
        let later = FeatureLevel(FeatureLevel::LATEST.0 + 1);
        let raise = Batch { commands: vec![Command::RaiseFeatureLevel { level: later }], ..batch(vec![]) };
        let mut bytes = raise.encode();
        let error = Batch::decode(&bytes).unwrap_err();
        assert!(error == DecodeError::FeatureLevel(later) && error.is_too_new());
        assert!(error.to_string().contains("upgrade this node"), "{error}");
        assert_eq!(Batch::raised_in(FeatureLevel::LATEST, &bytes), None);
        assert_eq!(Batch::decode_at(later, &bytes), Ok(raise.clone()));
        assert_eq!(Batch::raised_in(later, &bytes), Some(later));

        assert_eq!(Batch::level_in(&bytes), FeatureLevel::FIRST);
        bytes[0] = later.0 as u8;
        assert_eq!(Batch::level_in(&bytes), later);
        let error = Batch::decode(&bytes).unwrap_err();
        assert!(error == DecodeError::Version(later.0 as u8) && error.is_too_new());
        assert!(error.to_string().contains("upgrade this node"), "{error}");
        assert_eq!(Batch::decode_at(later, &bytes), Ok(raise));
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let bytes = batch(vec![create("/a").into()]).encode();
        assert_eq!(Batch::decode(&[]), Err(DecodeError::Empty));
        for format in [0, 9] {
            assert_eq!(Batch::decode(&[format]), Err(DecodeError::Version(format)));
        }
        for cut in 1..bytes.len() {
            assert!(matches!(Batch::decode(&bytes[..cut]), Err(DecodeError::Damaged(_))), "cut at {cut}");
        }
        assert_eq!(Batch::decode(&[&bytes[..], &[0, 0]].concat()), Err(DecodeError::Trailing(2)));
        let relative = bytes.iter().map(|b| if *b == b'/' { b'x' } else { *b }).collect::<Vec<_>>();
        assert!(Batch::decode(&relative).is_err(), "a path without its slash was taken");
    }

    /// So nothing nests.
    #[test]
    fn a_multi_is_read_only_with_operations_on_nodes() {
        let multi = batch(vec![Op::Multi(vec![NodeOp::Check { path: NodePath::root(), version: None }])]).encode();
        assert_eq!(multi[21..], *b"\x01\x01\x04\x01/\0");
        let (alone, within) = (&multi[..21], &multi[..23]);
        let lock = b"\x02\x06\x01a\x07";
        assert!(Batch::decode(&[alone, lock].concat()).is_ok());
        assert!(Batch::decode(&[within, lock].concat()).is_err(), "a lock operation within a multi was taken");
        assert!(matches!(Batch::decode(&[alone, b"\x06"].concat()), Err(DecodeError::Damaged(_))));
    }
}
