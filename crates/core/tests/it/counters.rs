//! Bounded additions: what they refuse, and that a refusal changes nothing.

use lockkeeper_core::*;

use super::world::{World, path};

impl World {
    /// Applies a command that says truly whether it changed anything.
    fn apply_checked(&mut self, command: Command) -> Result<Reply, Refusal> {
        let before = self.state.checksum();
        let outcome = self.apply(command);
        assert_eq!(outcome.changed, before != self.state.checksum());
        outcome.reply
    }

    fn run(&mut self, op: impl Into<Op>) -> Result<Reply, Refusal> {
        self.apply_checked(Command::Do { actor: Actor::default(), op: op.into() })
    }

    fn data(&self, at: &str) -> Option<Vec<u8>> {
        self.state.get(&path(at)).map(|node| node.data.to_vec())
    }
}

fn add(at: &str, delta: i64, min: impl Into<Option<i64>>, max: impl Into<Option<i64>>) -> NodeOp {
    NodeOp::Add { path: path(at), delta, min: min.into(), max: max.into() }
}

fn create(at: &str, data: &[u8]) -> NodeOp {
    let (data, acl) = (data.into(), vec![AclEntry::open()]);
    NodeOp::Create { path: path(at), data, kind: NodeKind::Persistent, sequential: Sequential::No, acl }
}

#[test]
fn a_sum_is_within_its_bounds_or_refused() {
    let mut world = World::encoded();
    assert_eq!(world.run(add("/n", 0, 0, 5)), Ok(Reply::Added(0)));
    assert_eq!(world.data("/n"), None, "0 makes no node");
    assert_eq!(world.run(add("/n", 5, 0, 5)), Ok(Reply::Added(5)));
    assert_eq!(world.data("/n").as_deref(), Some(&b"5"[..]));
    let refused = |value, delta, bound| Err(Refusal::OutOfBounds { path: path("/n"), value, delta, bound });
    assert_eq!(world.run(add("/n", 1, 0, 5)), refused(5, 1, 5));
    assert_eq!(world.run(add("/n", -6, 0, 5)), refused(5, -6, 0));
    assert_eq!(world.run(add("/n", 0, 7, 9)), Ok(Reply::Added(5)), "0 leads nowhere");
    assert_eq!(world.run(add("/n", -5, 0, 5)), Ok(Reply::Added(0)));
    // A number beyond a bound can come back, in steps.
    assert_eq!(world.run(add("/n", 20, None, None)), Ok(Reply::Added(20)));
    assert_eq!(world.run(add("/n", 1, 0, 5)), refused(20, 1, 5));
    assert_eq!(world.run(add("/n", -1, 0, 5)), Ok(Reply::Added(19)));
    // Without a bound, that of 64 bits.
    assert_eq!(world.run(add("/n", i64::MAX, None, None)), refused(19, i64::MAX, i64::MAX));
    assert_eq!(world.run(add("/m", i64::MIN, None, None)), Ok(Reply::Added(i64::MIN)));
    let refused = Refusal::OutOfBounds { path: path("/m"), value: i64::MIN, delta: -1, bound: i64::MIN };
    assert_eq!(world.run(add("/m", -1, None, None)), Err(refused));
}

#[test]
fn a_node_that_is_missing_needs_a_parent_and_one_with_other_data_is_refused() {
    let mut world = World::encoded();
    assert_eq!(world.run(add("/a/n", 1, None, None)), Err(Refusal::NoNode(path("/a"))));
    assert_eq!(world.run(add("/a/n", 0, None, None)), Err(Refusal::NoNode(path("/a"))));
    for data in [&b""[..], b"x", b"1.5", b" 1", b"9223372036854775808", b"\xff"] {
        world.run(create("/n", data)).unwrap();
        let bytes = data.len() as u32;
        assert_eq!(world.run(add("/n", 1, None, None)), Err(Refusal::NotANumber { path: path("/n"), bytes }));
        world.run(NodeOp::Delete { path: path("/n"), version: None }).unwrap();
    }
    world.run(create("/n", b"-7")).unwrap();
    assert_eq!(world.run(add("/n", 2, None, None)), Ok(Reply::Added(-5)));
}

#[test]
fn a_transaction_adds_all_or_nothing() {
    let mut world = World::encoded();
    let both = |from: i64| Op::Multi(vec![add("/ann", -from, 0, None), add("/bob", from, None, 10), create("/x", b"")]);
    assert!(matches!(world.run(both(1)), Err(Refusal::MultiFailed { index: 0, .. })));
    world.run(add("/ann", 50, None, None)).unwrap();
    let Err(Refusal::MultiFailed { index: 1, cause }) = world.run(both(11)) else { panic!("it was not refused") };
    assert_eq!(*cause, Refusal::OutOfBounds { path: path("/bob"), value: 0, delta: 11, bound: 10 });
    assert_eq!((world.data("/ann"), world.data("/bob")), (Some(b"50".to_vec()), None));
    let Ok(Reply::Multi(replies)) = world.run(both(10)) else { panic!("it was refused") };
    assert_eq!(replies[..2], [Reply::Added(40), Reply::Added(10)]);
}

#[test]
fn a_repeated_addition_counts_once() {
    let mut world = World::encoded();
    let opened =
        world.apply_checked(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "".into() });
    let Ok(Reply::SessionOpened { session, .. }) = opened else { panic!("{opened:?}") };
    let mut request = |id, op: NodeOp| {
        let request = Some(RequestKey { id: RequestId(id), acknowledged: vec![] });
        world.apply_checked(Command::Do { actor: Actor::of(session).asking(request), op: op.into() })
    };
    assert_eq!(request(1, add("/n", 2, None, 3)), Ok(Reply::Added(2)));
    assert_eq!(request(1, add("/n", 2, None, 3)), Ok(Reply::Added(2)));
    assert_eq!(request(1, add("/n", 1, None, 3)), Err(Refusal::RequestMismatch));
    assert!(matches!(request(2, add("/n", 2, None, 3)), Err(Refusal::OutOfBounds { .. })));
    assert_eq!(request(3, add("/n", 1, None, 3)), Ok(Reply::Added(3)));
}
