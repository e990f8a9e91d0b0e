//! Tests that are too large for the golden scripts: bounds, wrap-arounds, and that nothing is copied.

use super::bounds::LARGEST_RESULT;
use super::*;
use crate::limits::*;
use crate::*;

/// A state with one session, and a log that grows by one batch a command.
struct Bench {
    state: State,
    session: SessionId,
    sequence: u64,
    clock_ms: u64,
    rules: Rules,
}

impl Bench {
    fn new() -> Self {
        let mut bench =
            Self { state: State::new(), session: SessionId(1), sequence: 0, clock_ms: 1, rules: Rules::default() };
        bench.run(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 1000, label: "s".into() }).unwrap();
        bench
    }

    fn run(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let batch = Batch { rules: self.rules, ..Batch::consecutive(origin, self.clock_ms, vec![command]) };
        let mut outcomes = self.state.apply(Term(1), &batch);
        outcomes.remove(0).reply
    }

    fn ask(&mut self, op: impl Into<Op>) -> Result<Reply, Refusal> {
        self.run(Command::Do { actor: Actor::of(self.session), op: op.into() })
    }

    fn ask_as(&mut self, id: u128, acknowledged: Vec<RequestId>, op: impl Into<Op>) -> Result<Reply, Refusal> {
        let request = Some(RequestKey { id: RequestId(id), acknowledged });
        self.run(Command::Do { actor: Actor::of(self.session).asking(request), op: op.into() })
    }
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

fn create(text: &str, sequential: bool) -> NodeOp {
    let (data, acl, sequential) = ([].into(), vec![AclEntry::open()], sequential.into());
    NodeOp::Create { path: path(text), data, kind: NodeKind::Persistent, sequential, acl }
}

fn acquire(lock: &str, uuid: u128, mode: LockMode) -> LockOp {
    let locks = vec![LockName::parse(lock).unwrap()];
    LockOp::Acquire { locks, mode, delay_ms: 0, uuid: RequestId(uuid), label: "".into() }
}

fn is_bad(reply: Result<Reply, Refusal>) -> bool {
    matches!(reply, Err(Refusal::BadArguments(_)))
}

#[test]
fn the_oldest_replies_are_forgotten_first() {
    let mut bench = Bench::new();
    for id in 0..MAX_REMEMBERED_REPLIES as u128 + 10 {
        bench.ask_as(id, vec![], create("/n-", true)).unwrap();
    }
    let kept = |bench: &Bench, id| bench.state.remembered_reply(bench.session, RequestId(id)).is_some();
    assert!(!kept(&bench, 9) && kept(&bench, 10));
    assert_eq!(bench.state.session(bench.session).unwrap().remembered_count(), MAX_REMEMBERED_REPLIES);
    // A retry does not make an entry younger.
    bench.ask_as(10, vec![], create("/n-", true)).unwrap();
    bench.ask_as(1000, vec![], create("/n-", true)).unwrap();
    assert!(!kept(&bench, 10) && kept(&bench, 11));
    bench.state.validate().unwrap();
}

/// A program may retry an unanswered change even if it has taken many locks since (promise P9).
#[test]
fn answers_to_requests_for_locks_do_not_push_out_others() {
    let mut bench = Bench::new();
    let unanswered = 1_000_000;
    let first = bench.ask_as(unanswered, vec![], create("/n-", true)).unwrap();
    for id in 0..=MAX_REMEMBERED_REPLIES as u128 {
        bench.ask_as(id, vec![], acquire(&format!("l{id}"), id, LockMode::Exclusive)).unwrap();
    }
    assert_eq!(bench.ask_as(unanswered, vec![], create("/n-", true)), Ok(first));
    assert_eq!(bench.state.session(bench.session).unwrap().remembered_count(), MAX_REMEMBERED_REPLIES + 1);
    bench.state.validate().unwrap();
}

/// Requests that change nothing must not fill the state for those who lock (promise P13).
#[test]
fn remembered_replies_are_bounded_and_take_no_room_from_others() {
    let mut bench = Bench::new();
    let check = NodeOp::Check { path: NodePath::root(), version: None };
    let first = bench.ask_as(10_000, vec![], acquire("l", 1, LockMode::Exclusive)).unwrap();
    for id in 0..20 {
        bench.ask_as(id, vec![], Op::Multi(vec![check.clone(); MAX_MULTI_OPS])).unwrap();
        bench.state.validate().unwrap();
    }
    let kept = |bench: &Bench, id| bench.state.remembered_reply(bench.session, RequestId(id)).is_some();
    assert!(!kept(&bench, 12) && kept(&bench, 13), "seven of 131,392 bytes each are within {MAX_REMEMBERED_BYTES}");
    assert_eq!(bench.ask_as(10_000, vec![], acquire("l", 1, LockMode::Exclusive)), Ok(first), "of another kind");
    // The remembered replies are far larger than the bound of the state.
    let most = bench.state.tree.bytes + bench.state.session_bytes + 4_096;
    assert!(bench.state.bytes() > 2 * most);
    bench.rules.max_state_bytes = most;
    bench.ask(acquire("other", 2, LockMode::Exclusive)).unwrap();
}

/// A client that was refused for lack of room may retry under the same id, and succeeds when there is room.
#[test]
fn refusals_for_want_of_room_are_not_remembered() {
    let mut bench = Bench::new();
    bench.rules.max_state_bytes = 1;
    let multi = Op::Multi(vec![create("/b", false)]);
    let refused = bench.ask_as(1, vec![], create("/a", false));
    assert!(matches!(refused, Err(Refusal::StateFull { .. })), "{refused:?}");
    let refused = bench.ask_as(2, vec![], multi.clone());
    assert!(matches!(refused, Err(Refusal::MultiFailed { .. })), "{refused:?}");
    bench.rules = Rules { max_ephemerals_per_session: 0, ..Rules::default() };
    let refused = bench.ask_as(3, vec![], acquire("l", 1, LockMode::Exclusive));
    assert!(matches!(refused, Err(Refusal::TooManyEphemerals { .. })), "{refused:?}");
    assert_eq!(bench.state.session(bench.session).unwrap().remembered_count(), 0);
    bench.rules = Rules::default();
    bench.ask_as(1, vec![], create("/a", false)).unwrap();
    bench.ask_as(2, vec![], multi).unwrap();
    bench.ask_as(3, vec![], acquire("l", 1, LockMode::Exclusive)).unwrap();
}

