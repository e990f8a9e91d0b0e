//! The limits of namespaces where principals come in (promise P13); the golden script has the rest.

use lockkeeper_core::access::AccessOp;
use lockkeeper_core::limits::MAX_NAMESPACES;
use lockkeeper_core::*;

use super::access::{acquire, is_forbidden, nobody, with_certificate, with_token};
use super::world::{World, through_a_snapshot};

fn limit(name: &str, owner: Option<&str>, limits: NamespaceLimits) -> AccessOp {
    AccessOp::PutNamespace { name: name.into(), owner: owner.map(Into::into), limits, version: None }
}

fn sessions(most: u64) -> NamespaceLimits {
    NamespaceLimits { sessions: Some(most), ..NamespaceLimits::default() }
}

fn usage(world: &World, name: &str) -> NamespaceUsage {
    world.state.namespaces().find(|(known, ..)| *known == name).unwrap().2
}

fn is_full<T>(reply: &Result<T, Refusal>, bound: NamespaceBound) -> bool {
    matches!(reply, Err(Refusal::NamespaceFull { bound: full, .. }) if *full == bound)
}

#[test]
fn sessions_of_the_owner_count_even_if_they_own_nothing() {
    let mut world = World::new();
    world.change(&nobody(), limit("orders", Some("billing"), sessions(2))).unwrap();
    let billing = with_certificate("billing");
    let first = world.open(&billing, false).unwrap();
    world.open(&billing, false).unwrap();
    assert!(is_full(&world.open(&billing, false), NamespaceBound::Sessions));
    let other = world.open(&with_certificate("other"), false).unwrap();
    assert!(is_full(&world.act(Actor::of(other), acquire(&["orders/1"], 1)), NamespaceBound::Sessions));
    world.act(Actor::of(other), acquire(&["parts/1"], 2)).unwrap();
    // A session of the owner counts once, whatever it owns.
    world.act(Actor::of(first), acquire(&["orders/1", "orders/2"], 3)).unwrap();
    assert_eq!(usage(&world, "orders").sessions, 2);
    world.apply(Command::CloseSession { session: first });
    assert_eq!(usage(&world, "orders").sessions, 1);
    world.act(Actor::of(other), acquire(&["orders/1"], 4)).unwrap();
    assert!(is_full(&world.open(&billing, false), NamespaceBound::Sessions));
}

#[test]
fn a_session_stays_in_its_namespace_through_a_snapshot_and_a_change_of_the_owner() {
    let mut world = World::new();
    world.change(&nobody(), limit("orders", Some("billing"), sessions(1))).unwrap();
    world.open(&with_certificate("billing"), false).unwrap();
    world.state = through_a_snapshot(&world.state);
    world.change(&nobody(), limit("orders", Some("other"), sessions(1))).unwrap();
    assert!(is_full(&world.open(&with_certificate("other"), false), NamespaceBound::Sessions));
    world.open(&with_certificate("billing"), false).unwrap();
    // Without limits nothing is counted; with new ones all that is there is.
    world.change(&nobody(), AccessOp::DeleteNamespace { name: "orders".into() }).unwrap();
    world.open(&with_certificate("other"), false).unwrap();
    world.change(&nobody(), limit("orders", None, sessions(1))).unwrap();
    assert_eq!(usage(&world, "orders").sessions, 1);
}

#[test]
fn a_session_that_proves_later_whose_it_is_counts_from_then_on() {
    let mut world = World::enabled();
    let admin = with_token('a');
    world.change(&admin, limit("orders", Some("billing"), sessions(1))).unwrap();
    world.put("work", &[]);
    world.change(&admin, AccessOp::Grant { principal: "billing".into(), role: "work".into() }).unwrap();
    let session = world.open(&nobody(), true).unwrap();
    assert_eq!(usage(&world, "orders").sessions, 0);
    world.call(&with_certificate("billing"), Some(session), AccessOp::Identify).unwrap();
    assert_eq!(usage(&world, "orders").sessions, 1);
    world.apply(Command::CloseSession { session });
    assert_eq!(usage(&world, "orders").sessions, 0);
}

#[test]
fn limits_are_set_by_administrators_alone_and_by_name() {
    let mut world = World::enabled();
    let admin = with_token('a');
    let billing = with_certificate("billing");
    assert!(is_forbidden(&world.change(&billing, limit("orders", Some("billing"), sessions(9)))));
    world.change(&admin, limit("orders", Some("billing"), sessions(9))).unwrap();
    assert!(is_forbidden(&world.change(&billing, AccessOp::DeleteNamespace { name: "orders".into() })));
    for bad in ["", "a/b", "..", "a\u{0}b", &"x".repeat(256)] {
        let refused = world.change(&admin, limit(bad, None, sessions(1)));
        assert!(matches!(refused, Err(Refusal::BadArguments(_))), "{bad:?}: {refused:?}");
    }
    let refused = world.change(&admin, limit("orders", Some("no principal"), sessions(1)));
    assert!(matches!(refused, Err(Refusal::BadArguments(_))), "{refused:?}");
    for number in 1..MAX_NAMESPACES {
        world.change(&admin, limit(&format!("n{number}"), None, NamespaceLimits::default())).unwrap();
    }
    let refused = world.change(&admin, limit("more", None, NamespaceLimits::default()));
    assert!(matches!(refused, Err(Refusal::BadArguments(_))), "{refused:?}");
    world.change(&admin, limit("orders", None, NamespaceLimits::default())).unwrap();
}

