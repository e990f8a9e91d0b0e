//! Promise P5 across leaders: three nodes, their tables, and a network that can be cut; consensus is made by hand.

use lockkeeper_consensus::{Committed, Config, Leadership, LogPosition, Members, StateMachine, TransportError};
use lockkeeper_core::{Batch, Command, NodeId, Origin, Zxid};

use super::*;
use crate::replication_double::ReplicationDouble;
use crate::sessions::leader_tasks::LeaderTasks;
use crate::sessions::messages::{KeepaliveGroup, Verdict};
use crate::time::clock::ManualClock;

const MINE: SessionId = SessionId(1);
const VOTERS: [u64; 3] = [1, 2, 3];

#[derive(Default)]
struct TableCalls {
    nodes: Mutex<BTreeMap<u64, Arc<LeaderTasks>>>,
    cut: Mutex<BTreeSet<u64>>,
    /// Nodes that run and do not answer.
    slow: Mutex<BTreeSet<u64>>,
}

impl TableCalls {
    fn serve(&self, from: u64, to: u64, body: &[u8]) -> Result<Bytes, TransportError> {
        let cut = [to, from].iter().any(|node| self.cut.lock().contains(node));
        if self.slow.lock().contains(&to) {
            return Err(TransportError::TimedOut);
        }
        let tasks = self.nodes.lock().get(&to).filter(|_| !cut).cloned().ok_or(TransportError::Refused)?;
        let Ok(SessionMessage::Table(call)) = postcard::from_bytes(body) else { panic!("not for a table") };
        Ok(postcard::to_stdvec(&tasks.liveness.answer_to(from, call)).expect("encoded").into())
    }
}

fn confirm(leadership: Leadership) -> Result<u64, BarrierError> {
    if leadership.leading { Ok(leadership.term) } else { Err(BarrierError::NoLeader) }
}

struct TestNode {
    replica: Arc<Replica>,
    wire: Arc<ReplicationDouble>,
    tasks: Arc<LeaderTasks>,
}

struct ThreeNodes {
    clock: ManualClock,
    net: Arc<TableCalls>,
    nodes: BTreeMap<u64, TestNode>,
    term: u64,
}

impl ThreeNodes {
    /// Three nodes, none of which leads, and a session of ten seconds that opens now.
    fn new() -> Self {
        let mut cluster = Self { clock: ManualClock::default(), net: Arc::default(), nodes: BTreeMap::new(), term: 0 };
        VOTERS.iter().for_each(|id| cluster.start(*id, 1));
        cluster
    }

    /// Starts a node with an empty memory; it applies its log again.
    fn start(&mut self, id: u64, incarnation: u64) {
        let peers: BTreeMap<u64, String> = VOTERS.iter().map(|id| (*id, id.to_string())).collect();
        let config = NodeConfig::new(Config::new("test", id, peers));
        let voters = VOTERS.iter().map(|id| (*id, id.to_string().into())).collect();
        let clock = Arc::new(self.clock.ahead(Duration::from_secs(1_000 * id)));
        let replica = Replica::new(&config, 1, clock, Arc::new(|why| panic!("{why}")));
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "test".into() };
        let origin = Origin { node: NodeId(9), incarnation: 1, sequence: 1 };
        let payload = Batch::consecutive(origin, 0, vec![open]).encode().into();
        replica.apply(&[Committed { position: LogPosition { term: 1, index: 1 }, clock_ms: 1, payload }]);
        let leadership = Leadership { term: self.term, leader: None, leading: false };
        let (net, members) = (self.net.clone(), Members { voters, ..Members::default() });
        let serve = move |to, body: Bytes| net.serve(id, to, &body);
        let wire = Arc::new(ReplicationDouble::new(leadership, members, confirm, serve));
        let tasks = LeaderTasks::new(&config, incarnation, replica.clone(), wire.clone());
        self.net.nodes.lock().insert(id, tasks.clone());
        self.nodes.insert(id, TestNode { replica, wire, tasks });
    }

    /// The node leads a new term, and all nodes that are not cut off know it.
    async fn lead(&mut self, id: u64) {
        self.term += 1;
        let cut = self.net.cut.lock().clone();
        for (node, TestNode { wire, .. }) in self.nodes.iter().filter(|(node, _)| !cut.contains(node)) {
            let now = Leadership { term: self.term, leader: Some(id), leading: *node == id };
            wire.leadership.send_replace(now);
        }
        assert_eq!(self.nodes[&id].tasks.start_term().await, Some(self.term));
    }

    async fn complete(&self, id: u64) {
        self.nodes[&id].tasks.liveness.sync_tables(self.term, || async { true }).await;
    }

    async fn keepalive(&self, at: u64) -> Option<Verdict> {
        let answer = self.nodes[&at].tasks.acknowledge(&KeepaliveGroup { ages: vec![(MINE, 0)] }).await.ok()?;
        Some(answer.verdicts[0])
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(ms);
    }

    fn left_ms(&self, at: u64) -> u64 {
        let TestNode { replica, .. } = &self.nodes[&at];
        let now_ms = replica.now_ms();
        let left = |records: &mut Records| records.leader.as_ref()?.tracker.remaining_ms(MINE, now_ms);
        replica.sessions.with(left).expect("leading, and alive")
    }

    fn cut(&self, nodes: &[u64]) {
        *self.net.cut.lock() = nodes.iter().copied().collect();
    }
}

