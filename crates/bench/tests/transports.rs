//! Short measurements against a real node succeed over each transport and with each kind of locks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper_bench::{Locks, Plan, Transport, run};
use lockkeeper_server::local::Cluster;

#[tokio::test]
async fn every_cycle_succeeds_over_each_transport() {
    let cluster = Cluster::start(1).await.unwrap();
    for transport in [Transport::Http, Transport::Stream, Transport::Library] {
        for locks in [Locks::Own, Locks::One] {
            let plan = Plan {
                endpoints: cluster.endpoints(),
                clients: 4,
                locks,
                transport,
                warm_up: Duration::from_millis(200),
                measure: Duration::from_millis(500),
                server_pids: Vec::new(),
            };
            let measured = run(&plan).await.unwrap();
            assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
            assert!(measured.cycles > 0 && measured.transport == transport);
            assert!(measured.acquire.p50_us <= measured.cycle.p50_us);
        }
    }
    let client = lockkeeper_client::Client::connect(cluster.endpoints()).await.unwrap();
    let left = client.locks(Some(lockkeeper_bench::LOCK_PREFIX), &lockkeeper_client::Paging::default()).await.unwrap();
    assert!(left.locks.is_empty(), "locks are left behind: {left:?}");
}