/// A session opened by an owner without a role is nobody's, and counts once somebody takes it: whoever that is.
#[test]
fn a_session_counts_once_however_its_client_proves_who_it_is() {
    let mut world = World::enabled();
    let admin = with_token('a');
    world.change(&admin, limit("orders", Some("billing"), sessions(5))).unwrap();
    world.change(&admin, limit("parts", Some("stock"), sessions(5))).unwrap();
    world.put("work", &[]);
    world.change(&admin, AccessOp::Grant { principal: "stock".into(), role: "work".into() }).unwrap();
    let session = world.open(&with_certificate("billing"), true).unwrap();
    assert_eq!((usage(&world, "orders").sessions, usage(&world, "parts").sessions), (0, 0));
    let mut both = with_certificate("billing");
    both.identities.extend(with_certificate("stock").identities);
    for _ in 0..2 {
        world.call(&both, Some(session), AccessOp::Identify).unwrap();
    }
    let counted = usage(&world, "orders").sessions + usage(&world, "parts").sessions;
    assert_eq!(counted, 1);
    through_a_snapshot(&world.state);
    world.apply(Command::CloseSession { session });
    assert_eq!((usage(&world, "orders").sessions, usage(&world, "parts").sessions), (0, 0));
}

#[test]
fn a_session_that_proves_later_whose_it_is_finds_no_room_in_a_full_namespace() {
    let mut world = World::enabled();
    let admin = with_token('a');
    world.put("work", &[]);
    world.change(&admin, AccessOp::Grant { principal: "billing".into(), role: "work".into() }).unwrap();
    world.change(&admin, limit("orders", Some("billing"), sessions(1))).unwrap();
    let billing = with_certificate("billing");
    let first = world.open(&billing, false).unwrap();
    let second = world.open(&nobody(), true).unwrap();
    assert!(is_full(&world.call(&billing, Some(second), AccessOp::Identify), NamespaceBound::Sessions));
    world.call(&billing, Some(first), AccessOp::Identify).unwrap();
    assert_eq!(usage(&world, "orders").sessions, 1);
}

/// The work is done: without its result it would be done again.
#[test]
fn a_gate_is_finished_in_a_full_namespace() {
    let mut world = World::new();
    let key = GateKey::parse("orders/1").unwrap();
    let begin = GateOp::Begin { key: key.clone(), fingerprint: "f".into(), pending_ms: 1_000, label: "".into() };
    let Ok(Reply::Gate(GateStanding::Proceed { token, .. })) = world.call(&nobody(), None, begin) else {
        panic!("it does not begin")
    };
    let none = NamespaceLimits { bytes: Some(0), nodes: Some(0), ..NamespaceLimits::default() };
    world.change(&nobody(), limit("orders", None, none)).unwrap();
    let result = vec![b'x'; 10_000].into();
    world.call(&nobody(), None, GateOp::Finish { key, token, result, keep_ms: 1_000 }).unwrap();
}

/// The first part of a gate's key is an application key: its gates count from their beginning until they are forgotten,
/// also those that are kept for ever.
#[test]
fn gates_count_in_the_namespace_of_their_key() {
    let mut world = World::new();
    // The directory of the application, and two gates.
    let limits = NamespaceLimits { nodes: Some(3), bytes: Some(4_000), ..NamespaceLimits::default() };
    world.change(&nobody(), limit("billing", None, limits)).unwrap();
    let key = |key: &str| GateKey::parse(key).unwrap();
    let begin = |world: &mut World, at: &str| {
        let begin = GateOp::Begin { key: key(at), fingerprint: "f".into(), pending_ms: 1_000, label: "".into() };
        match world.call(&nobody(), None, begin) {
            Ok(Reply::Gate(GateStanding::Proceed { token, .. })) => Ok(token),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal),
        }
    };
    let one = begin(&mut world, "billing/1").unwrap();
    let two = begin(&mut world, "billing/2").unwrap();
    assert!(is_full(&begin(&mut world, "billing/3"), NamespaceBound::Nodes));
    begin(&mut world, "mail/1").unwrap();
    let finish = GateOp::FinishForever { key: key("billing/1"), token: one, result: (*b"paid").into() };
    world.call(&nobody(), None, finish).unwrap();
    assert_eq!(usage(&world, "billing").nodes, 3, "the directory, a result and a pending gate");
    assert!(is_full(&begin(&mut world, "billing/3"), NamespaceBound::Nodes));
    // A large result is stored, since the work is done, and leaves no room for others.
    world.call(&nobody(), None, GateOp::Fail { key: key("billing/2"), token: two }).unwrap();
    let two = begin(&mut world, "billing/2").unwrap();
    let result = vec![b'x'; 5_000].into();
    world.call(&nobody(), None, GateOp::FinishForever { key: key("billing/2"), token: two, result }).unwrap();
    assert!(usage(&world, "billing").bytes > 5_000);
    let force = Actor { may_force: true, ..Actor::default() };
    world.act(force.clone(), GateOp::Reset { key: key("billing/1"), token: None }).unwrap();
    assert!(is_full(&begin(&mut world, "billing/3"), NamespaceBound::Bytes));
    world.act(force, GateOp::Reset { key: key("billing/2"), token: Some(two) }).unwrap();
    begin(&mut world, "billing/3").unwrap();
    assert_eq!(usage(&world, "billing").nodes, 2);
    world.state.validate().unwrap();
}