#[test]
fn memory_starts_anew_when_all_is_acknowledged() {
    let mut bench = Bench::new();
    for id in 0..20 {
        bench.ask_as(id, vec![RequestId(id.wrapping_sub(1))], create("/n-", true)).unwrap();
        assert_eq!(bench.state.session(bench.session).unwrap().remembered_count(), 1);
        bench.state.validate().unwrap();
    }
}

#[test]
fn sequences_end_where_ten_digits_end() {
    let mut bench = Bench::new();
    bench.ask(create("/q", false)).unwrap();
    bench.ask(acquire("l", 1, LockMode::Exclusive)).unwrap();
    for directory in ["/q", "/locks/l"] {
        bench.state.tree.update(&path(directory), |node| node.directory_mut().children_made = MAX_SEQUENCE);
    }
    let last = bench.ask(create("/q/n-", true)).unwrap();
    assert!(matches!(last, Reply::Created { path, .. } if path.as_str() == "/q/n-9999999999"));
    assert!(is_bad(bench.ask(create("/q/n-", true))));
    bench.ask(create("/q/plain", false)).unwrap();
    bench.ask(acquire("l", 2, LockMode::Exclusive)).unwrap();
    let zxid = bench.state.zxid();
    assert!(is_bad(bench.ask(acquire("l", 3, LockMode::Exclusive))));
    assert_eq!(bench.state.zxid(), zxid);
    bench.state.validate().unwrap();
}

/// ZooKeeper counts in 32 bits: beyond them its sequences turn negative and sort first. Here they go on rising.
#[test]
fn sequences_rise_past_32_bits() {
    let mut bench = Bench::new();
    bench.ask(create("/q", false)).unwrap();
    bench.ask(create("/q/n-", true)).unwrap();
    for (count, name) in [(1, "n-0000000001"), (0x7fff_ffff, "n-2147483647"), (0xffff_ffff, "n-4294967295")] {
        bench.state.tree.update(&path("/q"), |node| node.directory_mut().children_made = count);
        for (at, name) in [(count, name.to_owned()), (count + 1, format!("n-{:010}", count + 1))] {
            let made = bench.ask(create("/q/n-", true)).unwrap();
            assert!(matches!(made, Reply::Created { path, .. } if path.name() == name), "{at}");
            bench.state.validate().unwrap();
        }
    }
    // The stat shows twice the count less the children, in 32 bits that wrap as ZooKeeper's do.
    let (made, children) = (0x1_0000_0001_i64, 7);
    let shown = bench.state.get(&path("/q")).unwrap().stat;
    assert_eq!((shown.cversion, shown.num_children), ((made * 2 - children) as i32, children as u32));
    let alone = NodeOp::Create {
        path: path("/q"),
        data: [].into(),
        kind: NodeKind::Persistent,
        sequential: Sequential::Alone,
        acl: vec![AclEntry::open()],
    };
    assert!(matches!(bench.ask(alone), Ok(Reply::Created { path, .. }) if path.as_str() == "/q/4294967297"));
}

#[test]
fn versions_wrap_and_skip_minus_one() {
    let mut bench = Bench::new();
    bench.ask(create("/n", false)).unwrap();
    let set = |version| NodeOp::SetData { path: path("/n"), data: [].into(), version };
    let set_acl = |version| NodeOp::SetAcl { path: path("/n"), acl: vec![AclEntry::open()], version };
    for (before, after) in [(i32::MAX, i32::MIN), (-2, 0), (0, 1), (i32::MIN, i32::MIN + 1)] {
        bench.state.tree.update(&path("/n"), |node| (node.version, node.aversion) = (before, before));
        let reply = bench.ask(set(Some(before))).unwrap();
        assert!(matches!(reply, Reply::DataSet(stat) if stat.version == after), "{before}");
        let reply = bench.ask(set_acl(Some(before))).unwrap();
        assert!(matches!(reply, Reply::AclSet(stat) if stat.aversion == after), "{before}");
    }
}

