//! The language of the golden scripts.
//!
//! ```text
//! clock 5000                                   the wall clock of later batches
//! foreign allow|refuse                         which names a queue takes from now on
//! rules ephemerals=3 state=20000               the bounds of later batches            size
//! open alice timeout=10000 label=worker-1      attach alice      close alice
//! expire alice bob term=3 entry=3 seen=7
//! [@alice] [#7] [ack=5,6] [via=3] [as=digest:bob] [from=10.0.0.7] [forcing] OPERATION, which is one of:
//!     create /a data=x kind=ephemeral|container|ttl:500 seq null
//!     delete /a v=0     set /a data=y v=0     setacl /a acl=world:anyone:31,… v=0     check /a v=0
//!     acquire orders,stock shared|write|permit:3 uuid=1 label=x delay=500     release orders,stock 7
//!     withdraw orders 7 keep|drop     claim orders 7     abandon orders 7 v=0,0
//!     downgrade orders 7     force orders 7
//!     checklock orders 7                       multi create /a ; delete /b v=1 ; …
//!     limit orders owner=digest:bob:x sessions=2 requests=3 nodes=4 bytes=5000 v=0     unlimit orders
//!     begin key print=f pending=1000 label=x   finish key 7 data=x keep=1000        fail key 7
//! reap /a /b       reapable now=20000
//! batch node=2 incarnation=1 sequence=4 | command | command …        resend
//! tree /           lock orders      locks prefix=or after=x limit=2  held alice    sessions    remembered alice 7
//! namespaces       gate key         applied 2        snapshot         (to bytes and back; goes on with what was read)
//! newcluster                        goes on with what a new cluster makes of the state
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;

use lockkeeper_core::*;

use super::render;
use crate::world::{snapshot, through_a_snapshot};

pub(crate) struct Stage {
    state: State,
    clock_ms: u64,
    sequence: u64,
    rules: Rules,
    names: BTreeMap<String, SessionId>,
    last: Option<(Term, Batch)>,
}

/// The words of a command, and its `key=value` pairs.
struct Words<'a> {
    plain: Vec<&'a str>,
    pairs: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Self {
        let (mut plain, mut pairs) = (Vec::new(), BTreeMap::new());
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) if !key.starts_with('/') => drop(pairs.insert(key, value)),
                _ => plain.push(word),
            }
        }
        Self { plain, pairs }
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.pairs.get(key).map(|v| v.parse().unwrap_or_else(|_| panic!("{key}={v} is no number")))
    }

    fn version(&self) -> Option<i32> {
        self.pairs.get("v").map(|v| v.parse().unwrap())
    }

    fn path(&self, at: usize) -> NodePath {
        NodePath::parse(self.plain[at]).unwrap()
    }

    fn lock(&self) -> LockName {
        LockName::parse(self.plain[1]).unwrap()
    }

    fn locks(&self) -> Vec<LockName> {
        self.plain[1].split(',').map(|name| LockName::parse(name).unwrap()).collect()
    }

    fn key(&self) -> GateKey {
        GateKey::parse(self.plain[1]).unwrap()
    }

    fn text(&self, key: &str) -> Arc<str> {
        self.pairs.get(key).copied().unwrap_or("").into()
    }

    fn token(&self) -> FencingToken {
        FencingToken(self.plain[2].parse().unwrap())
    }

    fn data(&self) -> NodeData {
        if self.plain.contains(&"null") {
            return NodeData::NULL;
        }
        match self.pairs.get("bytes") {
            Some(count) => vec![b'x'; count.parse().unwrap()].into(),
            None => self.pairs.get("data").unwrap_or(&"").as_bytes().into(),
        }
    }

    fn acl(&self) -> Vec<AclEntry> {
        let Some(entries) = self.pairs.get("acl") else { return vec![AclEntry::open()] };
        entries.split(',').filter(|entry| !entry.is_empty()).map(acl_entry).collect()
    }
}

