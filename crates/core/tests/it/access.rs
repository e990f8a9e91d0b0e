//! Access control as the state decides it (promise P14).

use std::sync::Arc;

use lockkeeper_core::access::{AccessOp, Resource, Rights, Rule, TOKEN, TOKEN_ID_DIGITS, TOKEN_USE_MS};
use lockkeeper_core::limits::MAX_BULK;
use lockkeeper_core::{
    AclEntry, Actor, Command, FencingToken, GateKey, GateOp, Identity, LockMode, LockName, LockOp, NodeData, NodeKind,
    NodeOp, Op, Principals, Refusal, Reply, RequestId, RequestKey, Sequential, SessionId, Zxid,
};

use super::world::{World, path, snapshot, through_a_snapshot};

pub(crate) fn hash(letter: char) -> Arc<str> {
    letter.to_string().repeat(64).into()
}

pub(crate) fn id_of(letter: char) -> Arc<str> {
    hash(letter)[..TOKEN_ID_DIGITS].into()
}

/// A caller with the token of this letter.
pub(crate) fn with_token(letter: char) -> Principals {
    Principals { address: None, identities: vec![Identity { scheme: TOKEN.into(), id: hash(letter) }] }
}

pub(crate) fn with_certificate(name: &str) -> Principals {
    Principals { address: None, identities: vec![Identity { scheme: "cert".into(), id: name.into() }] }
}

pub(crate) fn nobody() -> Principals {
    Principals::default()
}

pub(crate) fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap()
}

pub(crate) fn acquire(names: &[&str], uuid: u128) -> Op {
    let locks = names.iter().map(|name| lock(name)).collect();
    LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid: RequestId(uuid), label: "".into() }.into()
}

pub(crate) fn create(at: &str, kind: NodeKind, sequential: Sequential) -> Op {
    NodeOp::Create { path: path(at), data: NodeData::NULL, kind, sequential, acl: vec![AclEntry::open()] }.into()
}

pub(crate) fn rule(resource: Resource, prefix: &str, rights: Rights) -> Rule {
    Rule { resource, prefix: prefix.into(), rights }
}

pub(crate) fn is_unauthenticated<T>(reply: &Result<T, Refusal>) -> bool {
    matches!(reply, Err(Refusal::Unauthenticated(_)))
}

pub(crate) fn is_forbidden<T>(reply: &Result<T, Refusal>) -> bool {
    matches!(reply, Err(Refusal::Forbidden(_)))
}

impl World {
    /// Access control is enforced, and token `a` is the principal `admin`'s.
    pub(crate) fn enabled() -> Self {
        let mut world = Self::new();
        world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
        world
    }

    /// The same with a principal `orders`, its token `b`, and a role with these rules.
    pub(crate) fn with_role(rules: &[Rule]) -> Self {
        let mut world = Self::enabled();
        world.put("work", rules);
        world.change(&with_token('a'), AccessOp::Grant { principal: "orders".into(), role: "work".into() }).unwrap();
        world.token('b', "orders");
        world
    }

    pub(crate) fn call(
        &mut self,
        principals: &Principals,
        session: Option<SessionId>,
        op: impl Into<Op>,
    ) -> Result<Reply, Refusal> {
        self.act(Actor { principals: principals.clone(), session, may_force: true, ..Actor::default() }, op)
    }

    pub(crate) fn change(&mut self, principals: &Principals, op: AccessOp) -> Result<Reply, Refusal> {
        self.call(principals, None, op)
    }

    pub(crate) fn put(&mut self, name: &str, rules: &[Rule]) {
        let op = AccessOp::PutRole { name: name.into(), rules: rules.to_vec(), version: None };
        self.change(&with_token('a'), op).unwrap();
    }

    pub(crate) fn token(&mut self, letter: char, principal: &str) {
        let op = AccessOp::CreateToken { hash: hash(letter), principal: principal.into(), ttl_ms: None };
        self.change(&with_token('a'), op).unwrap();
    }