#[test]
fn every_bound_is_kept() {
    let mut bench = Bench::new();
    let open = |label: String| Command::OpenSession { secret_hash: [0; 32], timeout_ms: 0, label: label.into() };
    bench.run(open("x".repeat(MAX_LABEL_BYTES))).unwrap();
    assert!(is_bad(bench.run(open("x".repeat(MAX_LABEL_BYTES + 1)))));
    let expire =
        |count| Command::ExpireSessions { term: Term(1), seen: Zxid(u64::MAX), sessions: vec![SessionId(99); count] };
    bench.run(expire(MAX_BULK)).unwrap();
    assert!(is_bad(bench.run(expire(MAX_BULK + 1))));
    let reap = |count| Command::Reap { paths: vec![NodePath::root(); count] };
    bench.run(reap(MAX_BULK)).unwrap();
    assert!(is_bad(bench.run(reap(MAX_BULK + 1))));
    let check = NodeOp::Check { path: NodePath::root(), version: None };
    bench.ask(Op::Multi(vec![check.clone(); MAX_MULTI_OPS])).unwrap();
    assert!(is_bad(bench.ask(Op::Multi(vec![check.clone(); MAX_MULTI_OPS + 1]))));
    bench.ask_as(1, vec![RequestId(7); MAX_REMEMBERED_REPLIES], check.clone()).unwrap();
    assert!(is_bad(bench.ask_as(2, vec![RequestId(7); MAX_REMEMBERED_REPLIES + 1], check)));
    bench.ask(create("/n", false)).unwrap();
    let acl = |acl: Vec<AclEntry>| NodeOp::SetAcl { path: path("/n"), acl, version: None };
    bench.ask(acl(vec![AclEntry::open(); MAX_ACL_ENTRIES])).unwrap();
    let long = AclEntry { id: "x".repeat(MAX_ACL_ID_BYTES + 1), ..AclEntry::open() };
    for wrong in [vec![AclEntry::open(); MAX_ACL_ENTRIES + 1], vec![long]] {
        assert!(matches!(bench.ask(acl(wrong)), Err(Refusal::InvalidAcl(_))));
    }
    let as_many = |count: usize, bytes: usize| {
        let identity = Identity { scheme: "s".repeat(bytes).into(), id: "i".repeat(bytes).into() };
        let principals = Principals { address: None, identities: vec![identity; count] };
        let op = NodeOp::Check { path: NodePath::root(), version: None };
        Command::Do { actor: Actor { principals, ..Actor::default() }, op: op.into() }
    };
    bench.run(as_many(MAX_IDENTITIES, MAX_ACL_ID_BYTES)).unwrap();
    assert!(is_bad(bench.run(as_many(MAX_IDENTITIES + 1, 1))));
    assert!(is_bad(bench.run(as_many(1, MAX_ACL_ID_BYTES + 1))));
    let part = "p".repeat(MAX_PART_BYTES - 9);
    assert!(is_bad(bench.ask(create(&format!("/{part}"), true))), "a sequence made a part too long");
    let mut label = acquire("l", 1, LockMode::Exclusive);
    if let LockOp::Acquire { label, .. } = &mut label {
        *label = "x".repeat(MAX_LABEL_BYTES + 1).into();
    }
    assert!(is_bad(bench.ask(label)));
    let with = |change: fn(&mut Vec<LockName>, &mut LockMode, &mut u32)| {
        let mut op = acquire("l", 1, LockMode::Exclusive);
        if let LockOp::Acquire { locks, mode, delay_ms, .. } = &mut op {
            change(locks, mode, delay_ms);
        }
        op
    };
    let names = |count: usize| (0..count).map(|n| LockName::parse(&format!("n{n:03}")).unwrap()).collect::<Vec<_>>();
    assert!(is_bad(bench.ask(with(|_, _, delay_ms| *delay_ms = MAX_DELAY_MS + 1))));
    assert!(is_bad(bench.ask(with(|_, mode, _| *mode = LockMode::Permit(0)))));
    assert!(is_bad(bench.ask(with(|_, mode, _| *mode = LockMode::Permit(MAX_PERMITS + 1)))));
    assert!(is_bad(bench.ask(with(|locks, _, _| locks.clear()))));
    assert!(is_bad(bench.ask(with(|locks, _, _| locks.push(locks[0].clone())))), "a lock twice");
    assert!(is_bad(bench.ask(with(|locks, _, _| locks.insert(0, LockName::parse("m").unwrap())))), "not sorted");
    let many = |locks| LockOp::Release { locks, token: FencingToken(1) };
    assert!(is_bad(bench.ask(many(names(MAX_LOCKS_TOGETHER + 1)))));
    assert!(matches!(bench.ask(many(names(MAX_LOCKS_TOGETHER))), Err(Refusal::NotHeld { .. })));
    assert!(bench.state.lock(&LockName::parse("l").unwrap()).is_none(), "a refused request made its directory");
}

#[test]
fn the_bounds_of_gates_hold() {
    let mut bench = Bench::new();
    let key = GateKey::parse("g").unwrap();
    let begin = |fingerprint: usize, pending_ms, label: usize| GateOp::Begin {
        key: GateKey::parse("g").unwrap(),
        fingerprint: "f".repeat(fingerprint).into(),
        pending_ms,
        label: "l".repeat(label).into(),
    };
    let wrong = [
        begin(0, 1, 0),
        begin(MAX_FINGERPRINT_BYTES + 1, 1, 0),
        begin(1, 0, 0),
        begin(1, MAX_GATE_PENDING_MS + 1, 0),
        begin(1, 1, MAX_LABEL_BYTES + 1),
    ];
    for op in wrong {
        assert!(is_bad(bench.ask(op)));
    }
    assert_eq!(bench.state.gate(&key), Ok(None));
    let begun = bench.ask(begin(MAX_FINGERPRINT_BYTES, MAX_GATE_PENDING_MS, MAX_LABEL_BYTES)).unwrap();
    let Reply::Gate(GateStanding::Proceed { token, .. }) = begun else { panic!("{begun:?}") };
    let finish = |length: usize, keep_ms| GateOp::Finish {
        key: GateKey::parse("g").unwrap(),
        token,
        result: vec![7; length].into(),
        keep_ms,
    };
    for op in [finish(MAX_GATE_RESULT_BYTES + 1, 1), finish(1, 0), finish(1, MAX_GATE_KEEP_MS + 1)] {
        assert!(is_bad(bench.ask(op)));
    }
    assert_eq!(bench.ask(finish(MAX_GATE_RESULT_BYTES, MAX_GATE_KEEP_MS)), Ok(Reply::GateSettled));
    assert!(matches!(bench.state.gate(&key), Ok(Some(GateStanding::Done { .. }))));
    bench.state.validate().unwrap();
}