fn acl_entry(text: &str) -> AclEntry {
    let parts: Vec<&str> = text.split(':').collect();
    let permissions = Permissions(parts[2].parse().unwrap());
    AclEntry { permissions, scheme: parts[0].into(), id: parts[1].into() }
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            state: State::new(),
            clock_ms: 1000,
            sequence: 0,
            rules: Rules::default(),
            names: BTreeMap::new(),
            last: None,
        }
    }

    /// Runs one line and says what came of it.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let words = Words::of(line);
        let text = match words.plain[0] {
            "clock" => {
                self.clock_ms = words.plain[1].parse().unwrap();
                String::new()
            }
            "foreign" => {
                let allows = words.plain[1] == "allow";
                self.rules.foreign_names = if allows { ForeignNames::Allow } else { ForeignNames::Refuse };
                String::new()
            }
            "rules" => {
                let Rules { max_ephemerals_per_session, max_state_bytes, .. } = Rules::default();
                let ephemerals = words.number("ephemerals").unwrap_or(max_ephemerals_per_session.into());
                self.rules.max_ephemerals_per_session = u32::try_from(ephemerals).unwrap();
                self.rules.max_state_bytes = words.number("state").unwrap_or(max_state_bytes);
                String::new()
            }
            "size" => format!("  {} bytes\n", self.state.bytes()),
            "resend" => {
                let (term, batch) = self.last.clone().unwrap();
                self.apply(term, batch)
            }
            "batch" => self.batch(&words, line),
            "tree" => render::tree(&self.state, &words.path(1)),
            "lock" => render::lock(&self.state, &words.lock()),
            "gate" => match self.state.gate(&words.key()) {
                Ok(None) => "  open\n".into(),
                Ok(Some(standing)) => format!("  {}\n", render::gate(&standing)),
                Err(refusal) => format!("  refused: {refusal}\n"),
            },
            "locks" => self.locks(&words),
            "held" => self.held(words.plain[1]),
            "sessions" => self.sessions(),
            "namespaces" => render::namespaces(&self.state),
            "remembered" => self.remembered(&words),
            "applied" => {
                let recent = self.state.batches_applied(NodeId(words.plain[1].parse().unwrap()));
                format!("  {:?}\n", recent.last().map(|last| (last.origin, last.outcomes.clone())))
            }
            "reapable" => {
                let limit = words.number("limit").unwrap_or(10) as usize;
                format!("  {}\n", render::join(&self.state.reapable(words.number("now").unwrap(), limit)))
            }
            "snapshot" => self.snapshot(),
            "newcluster" => self.new_cluster(),
            _ => self.single(line),
        };
        self.state.validate().unwrap_or_else(|why| panic!("after '{line}': {why}"));
        text
    }

    fn single(&mut self, line: &str) -> String {
        let words = Words::of(line);
        let command = self.command(line);
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let term = Term(words.number("entry").unwrap_or(1));
        let text =
            self.apply(term, Batch { rules: self.rules, ..Batch::consecutive(origin, self.clock_ms, vec![command]) });
        if words.plain[0] == "open" && !text.contains("refused") {
            self.names.insert(words.plain[1].into(), SessionId(self.state.zxid().0));
        }
        text
    }

    fn batch(&mut self, words: &Words<'_>, line: &str) -> String {
        let commands = line.split('|').skip(1).map(|part| self.command(part.trim())).collect();
        let origin = Origin {
            node: NodeId(words.number("node").unwrap()),
            incarnation: words.number("incarnation").unwrap(),
            sequence: words.number("sequence").unwrap(),
        };
        let follows = words.number("follows").unwrap_or(origin.sequence.saturating_sub(1));
        self.apply(
            Term(1),
            Batch { origin, follows, clock_ms: self.clock_ms, rules: self.rules, commands, trace: None },
        )
    }

    /// Applies what a log would hand over: the bytes of the batch, read back.
    fn apply(&mut self, term: Term, batch: Batch) -> String {
        self.last = Some((term, batch.clone()));
        let outcomes = self.state.apply(term, &Batch::decode(&batch.encode()).unwrap());
        if outcomes.is_empty() {
            return "  no outcomes\n".into();
        }
        outcomes.iter().map(render::outcome).collect()
    }

    fn session(&self, name: &str) -> SessionId {
        self.names.get(name).copied().unwrap_or_else(|| SessionId(name.parse().expect("a session's name or number")))
    }

    fn command(&self, line: &str) -> Command {
        let words = Words::of(line);
        match words.plain[0] {
            "open" => Command::OpenSession {
                secret_hash: [7; 32],
                timeout_ms: words.number("timeout").unwrap_or(10_000) as u32,
                label: words.pairs.get("label").copied().unwrap_or(words.plain[1]).into(),
            },
            "attach" => Command::AttachSession { session: self.session(words.plain[1]) },
            "close" => Command::CloseSession { session: self.session(words.plain[1]) },
            "expire" => Command::ExpireSessions {
                term: Term(words.number("term").unwrap_or(1)),
                seen: Zxid(words.number("seen").unwrap_or(self.state.zxid().0)),
                sessions: words.plain[1..].iter().map(|name| self.session(name)).collect(),
            },
            "raise" => Command::RaiseFeatureLevel { level: FeatureLevel(words.plain[1].parse().unwrap()) },
            "uid" => Command::SetClusterUid { uid: ClusterUid(words.plain[1].parse().unwrap()) },
            "reap" => Command::Reap { paths: (1..words.plain.len()).map(|at| words.path(at)).collect() },
            _ => self.operation(line),
        }
    }

    fn operation(&self, line: &str) -> Command {
        let mut rest = line.trim();
        let (mut session, mut id, mut acknowledged) = (None, None, Vec::new());
        let (mut attachment, mut principals, mut may_force) = (None, Principals::default(), false);
        loop {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some(name) = word.strip_prefix('@') {
                session = Some(self.session(name));
            } else if let Some(number) = word.strip_prefix('#') {
                id = Some(RequestId(number.parse().unwrap()));
            } else if let Some(ids) = word.strip_prefix("ack=") {
                acknowledged = ids.split(',').map(|i| RequestId(i.parse().unwrap())).collect();
            } else if let Some(zxid) = word.strip_prefix("via=") {
                attachment = Some(Zxid(zxid.parse().unwrap()));
            } else if word == "forcing" {
                may_force = true;
            } else if let Some(address) = word.strip_prefix("from=") {
                principals.address = Some(address.parse().unwrap());
            } else if let Some((scheme, id)) = word.strip_prefix("as=").and_then(|who| who.split_once(':')) {
                principals.identities.push(Identity { scheme: scheme.into(), id: id.into() });
            } else {
                break;
            }
            rest = after;
        }
        let request = id.map(|id| RequestKey { id, acknowledged });
        Command::Do { actor: Actor { session, request, attachment, principals, may_force }, op: op(rest) }
    }

    fn locks(&self, words: &Words<'_>) -> String {
        let after = words.pairs.get("after").map(|name| LockName::parse(name).unwrap());
        let limit = words.number("limit").unwrap_or(10) as usize;
        let found = self.state.locks(words.pairs.get("prefix").unwrap_or(&""), after.as_ref(), limit);
        let lines = found.iter().map(|l| format!("  {}: {} hold, {} wait\n", l.name, l.holders, l.waiters));
        lines.collect()
    }

    fn held(&self, name: &str) -> String {
        let held = self.state.held_by(self.session(name));
        held.map(|request| format!("  {} with token {}\n", request.path, request.token)).collect()
    }

    fn sessions(&self) -> String {
        let mut text = String::new();
        for (id, session) in self.state.sessions() {
            let own: Vec<String> = session.ephemerals().map(NodePath::to_string).collect();
            let (label, timeout_ms, opened_ms) = (&session.label, session.timeout_ms, session.opened_ms);
            let remembered = session.remembered_count();
            let own = render::join(&own);
            writeln!(text, "  {id} {label:?} {timeout_ms} ms, opened {opened_ms}, remembers {remembered}, owns {own}")
                .unwrap();
        }
        let (nodes, ephemerals) = (self.state.node_count(), self.state.ephemeral_count());
        writeln!(text, "  {} sessions, {nodes} nodes, {ephemerals} ephemerals", self.state.session_count()).unwrap();
        text
    }

    fn remembered(&self, words: &Words<'_>) -> String {
        let id = RequestId(words.plain[2].parse().unwrap());
        match self.state.remembered_reply(self.session(words.plain[1]), id) {
            None => "  nothing\n".into(),
            Some(Ok(reply)) => format!("  {}\n", render::reply(reply)),
            Some(Err(refusal)) => format!("  refused: {refusal}\n"),
        }
    }

    fn new_cluster(&mut self) -> String {
        let before = self.state.zxid().0;
        self.state = self.state.clone().into_new_cluster(NonZeroU32::MIN).unwrap();
        // Members of the new cluster begin with their first batch.
        self.sequence = 0;
        format!("  zxid {}, {} further on\n", self.state.zxid(), self.state.zxid().0 - before)
    }

    fn snapshot(&mut self) -> String {
        let restored = through_a_snapshot(&self.state);
        assert_eq!(snapshot(&restored), snapshot(&self.state));
        self.state = restored;
        format!("  zxid {}, clock {}\n", self.state.zxid(), self.state.clock_ms())
    }
}