    pub(crate) fn open(&mut self, principals: &Principals, proves_later: bool) -> Result<SessionId, Refusal> {
        let (principals, secret_hash, label) = (principals.clone(), [0; 32], "".into());
        let open = Command::OpenSessionAs { principals, proves_later, secret_hash, timeout_ms: 10_000, label };
        match self.apply(open).reply? {
            Reply::SessionOpened { session, .. } => Ok(session),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn while_it_is_not_enforced_anybody_may_do_anything() {
    let mut world = World::new();
    let session = world.open(&nobody(), false).unwrap();
    world.call(&nobody(), Some(session), acquire(&["l"], 1)).unwrap();
    world.change(&nobody(), AccessOp::PutRole { name: "r".into(), rules: vec![], version: None }).unwrap();
    world.change(&nobody(), AccessOp::Grant { principal: "p".into(), role: "r".into() }).unwrap();
    assert!(!world.state.access().is_enabled());
}

#[test]
fn enabling_never_locks_everybody_out() {
    let mut world = World::new();
    assert!(is_forbidden(&world.change(&nobody(), AccessOp::Enable { first: None })));
    assert!(!world.state.access().is_enabled());
    world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
    assert!(world.state.access().is_enabled());
    let tokens: Vec<&str> = world.state.access().tokens().map(|(id, _)| id).collect();
    assert_eq!(tokens, [&*id_of('a')]);
    world.change(&with_token('a'), AccessOp::Disable).unwrap();
    world.change(&nobody(), AccessOp::Enable { first: Some(hash('c')) }).unwrap();
    assert_eq!(world.state.access().tokens().len(), 1, "there was an administrator: no second token is made");
}

/// Those who have a role that happens to be named 'admin' must not get every right by the enabling.
#[test]
fn enabling_takes_over_only_the_role_that_it_made() {
    let made = [Resource::Locks, Resource::Nodes, Resource::Gates, Resource::Sessions, Resource::Cluster];
    let rules = made.into_iter().chain([Resource::Rates]).map(|resource| rule(resource, "", Rights::ALL));
    let rules: Vec<Rule> = rules.collect();
    for count in 0..=rules.len() {
        let mut world = World::new();
        let op = AccessOp::PutRole { name: "admin".into(), rules: rules[..count].to_vec(), version: None };
        world.change(&nobody(), op).unwrap();
        let enabled = world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) });
        assert_eq!(is_forbidden(&enabled), count < rules.len(), "{count} rules: {enabled:?}");
        let (_, role) = world.state.access().roles().next().unwrap();
        assert_eq!(role.rules, rules[..count]);
    }
}

/// The caller draws the token, so that it has it even if the answer is lost.
#[test]
fn a_repeated_request_for_a_token_changes_nothing() {
    let mut world = World::enabled();
    let before = (world.state.zxid(), world.state.access().version());
    // It has no token but the one that the lost answer was about.
    world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
    assert!(is_unauthenticated(&world.change(&nobody(), AccessOp::Enable { first: Some(hash('b')) })));
    assert_eq!((world.state.zxid(), world.state.access().version()), before);

    let create =
        |principal: &str, ttl_ms| AccessOp::CreateToken { hash: hash('b'), principal: principal.into(), ttl_ms };
    let admin = with_token('a');
    world.change(&admin, create("orders", Some(60_000))).unwrap();
    let made = (world.state.zxid(), world.state.access().clone());
    world.clock_ms += 5_000;
    world.change(&admin, create("orders", Some(60_000))).unwrap();
    assert_eq!((world.state.zxid(), world.state.access().clone()), made, "its time runs from the first request");
    for (principal, ttl_ms) in [("other", Some(60_000)), ("orders", None), ("orders", Some(60_001))] {
        let refused = world.change(&admin, create(principal, ttl_ms));
        assert!(matches!(refused, Err(Refusal::BadArguments(_))), "{principal} {ttl_ms:?}: {refused:?}");
    }
    assert!(is_unauthenticated(&world.change(&nobody(), create("orders", Some(60_000)))), "it needs the right");
    assert_eq!(world.state.access().tokens().len(), 2);
}

#[test]
fn nothing_is_allowed_that_no_rule_allows() {
    let mut world = World::with_role(&[rule(Resource::Locks, "orders", Rights::ACQUIRE)]);
    assert!(is_unauthenticated(&world.open(&nobody(), false)));
    assert!(is_unauthenticated(&world.open(&with_token('f'), false)), "an unknown token");
    assert!(is_forbidden(&world.open(&with_certificate("stranger"), false)), "known, without a role");
    let orders = with_token('b');
    let session = world.open(&orders, false).unwrap();
    world.call(&orders, Some(session), acquire(&["orders/1"], 1)).unwrap();
    world.call(&orders, Some(session), acquire(&["orders"], 2)).unwrap();
    for (names, number) in [(&["orders2"][..], 3), (&["other"], 4), (&["orders/1", "other"], 5)] {
        let refused = world.call(&orders, Some(session), acquire(names, number));
        assert!(is_forbidden(&refused), "{names:?}: {refused:?}");
    }
    let refused = world.call(&orders, Some(session), acquire(&["other"], 4)).unwrap_err().to_string();
    assert_eq!(
        refused, "no role of orders has the right to acquire on locks 'other'; ask who administers the cluster",
        "it names the right, the resource and the principal"
    );
    assert!(is_forbidden(&world.call(&orders, None, create("/n", NodeKind::Persistent, Sequential::No))));
    assert!(is_forbidden(&world.change(&orders, AccessOp::Disable)));
    assert!(is_unauthenticated(&world.change(&nobody(), AccessOp::Disable)));
    let key = GateKey::parse("k").unwrap();
    let begin = GateOp::Begin { key, fingerprint: "f".into(), pending_ms: 1_000, label: "".into() };
    assert!(is_forbidden(&world.call(&orders, Some(session), begin)));
    let check = NodeOp::Check { path: path("/"), version: None };
    assert!(is_forbidden(&world.call(&orders, None, check)));
}