/// What is refused for want of room is refused before the work, not after it.
#[test]
fn a_gate_is_begun_only_with_room_for_its_result_and_then_finished_in_any_case() {
    let mut bench = Bench::new();
    let key = |name| GateKey::parse(name).unwrap();
    let begin = |name| GateOp::Begin { key: key(name), fingerprint: "f".into(), pending_ms: 1_000, label: "".into() };
    let begun = |bench: &mut Bench, name| match bench.ask(begin(name)) {
        Ok(Reply::Gate(GateStanding::Proceed { token, .. })) => token,
        other => panic!("{other:?}"),
    };
    let a = begun(&mut bench, "a");
    let taken = bench.state.tree.bytes + bench.state.session_bytes;
    // Room for the result of `a`, and nearly for one more.
    bench.rules.max_state_bytes = (taken + 2 * LARGEST_RESULT) * 10 / 11 - 1;
    let room = |bench: &Bench, name| bench.state.check_room_for_result(&bench.rules, &key(name));
    assert!(matches!(room(&bench, "b"), Err(Refusal::StateFull { .. })), "{:?}", room(&bench, "b"));
    assert_eq!(room(&bench, "a"), Ok(()), "it is asked for again");
    bench.rules.max_state_bytes += 2;
    assert_eq!(room(&bench, "b"), Ok(()));
    let b = begun(&mut bench, "b");
    bench.state.validate().unwrap();
    bench.rules.max_state_bytes = 1;
    let result: Arc<[u8]> = vec![7; MAX_GATE_RESULT_BYTES].into();
    let finish = |name, token| GateOp::Finish { key: key(name), token, result: result.clone(), keep_ms: 1 };
    assert_eq!(bench.ask(finish("a", a)), Ok(Reply::GateSettled));
    assert_eq!(bench.ask(finish("b", b)), Ok(Reply::GateSettled));
    assert_eq!(bench.state.tree.pending_gates, 0);
    bench.state.validate().unwrap();
}

/// The keys of a page, and where the next one starts.
fn keys(page: &GatePage) -> (Vec<&str>, Option<&str>) {
    (page.gates.iter().map(|gate| gate.key.as_str()).collect(), page.next.as_ref().map(GateKey::as_str))
}

#[test]
fn gates_are_listed_page_by_page_in_the_order_of_their_keys() {
    let mut bench = Bench::new();
    let begin = |key: &str, pending_ms| GateOp::Begin {
        key: GateKey::parse(key).unwrap(),
        fingerprint: "f".into(),
        pending_ms,
        label: key.into(),
    };
    let token = |reply| match reply {
        Ok(Reply::Gate(GateStanding::Proceed { token, .. })) => token,
        other => panic!("{other:?}"),
    };
    for key in ["b", "a/1", "a/3/x", "a-b", "c"] {
        token(bench.ask(begin(key, 1_000)));
    }
    let done = token(bench.ask(begin("a/2", 1_000)));
    let key = GateKey::parse("a/2").unwrap();
    bench.ask(GateOp::Finish { key, token: done, result: (*b"result").into(), keep_ms: 5_000 }).unwrap();
    let all = bench.state.gates("", None, 100);
    assert_eq!(keys(&all), (vec!["a-b", "a/1", "a/2", "a/3/x", "b", "c"], None));
    let finished = &all.gates[2];
    assert_eq!((finished.token, &*finished.label, finished.result_bytes), (done, "a/2", Some(6)));
    assert_eq!(finished.until_ms - finished.since_ms, 5_000);
    assert!(all.gates[1].result_bytes.is_none() && all.gates[1].token < done);
    assert_eq!(keys(&bench.state.gates("a/", None, 100)).0, ["a/1", "a/2", "a/3/x"]);
    assert_eq!(keys(&bench.state.gates("a", None, 1)), (vec!["a-b"], Some("a-b")));
    // Directories are looked at and not listed, so a page may have fewer gates and start the next one at a directory.
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = bench.state.gates("", after.as_ref(), 2);
        assert!(page.gates.len() <= 2);
        found.extend(page.gates.into_iter().map(|gate| gate.key.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, ["a-b", "a/1", "a/2", "a/3/x", "b", "c"]);
    // Those whose time is over are not listed, even before they are removed.
    bench.clock_ms += 2_000;
    bench.ask(begin("d", 1_000)).unwrap();
    assert_eq!(keys(&bench.state.gates("", None, 100)).0, ["a/2", "d"]);
    assert_eq!(keys(&bench.state.gates("nothing", None, 100)), (vec![], None));
}

/// Granting permits looks at no more of the queue than there are permits.
#[test]
fn a_long_queue_of_permits_is_served_in_order() {
    let mut bench = Bench::new();
    let lock = LockName::parse("s").unwrap();
    for uuid in 0..2_000 {
        bench.ask(acquire("s", uuid, LockMode::Permit(5))).unwrap();
    }
    let mut last = FencingToken(0);
    while !bench.state.lock(&lock).unwrap().is_empty() {
        let view = bench.state.lock(&lock).unwrap();
        let holders: Vec<LockRequest> = view.requests().take(view.holders()).collect();
        assert_eq!(holders.len(), view.len().min(5));
        assert!(holders.iter().all(|r| matches!(r.standing, Standing::Holds { .. }) && r.permits == Some(5)));
        let next = view.requests().nth(5).map(|request| request.standing);
        assert!(next.is_none_or(|standing| standing == Standing::Waits { blocker: lock.directory() }));
        let freed = holders[holders.len() / 2].token;
        assert!(last < freed || holders[0].token < last);
        last = last.max(freed);
        assert_eq!(bench.ask(LockOp::Release { locks: vec![lock.clone()], token: freed }), Ok(Reply::Released));
    }
    bench.state.validate().unwrap();
}

#[test]
fn a_clone_shares_everything_and_is_left_alone() {
    let mut bench = Bench::new();
    for _ in 0..2_000 {
        bench.ask(create("/n-", true)).unwrap();
    }
    let before = bench.state.clone();
    assert!(before.tree.nodes.ptr_eq(&bench.state.tree.nodes) && before.sessions.ptr_eq(&bench.state.sessions));
    let checksum = before.checksum();
    bench.ask(NodeOp::Delete { path: path("/n-0000001000"), version: None }).unwrap();
    bench.ask(create("/n-", true)).unwrap();
    assert_eq!((before.checksum(), before.node_count()), (checksum, 2_001));
    assert_ne!(bench.state.checksum(), checksum);
    before.validate().unwrap();
}

#[test]
fn the_checksum_is_of_what_the_zxid_determines() {
    let mut bench = Bench::new();
    bench.ask(create("/a", false)).unwrap();
    let checksum = bench.state.checksum();
    // A refusal, a repeated request, another node, another time: no zxid, and the same checksum.
    assert!(bench.ask_as(1, vec![], create("/a", false)).is_err());
    let origin = Origin { node: NodeId(2), incarnation: 1, sequence: 1 };
    bench.state.apply(Term(1), &Batch::consecutive(origin, 99, vec![]));
    assert_eq!(bench.state.checksum(), checksum);
    bench.ask(create("/b", false)).unwrap();
    assert_ne!(bench.state.checksum(), checksum);
}

#[test]
fn the_first_waiter_of_each_queue_is_found() {
    let mut bench = Bench::new();
    let waiting = |bench: &Bench| -> Vec<(String, u64)> {
        bench.state.queues_waiting().map(|(namespace, since_ms)| (namespace.to_owned(), since_ms)).collect()
    };
    let ask = |bench: &mut Bench, at_ms, op: LockOp| {
        bench.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: bench.sequence };
        let command = Command::Do { actor: Actor::of(bench.session), op: op.into() };
        bench.state.apply(Term(1), &Batch::consecutive(origin, at_ms, vec![command]));
    };
    for (at_ms, uuid, lock, mode) in [
        (10, 1, "a/x", LockMode::Exclusive),
        (20, 2, "b", LockMode::Shared),
        (30, 3, "b", LockMode::Shared),
        (40, 4, "c/y/z", LockMode::Permit(2)),
        (50, 5, "c/y/z", LockMode::Permit(2)),
    ] {
        ask(&mut bench, at_ms, acquire(lock, uuid, mode));
    }
    assert!(waiting(&bench).is_empty(), "all of them hold");
    for (at_ms, uuid, lock, mode) in [
        (60, 6, "a/x", LockMode::Exclusive),
        (70, 7, "a/x", LockMode::Exclusive),
        (80, 8, "b", LockMode::Exclusive),
        (90, 9, "b", LockMode::Shared),
        (100, 10, "c/y/z", LockMode::Permit(2)),
    ] {
        ask(&mut bench, at_ms, acquire(lock, uuid, mode));
    }
    assert_eq!(waiting(&bench), [("a".into(), 60), ("b".into(), 80), ("c".into(), 100)]);
    let lock = LockName::parse("a/x").unwrap();
    let token = bench.state.lock(&lock).unwrap().requests().next().unwrap().token;
    ask(&mut bench, 110, LockOp::Release { locks: vec![lock.clone()], token });
    assert_eq!(bench.state.lock(&lock).unwrap().waiting_since_ms(), Some(70), "the next one holds");
}

