//! Permits of rate limits over a cluster: never too many, through deaths of leaders, hand-overs and leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Rate, RateName, Refusal};
use lockkeeper_node::{Caller, Consistency, Node, NodeError, PermitsTaken, TakePermits};
use tokio::task::JoinHandle;

use crate::common::*;

fn request(name: &str, rate: Rate, permits: u32) -> TakePermits {
    TakePermits { name: RateName::parse(name).unwrap(), rate, permits, reconfigure: false }
}

async fn take(node: &Node, request: TakePermits) -> Result<PermitsTaken, NodeError> {
    node.take_permits(Caller::default(), request).await.map(|taken| taken.value)
}

/// A grant: decided at some moment from `sent` to `answered`.
#[derive(Clone, Copy, Debug)]
struct Granted {
    sent: Instant,
    answered: Instant,
    permits: u32,
}

/// Takes permits as fast as it can until it is stopped, or its node is gone.
fn taking(
    node: Node,
    rate: Rate,
    permits: u32,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> JoinHandle<Vec<Granted>> {
    tokio::spawn(async move {
        let mut granted = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let sent = Instant::now();
            match take(&node, request("hot", rate, permits)).await {
                Ok(taken) if taken.granted => {
                    granted.push(Granted { sent, answered: Instant::now(), permits });
                    count.fetch_add(permits as usize, Ordering::SeqCst);
                }
                Ok(taken) => tokio::time::sleep(Duration::from_millis(taken.retry_after_ms.min(20))).await,
                Err(NodeError::NoLeader { .. } | NodeError::UnknownOutcome(_)) => {}
                Err(_) if node.status().not_ready_because.is_some() => return granted,
                Err(other) => panic!("{other}"),
            }
        }
        granted
    })
}

/// In no interval were there more than the limit, and what came back meanwhile. The replicated clock may run a
/// hundredth faster than this machine's, and a new leader's may be ahead of the old one's by the time of a message.
fn check_bound(rate: Rate, mut granted: Vec<Granted>, changes_of_leader: u32) {
    granted.sort_by_key(|grant| grant.sent);
    let limit = f64::from(rate.limit);
    for (first, from) in granted.iter().enumerate() {
        let mut within: Vec<_> = granted[first..].iter().map(|grant| (grant.answered, grant.permits)).collect();
        within.sort_unstable();
        let mut permits = 0;
        for (answered, more) in within {
            permits += more;
            let passed_ms = (answered - from.sent).as_secs_f64() * 1_010.0 + f64::from(changes_of_leader) * 50.0;
            let most = limit + limit * passed_ms / rate.per_ms as f64;
            assert!(f64::from(permits) <= most + 1.0, "{permits} in {passed_ms} ms, at most {most}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_too_many_through_the_deaths_of_leaders() {
    let mut cluster = Cluster::of_three().await;
    let rate = Rate { limit: 400, per_ms: 1_000 };
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for id in 1..=3 {
        for permits in [1, 1, 1, 1, 7] {
            tasks.push(taking(cluster.at(id).clone(), rate, permits, stop.clone(), count.clone()));
        }
    }
    let more = async |than: usize| until("permits", || (count.load(Ordering::SeqCst) > than).then_some(())).await;
    more(900).await;
    let leader = cluster.leader().await;
    let dead = cluster.kill(leader);
    cluster.leader().await;
    let so_far = count.load(Ordering::SeqCst);
    more(so_far + 500).await;
    cluster.at(cluster.but(0)[0]).consensus().transfer_leadership(None).await.unwrap();
    let so_far = count.load(Ordering::SeqCst);
    more(so_far + 500).await;
    stop.store(true, Ordering::SeqCst);
    Cluster::bury(dead).await;
    cluster.boot(leader).await;
    let mut granted = Vec::new();
    for task in tasks {
        granted.extend(task.await.unwrap());
    }
    check_bound(rate, granted, 2);
    cluster.finish().await;
}

#[tokio::test]
async fn a_refusal_needs_no_command_once_it_is_known_until_when() {
    let cluster = Cluster::of_three().await;
    let node = cluster.at(1);
    let scarce = Rate { limit: 1, per_ms: 3_600_000 };
    assert!(take(node, request("scarce", scarce, 1)).await.unwrap().granted);
    let applied = || *node.consensus().applied().borrow();
    let before = applied();
    for _ in 0..100 {
        let refused = take(node, request("scarce", scarce, 1)).await.unwrap();
        assert!(!refused.granted && refused.retry_after_ms > 3_000_000, "{refused:?}");
    }
    // The first refusal is one, and the new cluster may get its uid and its feature level meanwhile.
    let entries = applied() - before;
    assert!(entries < 10, "{entries} entries of the log for 100 refusals");
    cluster.finish().await;
}

#[tokio::test]
async fn a_bucket_is_the_same_at_every_node_and_gone_when_it_is_full() {
    let cluster = Cluster::of_three().await;
    let rate = Rate { limit: 3, per_ms: 600 };
    for node in 1..=3 {
        assert!(take(cluster.at(node), request("a/b", rate, 1)).await.unwrap().granted);
    }
    let refused = take(cluster.at(1), request("a/b", rate, 1)).await.unwrap();
    assert!(!refused.granted && (1..=201).contains(&refused.retry_after_ms), "{refused:?}");
    let other = take(cluster.at(2), request("a/b", Rate { limit: 4, ..rate }, 1)).await;
    assert!(matches!(other, Err(NodeError::Refused(Refusal::RateMismatch { limit: 3, .. }))), "{other:?}");
    let bad = take(cluster.at(2), request("a/b", rate, 4)).await;
    assert!(matches!(bad, Err(NodeError::Refused(Refusal::BadArguments(_)))), "{bad:?}");
    until("the reaper", || {
        let gone = |node: &Node| node.look(|state| state.get(&path("/rates/a/b")).is_none());
        cluster.members.values().all(|member| gone(&member.node)).then_some(())
    })
    .await;
    let read = cluster.at(3).read(Consistency::Linearizable, |state| state.rates("", None, 10).rates.len()).await;
    assert_eq!(read.unwrap().value, 0);
    cluster.finish().await;
}
