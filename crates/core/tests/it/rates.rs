//! Rate limits against a naive model that counts each millisecond, and the bound that they promise.

use lockkeeper_core::limits::MAX_NODES_PER_PAGE;
use lockkeeper_core::rate::LEASE_MS;
use lockkeeper_core::*;
use proptest::prelude::*;

use super::access::{hash, with_token};
use super::world::{World, path, through_a_snapshot};

impl World {
    fn take(&mut self, rate: Rate, permits: &[u32], ahead: u32) -> Result<Reply, Refusal> {
        self.act(Actor::default(), take("a", rate, permits, ahead))
    }
}

fn take(text: &str, rate: Rate, permits: &[u32], ahead: u32) -> RateOp {
    RateOp::Take { name: name(text), rate, permits: permits.to_vec(), ahead, reconfigure: false }
}

fn name(text: &str) -> RateName {
    RateName::parse(text).unwrap()
}

fn rate(limit: u32, per_ms: u64) -> Rate {
    Rate { limit, per_ms }
}

fn create(at: &str, kind: NodeKind) -> NodeOp {
    let (data, acl) = ((*b"x").into(), vec![AclEntry::open()]);
    NodeOp::Create { path: path(at), data, kind, sequential: Sequential::No, acl }
}

/// `per_ms` units to a permit, of which `limit` come back in each millisecond while some are missing.
#[derive(Clone)]
struct Naive {
    limit: u64,
    per_ms: u64,
    now: u64,
    missing: u64,
    /// When each leased permit begins to come back.
    leased: Vec<u64>,
}

impl Naive {
    fn tick(&mut self) {
        self.now += 1;
        self.missing = self.missing.saturating_sub(self.limit);
        let before = self.leased.len();
        self.leased.retain(|ends| *ends > self.now);
        self.missing += (before - self.leased.len()) as u64 * self.per_ms;
    }

    fn fits(&self, permits: u64) -> bool {
        self.missing + (self.leased.len() as u64 + permits) * self.per_ms <= self.limit * self.per_ms
    }

    fn wait_ms(&self, permits: u64) -> u64 {
        let mut later = self.clone();
        while !later.fits(permits) {
            later.tick();
        }
        later.now - self.now
    }

    fn take(&mut self, permits: &[u32], ahead: u32) -> (u32, u32, u32, u64) {
        let (mut granted, mut leased, mut wait_ms) = (0, 0, 0);
        for permits in permits {
            if !self.fits((*permits).into()) {
                wait_ms = self.wait_ms((*permits).into());
                break;
            }
            self.missing += u64::from(*permits) * self.per_ms;
            granted += 1;
        }
        let is_leased = self.per_ms >= 1_000 && granted as usize == permits.len();
        let most = (self.limit / 10).min(self.limit * 100 / self.per_ms);
        while is_leased && leased < ahead && u64::from(leased) < most && self.fits(1) {
            self.leased.push((self.now + LEASE_MS).div_ceil(50) * 50);
            leased += 1;
        }
        let left = (0..).take_while(|more| self.fits(more + 1)).count() as u32;
        (granted, leased, left, wait_ms)
    }
}

/// Permits that somebody may use at any moment of this time.
#[derive(Debug)]
struct HandedOut {
    from: u64,
    to: u64,
    permits: u64,
}