#[test]
fn a_long_queue_of_readers_and_writers_is_served_in_order() {
    let mut bench = Bench::new();
    let lock = LockName::parse("l").unwrap();
    for uuid in 0..2_000 {
        let mode = if uuid % 10 == 0 { LockMode::Exclusive } else { LockMode::Shared };
        bench.ask(acquire("l", uuid, mode)).unwrap();
    }
    let mut last = FencingToken(0);
    while !bench.state.lock(&lock).unwrap().is_empty() {
        let view = bench.state.lock(&lock).unwrap();
        let holders: Vec<LockRequest> = view.requests().take(view.holders()).collect();
        assert!(holders.iter().all(|r| matches!(r.standing, Standing::Holds { .. })));
        assert!(holders.len() == 1 || holders.len() == 9 && holders.iter().all(|r| r.mode == LockMode::Shared));
        for request in holders {
            assert!(last < request.token);
            last = request.token;
            assert_eq!(bench.ask(LockOp::Release { locks: vec![lock.clone()], token: last }), Ok(Reply::Released));
        }
    }
    bench.state.validate().unwrap();
}

/// The node of a lock request in the test below.
const TWIN: &str = "/locks/l/_c_00000000-0000-0000-0000-000000000001-lock-0000000000";

#[test]
fn validate_finds_what_is_wrong() {
    type Damage = fn(&mut State);
    let damages: [Damage; 16] = [
        |s| s.zxid = Zxid(1),
        |s| drop(s.sessions.remove(&SessionId(1))),
        |s| drop(s.tree.nodes.remove(&path("/c"))),
        |s| s.tree.deadlines.clear(),
        |s| s.tree.queues.clear(),
        |s| s.tree.ephemeral_count += 1,
        |s| s.tree.pending_gates += 1,
        |s| s.tree.update(&path("/locks/l"), |node| node.directory_mut().queue = Default::default()),
        |s| s.tree.update(&path("/locks/l"), |node| node.directory_mut().children_made = 0),
        |s| s.tree.update(&path("/c"), |node| node.directory_mut().empty_since_ms = None),
        |s| s.tree.delays.clear(),
        |s| s.tree.update(&path("/c"), |node| node.acl = Arc::from([])),
        |s| {
            let session = Arc::make_mut(s.sessions.get_mut(&SessionId(1)).unwrap());
            session.attachment = Zxid(session.acted.0 + 1);
        },
        |s| {
            let at = s.tree.delays.get_min().unwrap().1.clone();
            s.tree.update(&at, |node| node.kind = NodeKind::Persistent);
        },
        |s| {
            // Two requests of one session in one queue with one token.
            let mut twin = s.tree.get(&path(TWIN)).unwrap().clone();
            twin.czxid = Zxid(s.zxid.0);
            let other = path(&TWIN.replace("-lock-", "-extra-lock-"));
            for at in [&other, &path(TWIN)] {
                s.tree.place(at, twin.clone());
                s.tree.adopt("/locks/l", |directory| directory.add(at, twin.czxid.into(), true));
            }
            Arc::make_mut(s.sessions.get_mut(&SessionId(1)).unwrap()).ephemerals.insert(other);
        },
        |s| {
            if let Some(session) = s.sessions.get_mut(&SessionId(1)) {
                Arc::make_mut(session).ephemerals.clear();
            }
        },
    ];
    let mut bench = Bench::new();
    bench.ask(acquire("l", 1, LockMode::Exclusive)).unwrap();
    bench.run(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 1000, label: "dies".into() }).unwrap();
    let dies = SessionId(bench.state.zxid().0);
    let (locks, mode, uuid) = (vec![LockName::parse("delayed").unwrap()], LockMode::Shared, RequestId(1));
    let op = LockOp::Acquire { locks, mode, delay_ms: 500, uuid, label: "".into() };
    bench.run(Command::Do { actor: Actor::of(dies), op: op.into() }).unwrap();
    bench.run(Command::ExpireSessions { term: Term(1), seen: Zxid(u64::MAX), sessions: vec![dies] }).unwrap();
    let container = create("/c", false);
    let NodeOp::Create { path: at, data, acl, .. } = container else { unreachable!() };
    bench.ask(NodeOp::Create { path: at, data, kind: NodeKind::Container, sequential: Sequential::No, acl }).unwrap();
    bench.ask(create("/c/x", false)).unwrap();
    bench.ask(NodeOp::Delete { path: path("/c/x"), version: None }).unwrap();
    bench.state.validate().unwrap();
    for (at, damage) in damages.iter().enumerate() {
        let mut damaged = bench.state.clone();
        damage(&mut damaged);
        assert!(damaged.validate().is_err(), "damage {at} went unnoticed");
    }
}