#[test]
fn one_bad_token_spoils_every_other_credential() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let mut both = with_token('b');
    both.identities.extend(with_token('f').identities);
    assert!(is_unauthenticated(&world.open(&both, false)));
}

#[test]
fn a_multi_needs_every_right() {
    let mut world = World::with_role(&[rule(Resource::Nodes, "/a", Rights::WRITE)]);
    let orders = with_token('b');
    world.call(&orders, None, create("/a", NodeKind::Persistent, Sequential::No)).unwrap();
    let part = |at| match create(at, NodeKind::Persistent, Sequential::No) {
        Op::Node(op) => op,
        other => panic!("{other:?}"),
    };
    assert!(is_forbidden(&world.call(&orders, None, Op::Multi(vec![part("/a/x"), part("/b")]))));
    assert!(world.state.get(&path("/a/x")).is_none());
    world.call(&orders, None, Op::Multi(vec![part("/a/x"), part("/a/y")])).unwrap();
}

#[test]
fn queues_cannot_be_forged_through_operations_on_nodes() {
    let mut world = World::with_role(&[rule(Resource::Nodes, "", Rights::ALL)]);
    let (admin, orders) = (with_token('a'), with_token('b'));
    let holder = world.open(&admin, false).unwrap();
    let Ok(Reply::Queued { paths, token, .. }) = world.call(&admin, Some(holder), acquire(&["l"], 1)) else { panic!() };
    let stranger = world.open(&orders, false).unwrap();
    let session = Some(stranger);
    let node = paths[0].clone();
    let forged =
        create("/locks/l/_c_00000000-0000-0000-0000-000000000002-lock-", NodeKind::Ephemeral, Sequential::Suffix);
    assert!(is_forbidden(&world.call(&orders, session, forged.clone())));
    assert!(is_forbidden(&world.call(&orders, session, create("/locks/m", NodeKind::Persistent, Sequential::No))));
    for op in [
        NodeOp::Delete { path: node.clone(), version: None },
        NodeOp::SetData { path: node.clone(), data: NodeData::NULL, version: None },
        NodeOp::SetAcl { path: path("/locks/l"), acl: vec![AclEntry::open()], version: None },
    ] {
        assert!(is_forbidden(&world.call(&orders, session, op.clone())), "{op:?}");
    }
    let force = LockOp::ForceRelease { lock: lock("l"), token };
    assert!(is_forbidden(&world.call(&orders, session, force.clone())));
    // With the right to acquire the client may stand in line by hand, as recipes of ZooKeeper do, and no more.
    world.put("work", &[rule(Resource::Locks, "l", Rights::ACQUIRE)]);
    world.call(&orders, session, forged).unwrap();
    let delete = NodeOp::Delete { path: node, version: None };
    assert!(is_forbidden(&world.call(&orders, session, delete)), "the configuration of a node does not give the right");
    world.put("work", &[rule(Resource::Locks, "l", Rights::ACQUIRE.and(Rights::FORCE))]);
    assert!(is_forbidden(&world.call(&orders, session, LockOp::ForceRelease { lock: lock("m"), token })));
    let at_a_strict_node = Actor { principals: orders.clone(), ..Actor::of(stranger) };
    assert!(is_forbidden(&world.act(at_a_strict_node, force.clone())), "nor does the right alone");
    world.call(&orders, session, force).unwrap();
}

#[test]
fn directories_above_a_prefix_can_be_made_and_looked_at() {
    let mut world = World::with_role(&[rule(Resource::Nodes, "/app/one", Rights::READ.and(Rights::WRITE))]);
    let orders = with_token('b');
    for at in ["/app", "/app/one", "/app/one/x"] {
        world.call(&orders, None, create(at, NodeKind::Persistent, Sequential::No)).unwrap();
        world.call(&orders, None, NodeOp::Check { path: path(at), version: None }).unwrap();
    }
    assert!(is_forbidden(&world.call(&orders, None, create("/app/two", NodeKind::Persistent, Sequential::No))));
    assert!(is_forbidden(&world.call(&orders, None, create("/app", NodeKind::Persistent, Sequential::Suffix))));
    assert!(is_forbidden(&world.call(&orders, None, NodeOp::Delete { path: path("/app"), version: None })));
}

