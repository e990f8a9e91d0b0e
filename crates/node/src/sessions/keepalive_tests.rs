//! When keepalives go to the leader, and which of them go together.

use lockkeeper_consensus::{BarrierError, Config, Members, TransportError};
use tokio::sync::mpsc;

use super::*;
use crate::replication_double::ReplicationDouble;
use crate::time::clock::{Clock, ManualClock};

/// A leader elsewhere to which every session is alive, and the groups that it gets.
fn other_leader() -> (Arc<ReplicationDouble>, mpsc::UnboundedReceiver<Vec<SessionId>>) {
    let (groups, sent) = mpsc::unbounded_channel();
    let serve = move |_, body: Bytes| {
        let Ok(SessionMessage::Keepalives(group)) = postcard::from_bytes(&body) else {
            return Err(TransportError::Garbled("no keepalives".into()));
        };
        let verdicts = vec![Verdict::Alive(1_000); group.ages.len()];
        let answer = postcard::to_stdvec(&KeepaliveAnswer { zxid: Zxid(1), verdicts });
        groups.send(group.ages.into_iter().map(|(session, _)| session).collect()).expect("the test goes on");
        answer.map(Bytes::from).map_err(|error| TransportError::Garbled(error.to_string()))
    };
    let leadership = Leadership { term: 3, leader: Some(2), leading: false };
    let confirm = |_| Err(BarrierError::NoLeader);
    (Arc::new(ReplicationDouble::new(leadership, Members::default(), confirm, serve)), sent)
}

#[tokio::test]
async fn keepalives_gather_until_the_first_of_them_is_due() {
    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);
    let ms = Duration::from_millis;
    let config = NodeConfig::new(Config::new("test", 1, [(1, "here".to_owned())].into()));
    let clock = Arc::new(ManualClock::default());
    let replica = Replica::new(&config, 1, clock.clone(), Arc::new(|why| panic!("{why}")));
    let (leader, mut sent) = other_leader();
    let tasks = LeaderTasks::new(&config, 1, replica.clone(), leader.clone());
    let keepalives = Keepalives::start(&config, replica, leader, tasks);
    // All tasks share this thread, and run until they wait.
    let settle = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };

    let now = clock.now();
    let (one, two) = (keepalives.request(ONE, now + ms(30)).unwrap(), keepalives.request(TWO, now + ms(20)).unwrap());
    settle().await;
    clock.advance(19);
    settle().await;
    assert!(sent.try_recv().is_err(), "sent before one of them was due");
    clock.advance(1);
    settle().await;
    assert_eq!(sent.try_recv(), Ok(vec![ONE, TWO]));
    for outcome in [one.await, two.await] {
        assert_eq!(outcome, Ok(KeepaliveOutcome::Alive { timeout_ms: 1_000, zxid: Zxid(1) }));
    }

    let now = clock.now();
    drop(keepalives.request(SessionId(3), now + ms(30)).unwrap());
    let _kept = keepalives.request(ONE, now + ms(30)).unwrap();
    settle().await;
    let _urgent = keepalives.request(TWO, now).unwrap();
    settle().await;
    assert_eq!(sent.try_recv(), Ok(vec![ONE, TWO]), "one that is urgent takes those along whose callers wait");
    settle().await;
    assert!(sent.try_recv().is_err());

    let _patient = keepalives.request(ONE, clock.now() + ms(30)).unwrap();
    keepalives.send_now();
    settle().await;
    assert_eq!(sent.try_recv(), Ok(vec![ONE]));
}