fn made(text: &str, kind: NodeKind) -> NodeOp {
    let acl = vec![AclEntry::open()];
    NodeOp::Create { path: path(text), data: [].into(), kind, sequential: Sequential::No, acl }
}

fn open_with(bench: &mut Bench, directory: &str, ephemerals: u32) -> SessionId {
    let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 1000, label: "s".into() };
    let Ok(Reply::SessionOpened { session, .. }) = bench.run(open) else { panic!("it opens") };
    bench.ask(made(directory, NodeKind::Persistent)).unwrap();
    for number in 0..ephemerals {
        let op = made(&format!("{directory}/{number}"), NodeKind::Ephemeral);
        bench.run(Command::Do { actor: Actor::of(session), op: op.into() }).unwrap();
    }
    session
}

#[test]
fn one_expiry_command_removes_so_many_ephemerals_and_leaves_the_rest_to_the_next() {
    let mut bench = Bench::new();
    let half = MAX_EXPIRED_EPHEMERALS as u32 / 2;
    let sessions = [("/a", 2 * half + 1), ("/b", half), ("/c", half), ("/d", 1)];
    let sessions = sessions.map(|(directory, count)| open_with(&mut bench, directory, count));
    let mut expire = || {
        let seen = bench.state.zxid();
        let command = Command::ExpireSessions { term: Term(1), seen, sessions: sessions.to_vec() };
        match bench.run(command) {
            Ok(Reply::SessionsExpired(expired)) => expired,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(expire(), [sessions[0]], "one alone may own more");
    assert_eq!(expire(), sessions[1..3]);
    assert_eq!(expire(), sessions[3..]);
    assert_eq!(bench.state.ephemeral_count(), 0);
    bench.state.validate().unwrap();
}

#[test]
fn what_a_session_owned_in_one_directory_goes_together_and_the_directory_is_told_of_once() {
    let mut bench = Bench::new();
    let session = open_with(&mut bench, "/a", 3);
    bench.ask(made("/a/stays", NodeKind::Persistent)).unwrap();
    // Sorts between the nodes of the other directory.
    bench.ask(made("/a-b", NodeKind::Persistent)).unwrap();
    let actor = Actor::of(session);
    bench.run(Command::Do { actor, op: made("/a-b/e", NodeKind::Ephemeral).into() }).unwrap();
    bench.sequence += 1;
    let origin = Origin { node: NodeId(1), incarnation: 1, sequence: bench.sequence };
    let commands = vec![Command::CloseSession { session }];
    let outcomes = bench.state.apply(Term(1), &Batch::consecutive(origin, 9, commands));
    let told = outcomes[0].events.iter().map(|event| match event {
        Event::Node { kind, path, .. } => format!("{kind:?} {path}"),
        other => format!("{:?}", std::mem::discriminant(other)),
    });
    let told: Vec<String> = told.collect();
    let expected = [
        "Deleted /a-b/e",
        "ChildrenChanged /a-b",
        "Deleted /a/0",
        "Deleted /a/1",
        "Deleted /a/2",
        "ChildrenChanged /a",
    ];
    assert_eq!(told[..6], expected);
    assert_eq!(told.len(), 7);
    bench.state.validate().unwrap();
}

#[test]
fn what_needs_a_higher_feature_level_is_refused_until_it_is_raised() {
    let mut bench = Bench::new();
    let (level, needed) = (FeatureLevel::FIRST, FeatureLevel(2));
    let refused = bench.state.check_level(needed);
    assert_eq!(refused, Err(Refusal::FeatureLevelTooLow { needed, level }));
    let why = "this needs feature level 2 of the cluster, which is at level 1";
    assert_eq!(refused.unwrap_err().to_string(), why);
    bench.run(Command::RaiseFeatureLevel { level: needed }).unwrap();
    assert_eq!(bench.state.check_level(needed), Ok(()));
}

#[test]
fn no_configuration_lets_a_session_own_more_than_the_state_can_end() {
    let rules = Rules { max_ephemerals_per_session: u32::MAX, ..Rules::default() };
    assert_eq!(rules.ephemerals(), MAX_EPHEMERALS_PER_SESSION);
}

fn reacquire(lock: &str, uuid: u128) -> LockOp {
    let lock = LockName::parse(lock).unwrap();
    LockOp::AcquireReentrant { lock, delay_ms: 0, uuid: RequestId(uuid), label: "".into() }
}

/// A call that has gone must not give back the hold of another, nor may its retry be told that it holds.
#[test]
fn a_call_gives_its_hold_back_once_and_a_retry_of_it_claims_nothing() {
    for withdraws in [false, true] {
        let mut bench = Bench::new();
        let locks = vec![LockName::parse("l").unwrap()];
        let queued = bench.ask(acquire("l", 1, LockMode::Exclusive));
        let Ok(Reply::Queued { token, .. }) = queued else { panic!("{queued:?}") };
        bench.ask(reacquire("l", 2)).unwrap();
        let abandon = |version| LockOp::Abandon { locks: locks.clone(), token, versions: vec![version] };
        let withdraw = |if_holding| LockOp::Withdraw { locks: locks.clone(), token, if_holding };
        let leave = if withdraws { withdraw(IfHolding::Release) } else { abandon(0) };
        assert_eq!(bench.ask(leave), Ok(Reply::StillHeld { holds: 1 }));
        let checksum = bench.state.checksum();
        let claim = LockOp::Claim { locks: locks.clone(), token };
        for again in [abandon(0), abandon(1), withdraw(IfHolding::Release), withdraw(IfHolding::Keep), claim] {
            assert!(matches!(bench.ask(again), Err(Refusal::NotQueued { .. })));
        }
        assert_eq!(bench.state.checksum(), checksum);
        bench.state.validate().unwrap();
        let mut bytes = Vec::new();
        bench.state.write_snapshot(&mut bytes).unwrap();
        assert_eq!(State::read_snapshot(&bytes[..]).unwrap(), bench.state);

        // The same uuid makes a new request, and then finds that one.
        let fresh = bench.ask(acquire("l", 1, LockMode::Exclusive));
        assert!(matches!(&fresh, Ok(Reply::Queued { token: other, held: false, .. }) if *other != token));
        assert_eq!(bench.ask(acquire("l", 1, LockMode::Exclusive)), fresh);
        assert!(matches!(bench.ask(reacquire("l", 3)), Ok(Reply::Reentered { holds: 2, .. })));
        let release = LockOp::Release { locks: locks.clone(), token };
        assert_eq!(bench.ask(release.clone()), Ok(Reply::StillHeld { holds: 1 }));
        assert!(bench.state.tree.base_is_gone(&bench.state.held_by(bench.session).next().unwrap().path));
        assert_eq!(bench.ask(release), Ok(Reply::Released));
        assert!(bench.state.tree.holds.is_empty());
        bench.state.validate().unwrap();
    }
}

/// The locks of one request are given back together, so one of them cannot count by itself.
#[test]
fn a_lock_that_is_held_with_others_is_not_entered_again() {
    let mut bench = Bench::new();
    let locks = ["a", "b"].map(|name| LockName::parse(name).unwrap());
    let (mode, uuid) = (LockMode::Exclusive, RequestId(1));
    let queued = bench.ask(LockOp::Acquire { locks: locks.to_vec(), mode, delay_ms: 0, uuid, label: "".into() });
    let Ok(Reply::Queued { token, .. }) = queued else { panic!("{queued:?}") };
    assert!(matches!(bench.ask(reacquire("a", 2)), Err(Refusal::LockMismatch { .. })));
    bench.ask(LockOp::Release { locks: vec![locks[1].clone()], token }).unwrap();
    assert!(matches!(bench.ask(reacquire("a", 2)), Ok(Reply::Reentered { holds: 2, .. })), "now it is alone");
}

/// Only the remembered answer tells a retry that its hold was counted: requests for locks must not push it out.
#[test]
fn the_answer_to_a_re_entry_is_remembered_as_those_to_other_changes() {
    let mut bench = Bench::new();
    bench.ask_as(1, vec![], acquire("l", 1, LockMode::Exclusive)).unwrap();
    bench.ask_as(2, vec![], reacquire("l", 2)).unwrap();
    for id in 10..MAX_REMEMBERED_REPLIES as u128 + 20 {
        bench.ask_as(id, vec![], acquire(&format!("other{id}"), id, LockMode::Exclusive)).unwrap();
    }
    let kept = |id| bench.state.remembered_reply(bench.session, RequestId(id)).is_some();
    assert!(!kept(1) && kept(2));
}

#[test]
fn exclusive_requests_are_those_that_hold_alone() {
    let mut bench = Bench::new();
    let lock = LockName::parse("l").unwrap();
    assert_eq!(bench.state.exclusive_requests(&lock.directory()), 0, "no such lock");
    for (uuid, mode) in [LockMode::Shared, LockMode::Shared, LockMode::Exclusive, LockMode::Write].iter().enumerate() {
        bench.ask(acquire("l", uuid as u128, *mode)).unwrap();
    }
    assert_eq!(bench.state.exclusive_requests(&lock.directory()), 2);
}

#[test]
fn only_an_exclusive_request_for_one_lock_enters_a_queue_of_its_own() {
    let queue = |op: Op| op.exclusive_queue().map(|directory| directory.to_string());
    let ask = |mode| Op::from(acquire("l", 99, mode));
    let node = |kind, text: &str| {
        let (data, acl) = ([].into(), vec![AclEntry::open()]);
        Op::from(NodeOp::Create { path: path(text), data, kind, sequential: Sequential::Suffix, acl })
    };
    let here = Some("/locks/l".to_owned());
    assert_eq!((queue(ask(LockMode::Exclusive)), queue(ask(LockMode::Write))), (here.clone(), here.clone()));
    assert_eq!(queue(ask(LockMode::Shared)), None, "readers do not queue behind each other");
    for name in ["lock-", "_c_1-lock-", "_c_1-__WRIT__", "a1__lock__"] {
        assert_eq!(queue(node(NodeKind::Ephemeral, &format!("/locks/l/{name}"))), here, "{name}");
    }
    for name in ["_c_1-__READ__", "member-", "clock-", "a1__rlock__"] {
        assert_eq!(queue(node(NodeKind::Ephemeral, &format!("/locks/l/{name}"))), None, "{name}");
    }
    assert_eq!(queue(node(NodeKind::Persistent, "/locks/l/_c_1-lock-")), None, "not a request");
    let two = ["l", "m"].map(|name| LockName::parse(name).unwrap()).to_vec();
    let several =
        LockOp::Acquire { locks: two, mode: LockMode::Exclusive, delay_ms: 0, uuid: RequestId(9), label: "".into() };
    assert_eq!(queue(several.into()), None, "several locks");
}

/// Nodes come and go before, at and behind the place that the count has come to.
#[test]
fn a_large_namespace_is_counted_in_pieces_while_it_changes() {
    use super::namespaces::COUNTED_AT_ONCE;
    const NODES: usize = 25_000;
    let mut bench = Bench::new();
    let limit = |bench: &mut Bench, nodes| {
        let limits = NamespaceLimits { nodes, ..NamespaceLimits::default() };
        bench.ask(AccessOp::PutNamespace { name: "n".into(), owner: None, limits, version: None }).unwrap();
    };
    let used = |state: &State| state.namespaces().next().unwrap().2.nodes;
    let of_locks = |number: usize| create(&format!("/locks/n/{number:05}"), false);
    let gone = |number: usize| NodeOp::Delete { path: path(&format!("/n/{number:05}")), version: None };
    for top in ["/n", "/n-other", "/locks", "/locks/n"] {
        bench.ask(create(top, false)).unwrap();
    }
    let all: Vec<NodeOp> = (0..NODES).map(|number| create(&format!("/n/{number:05}"), false)).collect();
    for ops in all.chunks(MAX_MULTI_OPS) {
        bench.ask(Op::Multi(ops.to_vec())).unwrap();
    }

    let mut counted = vec![0];
    while bench.state.has_much_to_count("n") {
        limit(&mut bench, None);
        counted.push(used(&bench.state));
        bench.state.validate().unwrap();
        let place = counted.len() * COUNTED_AT_ONCE / 2;
        bench.ask(Op::Multi(vec![gone(place - 1), gone(NODES - place), of_locks(place)])).unwrap();
        bench.state.validate().unwrap();
    }
    assert_eq!(counted.len(), 3, "{counted:?}");
    assert!(counted.windows(2).all(|pair| pair[1] <= pair[0] + COUNTED_AT_ONCE as u64), "{counted:?}");
    assert!(!bench.state.has_much_to_count("other"));

    // A replica that begins with a snapshot has counted all, and decides alike.
    let mut bytes = Vec::new();
    bench.state.write_snapshot(&mut bytes).unwrap();
    let (sequence, rules) = (bench.sequence, bench.rules);
    let mut restored = Bench { state: State::read_snapshot(&bytes[..]).unwrap(), sequence, rules, ..Bench::new() };
    let nodes = used(&restored.state);
    for bench in [&mut bench, &mut restored] {
        limit(bench, Some(nodes));
        assert_eq!(used(&bench.state), nodes);
        let refused = bench.ask(create("/n/more", false));
        assert!(matches!(refused, Err(Refusal::NamespaceFull { .. })), "{refused:?}");
        bench.state.validate().unwrap();
    }
    assert_eq!(bench.state.checksum(), restored.state.checksum());
}

/// A name that is gone leaves nothing behind: no counter of its tokens, no record, no index.
#[test]
fn names_that_come_and_go_leave_nothing() {
    let mut bench = Bench::new();
    let limits = NamespaceLimits { nodes: Some(1_000_000), ..NamespaceLimits::default() };
    bench.ask(AccessOp::PutNamespace { name: "n".into(), owner: None, limits, version: None }).unwrap();
    let cycle = |bench: &mut Bench, from: u128, count: u128| {
        for number in from..from + count {
            let name = format!("n/{number}");
            let Ok(Reply::Queued { token, .. }) = bench.ask(acquire(&name, number, LockMode::Exclusive)) else {
                panic!("{name} is free")
            };
            let locks = vec![LockName::parse(&name).unwrap()];
            bench.ask(LockOp::Release { locks, token }).unwrap();
            let node = format!("/{number}");
            bench.ask(create(&node, false)).unwrap();
            bench.ask(create(&format!("{node}/child-"), true)).unwrap();
            let child = bench.state.children(&path(&node)).unwrap().next().unwrap().to_owned();
            for gone in [format!("{node}/{child}"), node] {
                bench.ask(NodeOp::Delete { path: path(&gone), version: None }).unwrap();
            }
        }
        bench.clock_ms += 3_600_000;
        loop {
            let paths = bench.state.reapable(bench.clock_ms, MAX_BULK);
            if paths.is_empty() {
                break;
            }
            bench.run(Command::Reap { paths }).unwrap();
        }
        // The outcomes of the latest batches are remembered, and those have many paths.
        for _ in 0..MAX_BATCHES_IN_FLIGHT {
            bench.ask(NodeOp::Check { path: NodePath::root(), version: None }).unwrap();
        }
        bench.state.validate().unwrap();
    };
    let size = |state: &State| {
        let mut bytes = Vec::new();
        state.write_snapshot(&mut bytes).unwrap();
        (state.bytes(), state.node_count(), bytes.len())
    };
    cycle(&mut bench, 0, 100);
    let base = size(&bench.state);
    cycle(&mut bench, 100, 20_000);
    let after = size(&bench.state);
    assert_eq!((base.0, base.1), (after.0, after.1));
    assert!(after.2 <= base.2 + 64, "{} bytes of snapshot became {}, and only numbers are longer", base.2, after.2);
}