#[tokio::test]
async fn a_new_leader_goes_on_where_the_last_one_ended() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.complete(1).await;
    cluster.pass(1_000);
    assert_eq!(cluster.keepalive(1).await, Some(Verdict::Alive(10_000)));
    cluster.pass(4_000);
    cluster.cut(&[1]);
    cluster.lead(2).await;
    // Rounded in favour of the session, by a millisecond on each way.
    assert!((5_995..=6_002).contains(&cluster.left_ms(2)), "{}", cluster.left_ms(2));
    // And again, with the first node back and its memory lost.
    cluster.cut(&[]);
    cluster.start(1, 2);
    cluster.nodes[&1].wire.leadership.send_replace(Leadership { term: cluster.term, leader: Some(2), leading: false });
    cluster.complete(2).await;
    cluster.pass(3_000);
    cluster.cut(&[2]);
    cluster.lead(1).await;
    assert!((2_995..=3_004).contains(&cluster.left_ms(1)), "{}", cluster.left_ms(1));
}

#[tokio::test]
async fn what_a_node_heard_without_a_leader_counts_for_the_next() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.complete(1).await;
    cluster.pass(6_000);
    cluster.cut(&[1]);
    cluster.nodes[&3].replica.sessions.touch(MINE, 10_000);
    cluster.pass(2_000);
    cluster.lead(2).await;
    assert!((8_000..=8_002).contains(&cluster.left_ms(2)), "{}", cluster.left_ms(2));
}

/// A running node does not answer in time. It may have heard from the session while there was no leader, and may report
/// that later.
#[tokio::test]
async fn who_is_slow_to_answer_a_new_leader_costs_no_session_its_life() {
    for (slow, spared_ms) in [(true, 2_000), (false, 300)] {
        let mut cluster = ThreeNodes::new();
        cluster.lead(1).await;
        cluster.complete(1).await;
        // Far past its timeout, as far as the others know.
        cluster.pass(11_000);
        match slow {
            true => drop(cluster.net.slow.lock().insert(1)),
            false => cluster.cut(&[1]),
        }
        cluster.lead(2).await;
        let silent = || {
            let TestNode { replica, .. } = &cluster.nodes[&2];
            let now_ms = replica.now_ms();
            let take = |records: &mut Records| Some(records.leader.as_mut()?.tracker.take_silent(now_ms, 10));
            replica.sessions.with(take).expect("leading")
        };
        cluster.pass(spared_ms - 1);
        assert!(silent().is_empty());
        cluster.pass(1);
        assert_eq!(silent(), [MINE]);
    }
}

#[tokio::test]
async fn a_memory_that_was_lost_does_not_count() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.complete(1).await;
    cluster.pass(5_000);
    // Only nodes 1 and 3 have the keepalive; both forget it.
    cluster.cut(&[2]);
    assert_eq!(cluster.keepalive(1).await, Some(Verdict::Alive(10_000)));
    cluster.cut(&[]);
    cluster.start(3, 2);
    cluster.pass(2_000);
    cluster.cut(&[1]);
    cluster.lead(2).await;
    assert_eq!(cluster.left_ms(2), 10_000, "in full");
}