fn op(text: &str) -> Op {
    let words = Words::of(text);
    match words.plain[0] {
        "multi" => {
            let ops = text.trim_start().strip_prefix("multi").unwrap().split(';');
            Op::Multi(ops.filter(|part| !part.trim().is_empty()).map(|part| node_op(&Words::of(part))).collect())
        }
        "limit" => AccessOp::PutNamespace {
            name: words.plain[1].into(),
            owner: words.pairs.get("owner").map(|owner| (*owner).into()),
            limits: NamespaceLimits {
                sessions: words.number("sessions"),
                lock_requests: words.number("requests"),
                nodes: words.number("nodes"),
                bytes: words.number("bytes"),
                requests_per_s: words.number("rate"),
            },
            version: words.number("v").map(Zxid),
        }
        .into(),
        "unlimit" => AccessOp::DeleteNamespace { name: words.plain[1].into() }.into(),
        "acquire" => LockOp::Acquire {
            locks: words.locks(),
            mode: match words.plain.get(2) {
                Some(&"shared") => LockMode::Shared,
                Some(&"write") => LockMode::Write,
                Some(permits) => LockMode::Permit(permits.strip_prefix("permit:").unwrap().parse().unwrap()),
                None => LockMode::Exclusive,
            },
            delay_ms: words.number("delay").unwrap_or(0) as u32,
            uuid: RequestId(u128::from(words.number("uuid").expect("acquire has a uuid"))),
            label: words.text("label"),
        }
        .into(),
        "reacquire" => LockOp::AcquireReentrant {
            lock: words.lock(),
            delay_ms: words.number("delay").unwrap_or(0) as u32,
            uuid: RequestId(u128::from(words.number("uuid").expect("reacquire has a uuid"))),
            label: words.text("label"),
        }
        .into(),
        "release" => LockOp::Release { locks: words.locks(), token: words.token() }.into(),
        "downgrade" => LockOp::Downgrade { lock: words.lock(), token: words.token() }.into(),
        "claim" => LockOp::Claim { locks: words.locks(), token: words.token() }.into(),
        "abandon" => LockOp::Abandon {
            locks: words.locks(),
            token: words.token(),
            versions: words.pairs["v"].split(',').map(|v| v.parse().unwrap()).collect(),
        }
        .into(),
        "begin" => GateOp::Begin {
            key: words.key(),
            fingerprint: words.text("print"),
            pending_ms: words.number("pending").unwrap_or(1000),
            label: words.text("label"),
        }
        .into(),
        "finish" if words.plain.contains(&"forever") => GateOp::FinishForever {
            key: words.key(),
            token: words.token(),
            result: words.data().bytes().unwrap_or_default().into(),
        }
        .into(),
        "reset" => GateOp::Reset { key: words.key(), token: words.number("token").map(FencingToken) }.into(),
        "finish" => GateOp::Finish {
            key: words.key(),
            token: words.token(),
            result: words.data().bytes().unwrap_or_default().into(),
            keep_ms: words.number("keep").unwrap_or(1000),
        }
        .into(),
        "fail" => GateOp::Fail { key: words.key(), token: words.token() }.into(),
        "force" => LockOp::ForceRelease { lock: words.lock(), token: words.token() }.into(),
        "withdraw" => LockOp::Withdraw {
            locks: words.locks(),
            token: words.token(),
            if_holding: if words.plain[3] == "keep" { IfHolding::Keep } else { IfHolding::Release },
        }
        .into(),
        _ => node_op(&words).into(),
    }
}