/// In no interval are there more than the limit, and what comes back meanwhile.
fn check_bound(rate: Rate, handed_out: &[HandedOut]) {
    for from in handed_out.iter().map(|it| it.to) {
        for to in handed_out.iter().map(|it| it.from).filter(|to| *to >= from) {
            let within = handed_out.iter().filter(|it| it.from <= to && it.to >= from);
            let permits: u64 = within.map(|it| it.permits).sum();
            let most = u64::from(rate.limit) * (rate.per_ms + to - from);
            assert!(permits * rate.per_ms <= most, "{permits} of {rate} from {from} to {to}: {handed_out:?}");
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    wait_ms: u16,
    permits: Vec<u32>,
    ahead: u32,
    also: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let wait_ms = prop_oneof![3 => 0..3_u16, 3 => 0..60_u16, 1 => 0..600_u16];
    let permits = prop::collection::vec(prop_oneof![4 => 1..3_u32, 1 => 1..40_u32], 1..4);
    let ahead = prop_oneof![1 => Just(0), 2 => 0..30_u32];
    (wait_ms, permits, ahead, 0..16_u8).prop_map(|(wait_ms, permits, ahead, also)| Step {
        wait_ms,
        permits,
        ahead,
        also,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bucket_is_what_counting_makes_it_and_never_gives_too_much(
        limit in prop_oneof![1..12_u32, 40..300_u32],
        per_ms in prop_oneof![Just(1_000), Just(1_777), 1_000..4_000_u64, 1..900_u64],
        steps in prop::collection::vec(step(), 80),
    ) {
        let rate = rate(limit, per_ms);
        let mut world = World::encoded();
        let mut naive =
            Naive { limit: limit.into(), per_ms, now: world.clock_ms, missing: 0, leased: Vec::new() };
        let mut handed_out = Vec::new();
        for Step { wait_ms, permits, ahead, also } in steps {
            world.clock_ms += u64::from(wait_ms);
            (0..wait_ms).for_each(|_| naive.tick());
            let permits: Vec<u32> = permits.into_iter().map(|permits| permits.min(limit)).collect();
            let (granted, leased, available, wait_ms) = naive.take(&permits, ahead);
            let taken = world.take(rate, &permits, ahead);
            prop_assert_eq!(taken, Ok(Reply::PermitsTaken { granted, leased, available, wait_ms }));
            let now = world.clock_ms;
            let direct = permits[..granted as usize].iter().map(|permits| u64::from(*permits)).sum();
            handed_out.push(HandedOut { from: now, to: now, permits: direct });
            handed_out.push(HandedOut { from: now, to: now + LEASE_MS, permits: leased.into() });
            match also {
                0 => world.state = through_a_snapshot(&world.state),
                1 | 2 => drop(world.apply(Command::Reap { paths: vec![name("a").path()] }).reply),
                _ => {}
            }
            let is_full = naive.missing == 0 && naive.leased.is_empty();
            prop_assert_eq!(world.state.rate(&name("a")).unwrap().is_none(), is_full);
        }
        check_bound(rate, &handed_out);
    }
}

#[test]
fn a_full_bucket_is_not_stored() {
    let mut world = World::encoded();
    let taken = |granted, available, wait_ms| Ok(Reply::PermitsTaken { granted, leased: 0, available, wait_ms });
    assert_eq!(world.take(rate(10, 1_000), &[7], 0), taken(1, 3, 0));
    assert_eq!(world.take(rate(10, 1_000), &[4], 0), taken(0, 3, 100));
    let view = world.state.rate(&name("a")).unwrap().unwrap();
    assert_eq!((view.available, view.leased, view.full_at_ms), (3, 0, world.clock_ms + 700));
    let node = path("/rates/a");
    assert_eq!(world.state.get(&node).unwrap().kind, NodeKind::Ttl { ttl_ms: 700 });
    assert_eq!(world.state.reapable(world.clock_ms + 700, 9), std::slice::from_ref(&node));
    world.clock_ms += 699;
    assert_eq!(world.apply(Command::Reap { paths: vec![node.clone()] }).reply, Ok(Reply::Reaped(vec![])));
    world.clock_ms += 1;
    assert_eq!(world.state.rate(&name("a")).unwrap().unwrap().available, 9, "the state's clock stands");
    assert_eq!(world.apply(Command::Reap { paths: vec![node.clone()] }).reply, Ok(Reply::Reaped(vec![node])));
    assert_eq!(world.state.rate(&name("a")), Ok(None));
    let zxid = world.state.zxid();
    assert_eq!(world.take(rate(10, 1_000), &[10, 1], 0), taken(1, 0, 100));
    assert_eq!(world.state.zxid().0, zxid.0 + 1);
    assert_eq!(world.take(rate(10, 1_000), &[1], 5), taken(0, 0, 100), "nothing is granted");
    assert_eq!(world.state.zxid().0, zxid.0 + 1, "and so nothing changes");
}

#[test]
fn another_rate_is_refused_until_the_bucket_is_full_or_it_is_reconfigured() {
    let mut world = World::encoded();
    world.take(rate(10, 1_000), &[5], 0).unwrap();
    let mismatch = Refusal::RateMismatch { name: name("a"), limit: 10, per_ms: 1_000 };
    assert_eq!(world.take(rate(20, 1_000), &[1], 0), Err(mismatch.clone()));
    let reconfigured =
        RateOp::Take { name: name("a"), rate: rate(20, 1_000), permits: vec![16], ahead: 0, reconfigure: true };
    let reply = world.act(Actor::default(), reconfigured);
    assert_eq!(reply, Ok(Reply::PermitsTaken { granted: 0, leased: 0, available: 15, wait_ms: 50 }));
    let mismatch = Refusal::RateMismatch { name: name("a"), limit: 20, per_ms: 1_000 };
    assert_eq!(world.take(rate(10, 1_000), &[1], 0), Err(mismatch));
    world.clock_ms += 250;
    let taken = world.take(rate(3, 60_000), &[3], 0);
    assert_eq!(taken, Ok(Reply::PermitsTaken { granted: 1, leased: 0, available: 0, wait_ms: 0 }));
    assert_eq!(world.state.node_count(), 3, "in the same node");
}

#[test]
fn arguments_are_bounded() {
    let mut world = World::encoded();
    let mut is_bad = |rate, permits: &[u32]| matches!(world.take(rate, permits, 0), Err(Refusal::BadArguments(_)));
    for bad in [rate(0, 1), rate(1, 0), rate(10_000_001, 1), rate(1, 366 * 86_400_000 + 1)] {
        assert!(is_bad(bad, &[1]), "{bad}");
    }
    for permits in [&[][..], &[0], &[11], &[1, 11], &[1; 1_025]] {
        assert!(is_bad(rate(10, 1_000), permits), "{permits:?}");
    }
    assert!(!is_bad(rate(10, 1_000), &[1; 1_024]));
}

#[test]
fn the_tree_of_buckets_is_the_services_own() {
    let mut world = World::encoded();
    world.apply(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "".into() }).reply.unwrap();
    world.act(Actor::default(), take("a/b", rate(10, 1_000), &[5], 0)).unwrap();
    let set = |at: &str| NodeOp::SetData { path: path(at), data: (*b"x").into(), version: None };
    let delete = |at: &str| NodeOp::Delete { path: path(at), version: None };
    let ops = [
        create("/rates/x", NodeKind::Ttl { ttl_ms: 1 }),
        create("/rates/x", NodeKind::Persistent),
        create("/rates/a/b/c", NodeKind::Container),
        set("/rates/a/b"),
        set("/rates"),
        delete("/rates/a/b"),
        NodeOp::Add { path: path("/rates/c"), delta: 1, min: None, max: None },
    ];
    for op in ops {
        let reply = world.act(Actor::default(), op.clone());
        assert!(matches!(reply, Err(Refusal::Forbidden(_))), "{op:?}: {reply:?}");
    }
    let added = world.act(Actor::default(), NodeOp::Add { path: path("/rates/a/b"), delta: 1, min: None, max: None });
    assert!(matches!(added, Err(Refusal::NotANumber { .. })), "{added:?}");
    world.act(Actor::default(), create("/rates/dir", NodeKind::Container)).unwrap();
    // A bucket and a directory do not share a name.
    for taken in ["a", "a/b/c", "dir"] {
        let reply = world.act(Actor::default(), take(taken, rate(10, 1_000), &[5], 0));
        assert!(matches!(reply, Err(Refusal::BadArguments(_))), "{taken}: {reply:?}");
    }
    // By force it is gone, and full again.
    let force = Actor { may_force: true, ..Actor::default() };
    let outcome = world.apply(Command::Do { actor: force, op: delete("/rates/a/b").into() });
    assert!(outcome.events.iter().any(|event| matches!(event, Event::ForcedDeletion { .. })), "{outcome:?}");
    assert_eq!(world.state.rate(&name("a/b")), Ok(None));
}

#[test]
fn a_namespace_with_a_limit_bounds_its_buckets() {
    let mut world = World::encoded();
    let limits = NamespaceLimits { nodes: Some(3), ..NamespaceLimits::default() };
    let put = AccessOp::PutNamespace { name: "orders".into(), owner: None, limits, version: None };
    world.act(Actor::default(), put).unwrap();
    let mut take = |text: &str| world.act(Actor::default(), take(text, rate(10, 1_000), &[1], 0));
    take("orders/1").unwrap();
    take("orders/2").unwrap();
    assert!(matches!(take("orders/3"), Err(Refusal::NamespaceFull { bound: NamespaceBound::Nodes, .. })));
    take("orders/1").unwrap();
    take("parts/3").unwrap();
}

#[test]
fn buckets_are_listed_in_order() {
    let mut world = World::encoded();
    for text in ["b", "a/2", "a/1", "ab", "c"] {
        world.act(Actor::default(), take(text, rate(10, 1_000), &[1], 0)).unwrap();
    }
    let page = |prefix, after, limit| {
        let page = world.state.rates(prefix, after, limit);
        (page.rates.into_iter().map(|(_, name, _)| name).collect::<Vec<_>>(), page.next)
    };
    let names = |prefix, after| page(prefix, after, 100).0;
    assert_eq!(names("", None), ["a/1", "a/2", "ab", "b", "c"]);
    assert_eq!(names("a", None), ["a/1", "a/2", "ab"]);
    assert_eq!(names("a/", Some("a/1")), ["a/2"]);
    assert_eq!(names("b", Some("a/1")), ["b"]);
    assert_eq!(names("", Some("b")), ["c"]);
    assert_eq!(names("x", None), [""; 0]);
    // The directory `a` is looked at and not listed.
    assert_eq!(page("", None, 1), (vec!["a/1"], Some("a/1")));
    assert_eq!(page("", Some("a/1"), 3), (vec!["a/2", "ab", "b"], Some("b")));
    assert_eq!(page("", Some("b"), 3), (vec!["c"], None));
}

#[test]
fn a_page_looks_at_a_bounded_number_of_nodes() {
    let mut world = World::encoded();
    for text in 0..=MAX_NODES_PER_PAGE {
        world.act(Actor::default(), take(&format!("{text:05}"), rate(10, 1_000), &[10], 0)).unwrap();
    }
    world.clock_ms += 2_000;
    // All are full by now, and their nodes are not removed yet.
    world.act(Actor::default(), take("x", rate(10, 1_000), &[1], 0)).unwrap();
    let first = world.state.rates("", None, 10);
    assert_eq!((first.rates.len(), first.next), (0, Some("04999")));
    let second = world.state.rates("", first.next, 10);
    assert_eq!((second.rates.len(), second.next), (1, None));
}

#[test]
fn a_role_says_who_takes() {
    let mut world = World::encoded();
    let as_admin = || Actor { principals: with_token('a'), ..Actor::default() };
    world.act(Actor::default(), AccessOp::Enable { first: Some(hash('a')) }).unwrap();
    let rule = Rule { resource: Resource::Rates, prefix: "mails".into(), rights: Rights::ACQUIRE };
    let put = AccessOp::PutRole { name: "mailer".into(), rules: vec![rule], version: None };
    let rule = Rule { resource: Resource::Cluster, prefix: "".into(), rights: Rights::BACKUP };
    let backup = AccessOp::PutRole { name: "night".into(), rules: vec![rule], version: None };
    world.act(as_admin(), put).unwrap();
    world.act(as_admin(), backup).unwrap();
    let rule = Rule { resource: Resource::Cluster, prefix: "".into(), rights: Rights(64) };
    let unknown = AccessOp::PutRole { name: "more".into(), rules: vec![rule], version: None };
    assert!(matches!(world.act(as_admin(), unknown), Err(Refusal::BadArguments(_))));
    world.act(as_admin(), AccessOp::Grant { principal: "anyone".into(), role: "mailer".into() }).unwrap();
    let mails = || take("mails/a", rate(10, 1_000), &[1], 0);
    world.act(Actor::default(), mails()).unwrap();
    assert_eq!(world.state.check_taking(&Principals::default(), &name("mails/a")), Ok(()));
    let sms = world.act(Actor::default(), take("sms", rate(10, 1_000), &[1], 0));
    assert!(matches!(sms, Err(Refusal::Unauthenticated(_) | Refusal::Forbidden(_))), "{sms:?}");
    assert!(world.state.check_taking(&Principals::default(), &name("sms")).is_err());
    world.act(as_admin(), take("sms", rate(10, 1_000), &[1], 0)).unwrap();
}