#[test]
fn a_session_is_its_principals_alone() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let (admin, orders) = (with_token('a'), with_token('b'));
    let session = world.open(&orders, false).unwrap();
    assert!(is_forbidden(&world.call(&admin, Some(session), acquire(&["l"], 1))));
    assert!(is_unauthenticated(&world.call(&nobody(), Some(session), acquire(&["l"], 1))));
    let Ok(Reply::Queued { token, .. }) = world.call(&orders, Some(session), acquire(&["held"], 3)) else { panic!() };
    let release = LockOp::Release { locks: vec![lock("held")], token };
    assert!(is_forbidden(&world.call(&admin, Some(session), release)), "nor gives back for it");
    assert!(world.state.check_owner(&orders, session).is_ok());
    assert!(is_forbidden(&world.state.check_owner(&admin, session)));
    world.token('c', "orders");
    world.call(&with_token('c'), Some(session), acquire(&["l"], 1)).unwrap();
}

#[test]
fn giving_back_needs_no_right() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let orders = with_token('b');
    let session = world.open(&orders, false).unwrap();
    let Ok(Reply::Queued { token, .. }) = world.call(&orders, Some(session), acquire(&["l"], 1)) else { panic!() };
    world.put("work", &[rule(Resource::Locks, "elsewhere", Rights::ACQUIRE)]);
    assert!(is_forbidden(&world.call(&orders, Some(session), acquire(&["l"], 2))));
    assert_eq!(
        world.call(&orders, Some(session), LockOp::Release { locks: vec![lock("l")], token }),
        Ok(Reply::Released)
    );
    assert!(world.state.lock(&lock("l")).is_none_or(|view| view.is_empty()));
}

#[test]
fn a_withdrawn_token_ends_its_sessions_and_no_others() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let (admin, orders) = (with_token('a'), with_token('b'));
    let (kept, lost) = (world.open(&admin, false).unwrap(), world.open(&orders, false).unwrap());
    world.call(&orders, Some(lost), acquire(&["l"], 1)).unwrap();
    let end = Command::EndUnauthorised { sessions: vec![kept, lost] };
    assert_eq!(world.apply(end.clone()).reply, Ok(Reply::SessionsExpired(vec![])), "nothing was taken away");
    world.change(&admin, AccessOp::RevokeToken { id: id_of('b') }).unwrap();
    assert!(is_unauthenticated(&world.call(&orders, Some(lost), acquire(&["m"], 2))), "at once, before it ends");
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![lost])));
    assert!(world.state.lock(&lock("l")).is_none_or(|view| view.is_empty()), "its lock is free");
    assert!(world.state.session(kept).is_some());
}

#[test]
fn the_last_role_taken_away_ends_sessions_of_certificates() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let (admin, by_certificate) = (with_token('a'), with_certificate("orders"));
    let session = world.open(&by_certificate, false).unwrap();
    world.call(&with_token('b'), Some(session), acquire(&["l"], 1)).unwrap();
    world.change(&admin, AccessOp::Revoke { principal: "orders".into(), role: "work".into() }).unwrap();
    assert!(is_forbidden(&world.call(&by_certificate, Some(session), acquire(&["m"], 2))));
    let end = Command::EndUnauthorised { sessions: vec![session] };
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![session])));
}

#[test]
fn tokens_expire_by_the_replicated_clock() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let create = AccessOp::CreateToken { hash: hash('d'), principal: "orders".into(), ttl_ms: Some(5_000) };
    world.change(&with_token('a'), create).unwrap();
    let session = world.open(&with_token('d'), false).unwrap();
    assert_eq!(world.state.access().next_expiry_ms(World::START_MS), Some(World::START_MS + 5_000));
    world.clock_ms += 4_999;
    world.call(&with_token('d'), Some(session), acquire(&["l"], 1)).unwrap();
    world.clock_ms += 1;
    assert!(is_unauthenticated(&world.call(&with_token('d'), Some(session), acquire(&["m"], 2))));
    let end = Command::EndUnauthorised { sessions: vec![session] };
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![session])));
}