fn node_op(words: &Words<'_>) -> NodeOp {
    match words.plain[0] {
        "create" => {
            let (path, sequential) = match words.plain.contains(&"seq") {
                true => Sequential::parse_prefix(words.plain[1]).unwrap(),
                false => (words.path(1), Sequential::No),
            };
            let (data, kind, acl) = (words.data(), kind(words.pairs.get("kind").copied()), words.acl());
            NodeOp::Create { path, data, kind, sequential, acl }
        }
        "delete" => NodeOp::Delete { path: words.path(1), version: words.version() },
        "set" => NodeOp::SetData { path: words.path(1), data: words.data(), version: words.version() },
        "setacl" => NodeOp::SetAcl { path: words.path(1), acl: words.acl(), version: words.version() },
        "check" => NodeOp::Check { path: words.path(1), version: words.version() },
        "checklock" => NodeOp::CheckLock { lock: words.lock(), token: words.token() },
        other => panic!("'{other}' is no operation on a node"),
    }
}

fn kind(text: Option<&str>) -> NodeKind {
    match text {
        None => NodeKind::Persistent,
        Some("ephemeral") => NodeKind::Ephemeral,
        Some("container") => NodeKind::Container,
        Some(ttl) => NodeKind::Ttl { ttl_ms: ttl.strip_prefix("ttl:").unwrap().parse().unwrap() },
    }
}