#[tokio::test]
async fn nothing_is_acknowledged_without_a_majority_of_tables_or_behind_the_next_leader() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.cut(&[2, 3]);
    assert_eq!(cluster.keepalive(1).await, None);
    cluster.cut(&[3]);
    assert_eq!(cluster.keepalive(1).await, Some(Verdict::Alive(10_000)));
    // The others have another leader, which this one does not know.
    cluster.complete(1).await;
    cluster.cut(&[1]);
    cluster.lead(2).await;
    cluster.cut(&[]);
    assert_eq!(cluster.keepalive(1).await, None);
    assert_eq!(cluster.keepalive(2).await, Some(Verdict::Alive(10_000)));
}

/// A group whose signs of life went with a round that failed joins the next round.
#[tokio::test]
async fn the_table_of_a_node_that_is_gone_is_not_counted_any_more() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.complete(1).await;
    let whole = |cluster: &ThreeNodes| cluster.nodes[&1].tasks.liveness.whole_tables();
    assert_eq!(whole(&cluster), 3);
    cluster.cut(&[3]);
    for _ in 0..12 {
        cluster.pass(1_000);
        cluster.complete(1).await;
        // The copies are tasks of their own.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(whole(&cluster), 2);
}

#[tokio::test]
async fn what_a_failed_copy_took_goes_with_the_next() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    cluster.complete(1).await;
    cluster.pass(6_000);
    cluster.cut(&[2, 3]);
    assert_eq!(cluster.keepalive(1).await, None);
    let copy = || cluster.nodes[&1].tasks.liveness.replicate();
    assert_eq!(copy().await, Err(BarrierError::NoQuorum));
    // Nor is it lost if this node's own table refuses it.
    let wire = &cluster.nodes[&1].wire;
    wire.leadership.send_modify(|leadership| leadership.term = 0);
    assert_eq!(copy().await, Err(BarrierError::NoLeader));
    wire.leadership.send_modify(|leadership| leadership.term = 1);
    cluster.cut(&[]);
    assert_eq!(copy().await, Ok(1));
    cluster.pass(1_000);
    cluster.cut(&[1]);
    cluster.lead(2).await;
    assert!((9_000..=9_002).contains(&cluster.left_ms(2)), "{}", cluster.left_ms(2));
}

#[tokio::test]
async fn a_call_of_an_unknown_term_or_to_an_earlier_life_has_no_effect() {
    let mut cluster = ThreeNodes::new();
    cluster.lead(1).await;
    let liveness = &cluster.nodes[&2].tasks.liveness;
    let voters = VOTERS.to_vec();
    let collect = |term| TableCall::Collect { term, voters: voters.clone(), after: None };
    // Nor has a call of a node that does not lead that term: it would make tables whole that are not.
    let finish = |incarnation| TableCall::Finish { term: 1, number: 1, incarnation, voters: voters.clone() };
    for call in [finish(1), TableCall::Begin { term: 1, number: 1, zxid: Zxid(0) }, collect(1), collect(0)] {
        assert_eq!(liveness.answer_to(3, call), TableAnswer::Fenced);
    }
    assert_eq!(liveness.answer_to(1, collect(2)), TableAnswer::NotYet);
    // For a term whose leader is not known here, every caller asks again.
    let wire = &cluster.nodes[&2].wire;
    wire.leadership.send_modify(|leadership| leadership.leader = None);
    assert_eq!(liveness.answer_to(1, collect(1)), TableAnswer::NotYet);
    wire.leadership.send_modify(|leadership| leadership.leader = Some(1));
    assert!(matches!(liveness.answer_to(1, collect(1)), TableAnswer::Page { whole: false, .. }));
    assert_eq!(liveness.answer(collect(u64::MAX)), TableAnswer::NotYet);
    let begin = TableCall::Begin { term: 1, number: 1, zxid: Zxid(1_000) };
    assert_eq!(liveness.answer(begin), TableAnswer::NotYet, "it has not applied so much");
    let begin = TableCall::Begin { term: 1, number: 1, zxid: Zxid(0) };
    assert_eq!(liveness.answer(begin), TableAnswer::Ready { incarnation: 1 });
    assert_eq!(liveness.answer(finish(7)), TableAnswer::NotYet, "that was another process");
    assert_eq!(liveness.answer(finish(1)), TableAnswer::Accepted { whole: true });
    assert!(matches!(liveness.answer(collect(1)), TableAnswer::Page { whole: true, .. }));
}