#[test]
fn a_session_that_proves_later_is_adopted() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let session = world.open(&nobody(), true).unwrap();
    assert!(is_unauthenticated(&world.call(&nobody(), Some(session), acquire(&["l"], 1))));
    let end = Command::EndUnauthorised { sessions: vec![session] };
    world.call(&with_certificate("stranger"), Some(session), AccessOp::Identify).unwrap();
    assert_eq!(world.apply(end.clone()).reply, Ok(Reply::SessionsExpired(vec![])), "it may be there, and owns nothing");
    world.call(&with_token('b'), Some(session), AccessOp::Identify).unwrap();
    let zxid = world.state.zxid();
    world.call(&with_token('a'), Some(session), AccessOp::Identify).unwrap();
    assert_eq!(world.state.zxid(), zxid, "it has an owner already");
    world.call(&with_token('b'), Some(session), acquire(&["l"], 1)).unwrap();
    assert!(is_forbidden(&world.call(&with_token('a'), Some(session), acquire(&["m"], 2))));
    world.change(&with_token('a'), AccessOp::RevokeToken { id: id_of('b') }).unwrap();
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![session])));
}

#[test]
fn a_session_without_a_role_belongs_to_the_first_principal_that_may_act() {
    let mut world = World::with_role(&[rule(Resource::Locks, "", Rights::ACQUIRE)]);
    let stranger = with_certificate("stranger");
    assert!(is_forbidden(&world.open(&stranger, false)));
    let session = world.open(&stranger, true).unwrap();
    assert_eq!(world.state.session(session).unwrap().identity, None);
    let mut both = stranger.clone();
    both.identities.extend(with_token('b').identities);
    world.call(&both, Some(session), acquire(&["l"], 1)).unwrap();
    assert_eq!(world.state.session(session).unwrap().identity.as_ref(), with_token('b').identities.first());
    assert!(is_forbidden(&world.call(&stranger, Some(session), acquire(&["m"], 2))));
}

#[test]
fn sessions_of_nobody_that_own_something_end_when_it_is_enforced() {
    let mut world = World::new();
    let (owner, idle) = (world.open(&nobody(), false).unwrap(), world.open(&nobody(), false).unwrap());
    world.call(&nobody(), Some(owner), acquire(&["l"], 1)).unwrap();
    world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
    let end = Command::EndUnauthorised { sessions: vec![owner, idle] };
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![owner])));
}

#[test]
fn nobody_locks_everybody_out_by_mistake() {
    let mut world = World::enabled();
    let admin = with_token('a');
    for change in [
        AccessOp::RevokeToken { id: id_of('a') },
        AccessOp::Revoke { principal: "admin".into(), role: "admin".into() },
        AccessOp::DeleteRole { name: "admin".into() },
        AccessOp::PutRole { name: "admin".into(), rules: vec![], version: None },
    ] {
        assert!(is_forbidden(&world.change(&admin, change.clone())), "{change:?}");
    }
    world.token('b', "admin");
    world.change(&admin, AccessOp::RevokeToken { id: id_of('a') }).unwrap();
    assert!(is_unauthenticated(&world.change(&admin, AccessOp::Disable)));
    world.change(&with_token('b'), AccessOp::Disable).unwrap();
}

#[test]
fn two_administrators_do_not_overwrite_each_other() {
    let mut world = World::enabled();
    let admin = with_token('a');
    let put = |version| AccessOp::PutRole { name: "r".into(), rules: vec![], version };
    world.change(&admin, put(Some(Zxid(0)))).unwrap();
    let first = world.state.zxid();
    assert!(matches!(world.change(&admin, put(Some(Zxid(0)))), Err(Refusal::RoleChanged { .. })));
    world.change(&admin, put(Some(first))).unwrap();
    let refused = world.change(&admin, put(Some(first)));
    let Err(Refusal::RoleChanged { expected, actual, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((expected, actual), (first, world.state.zxid()));
}

#[test]
fn what_is_not_there_and_what_cannot_be_is_refused() {
    let mut world = World::enabled();
    let admin = with_token('a');
    let missing = |reply: Result<Reply, Refusal>| matches!(reply, Err(Refusal::NotThere(_)));
    let (principal, role): (Arc<str>, Arc<str>) = ("p".into(), "r".into());
    assert!(missing(world.change(&admin, AccessOp::Grant { principal: principal.clone(), role: role.clone() })));
    assert!(missing(world.change(&admin, AccessOp::Revoke { principal, role: role.clone() })));
    assert!(missing(world.change(&admin, AccessOp::DeleteRole { name: role })));
    assert!(missing(world.change(&admin, AccessOp::RevokeToken { id: id_of('f') })));
    assert!(missing(world.change(&admin, AccessOp::RevokeToken { id: "a".into() })), "an id is whole");
    let bad = |reply: Result<Reply, Refusal>| matches!(reply, Err(Refusal::BadArguments(_)));
    let put = |name: &str, rules: Vec<Rule>| AccessOp::PutRole { name: name.into(), rules, version: None };
    for (name, rules) in [
        ("", vec![]),
        ("with space", vec![]),
        ("r", vec![rule(Resource::Locks, "a", Rights::default())]),
        ("r", vec![rule(Resource::Locks, "a", Rights(64))]),
        ("r", vec![rule(Resource::Locks, "/a", Rights::READ)]),
        ("r", vec![rule(Resource::Nodes, "a", Rights::READ)]),
        ("r", vec![rule(Resource::Cluster, "a", Rights::READ)]),
        ("r", vec![rule(Resource::Locks, "a", Rights::READ); 65]),
    ] {
        assert!(bad(world.change(&admin, put(name, rules.clone()))), "{name} {rules:?}");
    }
    for (hash, principal, ttl_ms) in [
        ("short".into(), "p", None),
        (hash('G'), "p", None),
        (hash('a'), "p", None),
        (hash('b'), "anyone", None),
        (hash('b'), "digest:bob:x", None),
        (hash('b'), "p", Some(0)),
    ] {
        let create = AccessOp::CreateToken { hash, principal: principal.into(), ttl_ms };
        assert!(bad(world.change(&admin, create.clone())), "{create:?}");
    }
}

#[test]
fn a_refusal_for_want_of_a_right_is_not_remembered() {
    let mut world = World::with_role(&[rule(Resource::Locks, "a", Rights::ACQUIRE)]);
    let orders = with_token('b');
    let session = world.open(&orders, false).unwrap();
    let request = Some(RequestKey { id: RequestId(7), acknowledged: vec![] });
    let actor = Actor { principals: orders.clone(), request, ..Actor::of(session) };
    assert!(is_forbidden(&world.act(actor.clone(), acquire(&["b"], 1))));
    world.put("work", &[rule(Resource::Locks, "b", Rights::ACQUIRE)]);
    let first = world.act(actor.clone(), acquire(&["b"], 1)).unwrap();
    assert_eq!(world.act(actor.clone(), acquire(&["b"], 1)).unwrap(), first);
    world.change(&with_token('a'), AccessOp::RevokeToken { id: id_of('b') }).unwrap();
    assert!(is_unauthenticated(&world.act(actor, acquire(&["b"], 1))), "and an answer is not repeated to it");
}

#[test]
fn everybody_is_anyone_and_the_super_user_may_do_everything() {
    let mut world = World::with_role(&[rule(Resource::Locks, "open", Rights::ACQUIRE)]);
    world.change(&with_token('a'), AccessOp::Grant { principal: "anyone".into(), role: "work".into() }).unwrap();
    let session = world.open(&nobody(), false).unwrap();
    world.call(&nobody(), Some(session), acquire(&["open"], 1)).unwrap();
    assert!(is_unauthenticated(&world.call(&nobody(), Some(session), acquire(&["closed"], 2))));
    let identities = vec![Identity { scheme: "super".into(), id: "".into() }];
    let root = Principals { address: None, identities };
    world.change(&root, AccessOp::Disable).unwrap();
}

#[test]
fn a_snapshot_has_all_of_it() {
    let mut world = World::with_role(&[rule(Resource::Locks, "orders", Rights::ACQUIRE.and(Rights::READ))]);
    let session = world.open(&with_token('b'), false).unwrap();
    let held = world.call(&with_token('b'), Some(session), acquire(&["orders"], 1)).unwrap();
    assert!(matches!(held, Reply::Queued { token: FencingToken(1..), .. }));
    let read = through_a_snapshot(&world.state);
    let (role, before) = (read.access().version(), world.state.checksum());
    world.change(&with_token('a'), AccessOp::RevokeToken { id: id_of('b') }).unwrap();
    assert!(world.state.access().version() > role);
    assert_ne!(world.state.checksum(), before);
}

#[test]
fn a_gate_without_a_session_is_failed_only_by_those_who_may_begin_it() {
    let rules = [rule(Resource::Gates, "pay", Rights::ACQUIRE)];
    let mut world = World::with_role(&rules);
    let (orders, key) = (with_token('b'), GateKey::parse("pay/42").unwrap());
    let begin = GateOp::Begin { key: key.clone(), fingerprint: "f".into(), pending_ms: 60_000, label: "".into() };
    let Ok(Reply::Gate(standing)) = world.call(&orders, None, begin.clone()) else { panic!() };
    let lockkeeper_core::GateStanding::Proceed { token, .. } = standing else { panic!("{standing:?}") };
    let fail = GateOp::Fail { key: key.clone(), token };
    assert!(is_unauthenticated(&world.call(&nobody(), None, fail.clone())));
    assert!(is_forbidden(&world.call(&with_certificate("stranger"), None, fail.clone())));
    world.call(&orders, None, fail).unwrap();
    // One that a session began is that session's to fail, whatever was taken from its principal.
    let session = world.open(&orders, false).unwrap();
    let Ok(Reply::Gate(standing)) = world.call(&orders, Some(session), begin) else { panic!() };
    let lockkeeper_core::GateStanding::Proceed { token, .. } = standing else { panic!("{standing:?}") };
    world.put("work", &[rule(Resource::Gates, "elsewhere", Rights::ACQUIRE)]);
    world.call(&orders, Some(session), GateOp::Fail { key, token }).unwrap();
}

#[test]
fn a_sequence_does_not_lead_out_of_a_rule() {
    let mut world = World::with_role(&[
        rule(Resource::Nodes, "/app", Rights::WRITE),
        rule(Resource::Locks, "orders/", Rights::ACQUIRE.and(Rights::FORCE)),
    ]);
    let orders = with_token('b');
    world.call(&orders, None, create("/app", NodeKind::Persistent, Sequential::No)).unwrap();
    world.call(&orders, None, create("/app/n-", NodeKind::Persistent, Sequential::Suffix)).unwrap();
    assert!(is_forbidden(&world.call(&orders, None, create("/app", NodeKind::Persistent, Sequential::Suffix))));
    let session = world.open(&orders, false).unwrap();
    for directory in ["/locks", "/locks/orders"] {
        world.call(&orders, None, create(directory, NodeKind::Persistent, Sequential::No)).unwrap();
    }
    let in_the_queue_of_orders = create("/locks/orders/lock-", NodeKind::Ephemeral, Sequential::Suffix);
    assert!(is_forbidden(&world.call(&orders, Some(session), in_the_queue_of_orders)));
    assert!(is_forbidden(&world.call(&orders, Some(session), acquire(&["orders"], 1))));
}

#[test]
fn a_directory_above_is_made_plain_or_not_at_all() {
    let mut world = World::with_role(&[rule(Resource::Locks, "orders/eu", Rights::ACQUIRE)]);
    let orders = with_token('b');
    let make = |data: &[u8], acl: AclEntry| NodeOp::Create {
        path: path("/locks"),
        data: NodeData::from(data),
        kind: NodeKind::Persistent,
        sequential: Sequential::No,
        acl: vec![acl],
    };
    let closed = AclEntry { id: "nobody:x".into(), scheme: "digest".into(), ..AclEntry::open() };
    assert!(is_forbidden(&world.call(&orders, None, make(b"", closed))));
    assert!(is_forbidden(&world.call(&orders, None, make(b"x", AclEntry::open()))));
    world.call(&orders, None, make(b"", AclEntry::open())).unwrap();
}

#[test]
fn nodes_of_other_sessions_in_a_lock_are_taken_by_force_alone_whatever_their_names() {
    let mut world = World::with_role(&[rule(Resource::Locks, "l", Rights::ACQUIRE)]);
    let (admin, orders) = (with_token('a'), with_token('b'));
    let (owner, other) = (world.open(&admin, false).unwrap(), world.open(&orders, false).unwrap());
    for directory in ["/locks", "/locks/l"] {
        world.call(&admin, None, create(directory, NodeKind::Persistent, Sequential::No)).unwrap();
    }
    world.call(&admin, Some(owner), create("/locks/l/x", NodeKind::Ephemeral, Sequential::No)).unwrap();
    let delete = NodeOp::Delete { path: path("/locks/l/x"), version: None };
    assert!(is_forbidden(&world.call(&orders, Some(other), delete.clone())));
    world.call(&admin, Some(owner), delete).unwrap();
}

#[test]
fn a_token_goes_before_a_certificate_without_a_role() {
    let mut world = World::new();
    let put = AccessOp::PutRole { name: "work".into(), rules: vec![], version: None };
    world.change(&nobody(), put).unwrap();
    world.change(&nobody(), AccessOp::Grant { principal: "orders".into(), role: "work".into() }).unwrap();
    let create = AccessOp::CreateToken { hash: hash('b'), principal: "orders".into(), ttl_ms: None };
    world.change(&nobody(), create).unwrap();
    let mut both = with_certificate("host7");
    both.identities.extend(with_token('b').identities);
    let session = world.open(&both, false).unwrap();
    world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
    let end = Command::EndUnauthorised { sessions: vec![session] };
    assert_eq!(world.apply(end.clone()).reply, Ok(Reply::SessionsExpired(vec![])), "its principal has a role");
    world.change(&with_token('a'), AccessOp::RevokeToken { id: id_of('b') }).unwrap();
    assert!(is_unauthenticated(&world.state.check_owner(&both, session)));
    assert_eq!(world.apply(end).reply, Ok(Reply::SessionsExpired(vec![session])));
}

#[test]
fn enabling_gives_nobody_the_rights_of_an_administrator_by_chance() {
    let mut world = World::new();
    let rules = vec![rule(Resource::Locks, "", Rights::READ)];
    world.change(&nobody(), AccessOp::PutRole { name: "admin".into(), rules, version: None }).unwrap();
    world.change(&nobody(), AccessOp::Grant { principal: "intern".into(), role: "admin".into() }).unwrap();
    assert!(is_forbidden(&world.change(&nobody(), AccessOp::Enable { first: Some(hash('a')) })));
    assert!(!world.state.access().is_enabled());
}

#[test]
fn the_last_use_of_a_token_is_recorded_to_the_hour() {
    let mut world = World::with_role(&[]);
    let (version, checksum) = (world.state.access().version(), world.state.checksum());
    let uses = |world: &World| -> Vec<Option<u64>> {
        world.state.access().tokens().map(|(_, token)| token.last_used_ms).collect()
    };
    assert_eq!(uses(&world), [None, None]);
    let record = |ids: &[Arc<str>]| Command::RecordTokenUses { tokens: ids.to_vec() };
    world.clock_ms = 5 * TOKEN_USE_MS + 7;
    let first = world.apply(record(&[id_of('b'), id_of('f'), "b".into(), "".into()]));
    assert!(first.changed && first.reply.is_ok() && first.events.is_empty());
    assert_eq!(uses(&world), [None, Some(5 * TOKEN_USE_MS)], "an unknown token records nothing");
    assert_eq!(world.state.access().version(), version, "no right depends on it");
    assert_ne!(world.state.checksum(), checksum);
    world.clock_ms = 6 * TOKEN_USE_MS - 1;
    assert!(!world.apply(record(&[id_of('b')])).changed, "the same hour");
    world.clock_ms = 6 * TOKEN_USE_MS;
    assert!(world.apply(record(&[id_of('b'), id_of('a')])).changed);
    assert_eq!(uses(&world), [Some(6 * TOKEN_USE_MS); 2]);
    let too_many = world.apply(record(&vec![id_of('a'); MAX_BULK + 1]));
    assert!(matches!(too_many.reply, Err(Refusal::BadArguments(_))));
}

#[test]
fn an_expired_or_revoked_token_records_no_use() {
    let mut world = World::enabled();
    let (hash, principal) = (hash('c'), "orders".into());
    let create = AccessOp::CreateToken { hash, principal, ttl_ms: Some(1_000) };
    world.change(&with_token('a'), create).unwrap();
    world.token('d', "orders");
    world.change(&with_token('a'), AccessOp::RevokeToken { id: id_of('d') }).unwrap();
    world.clock_ms += 1_000;
    let record = Command::RecordTokenUses { tokens: vec![id_of('c'), id_of('d')] };
    assert!(!world.apply(record).changed);
    assert!(world.state.access().tokens().all(|(_, token)| token.last_used_ms.is_none()));
}

#[test]
fn uses_of_tokens_survive_a_snapshot() {
    let mut world = World::with_role(&[]);
    world.apply(Command::RecordTokenUses { tokens: vec![id_of('b')] });
    through_a_snapshot(&world.state);
    let bytes = snapshot(&world.state);
    assert!(!bytes.windows(2).any(|two| two == b"lk_"), "no token is in it");
}

/// The frontend has verified the JWT; its principal is one like the others.
#[test]
fn the_principal_of_a_jwt_has_roles_like_others() {
    let mut world = World::with_role(&[rule(Resource::Locks, "orders", Rights::ACQUIRE)]);
    let alice =
        Principals { address: None, identities: vec![Identity { scheme: "jwt".into(), id: "jwt:alice".into() }] };
    assert!(is_forbidden(&world.open(&alice, false)), "known, without a role");
    let grant = AccessOp::Grant { principal: "jwt:alice".into(), role: "work".into() };
    world.change(&with_token('a'), grant).unwrap();
    let session = world.open(&alice, false).unwrap();
    world.call(&alice, Some(session), acquire(&["orders"], 1)).unwrap();
    assert!(is_forbidden(&world.call(&alice, Some(session), acquire(&["other"], 2))));
    assert!(is_unauthenticated(&world.call(&nobody(), Some(session), acquire(&["orders"], 3))));
    let revoke = AccessOp::Revoke { principal: "jwt:alice".into(), role: "work".into() };
    world.change(&with_token('a'), revoke).unwrap();
    world.apply(Command::EndUnauthorised { sessions: vec![session] }).reply.unwrap();
    assert!(world.state.session(session).is_none());
}
