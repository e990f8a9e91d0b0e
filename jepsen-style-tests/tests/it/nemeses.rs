//! Each family of nemeses against a real cluster: the fault bites, says so from what was seen, and the cluster comes
//! back and agrees.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jepsen_style_tests::cluster::{Cluster, Options};
use jepsen_style_tests::http::{Api, new_client};
use jepsen_style_tests::nemesis::{self, Moments, Nemesis, TestBed};
use jepsen_style_tests::net::netns::NetnsNet;
use jepsen_style_tests::net::proxy_net::ProxyNet;
use jepsen_style_tests::net::{Endpoint, FaultNet, Listener};
use jepsen_style_tests::run::programs::Programs;
use jepsen_style_tests::run::test_bed::server;
use jepsen_style_tests::verdict::Failed;
use jepsen_style_tests::workers::Worker;
use lockkeeper_api::nodes::Create;
use lockkeeper_checkers::skip::skip;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Short, for the sake of the test; longer than an election all the same.
const TTL: Duration = Duration::from_millis(1_000);
const HOLD: Duration = Duration::from_millis(1_300);
const AGREE_WITHIN: Duration = Duration::from_secs(30);

/// The programs of this checkout, built in this profile.
fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs::built().unwrap())
}

/// Somebody who writes all the while, through the network like clients.
fn write_all_the_while(test_bed: &TestBed) -> tokio::task::JoinHandle<()> {
    let nodes = test_bed.cluster.ids();
    let api =
        |node| Api::at_address(new_client().unwrap(), test_bed.net.address(Endpoint::Clients, node, Listener::Client));
    let apis: Vec<Api> = nodes.into_iter().map(api).collect();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    tokio::spawn(async move {
        let write = |api: Api| async move {
            loop {
                let path = format!("/written-{}", NEXT.fetch_add(1, Ordering::Relaxed));
                let _ = api.create_within(&path, &Create::default(), None, Duration::from_secs(1)).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        futures::future::join_all(apis.into_iter().map(write)).await;
    })
}

async fn test_bed(dir: &Path, net: Arc<dyn FaultNet>, nodes: u64, nemeses: &[Box<dyn Nemesis>]) -> TestBed {
    let mut options = Options { nodes, net: Some(Arc::clone(&net)), ..Options::default() };
    for nemesis in nemeses {
        nemesis.prepares(&mut options);
    }
    let (server, clocks_obey) = server(&options, programs()).unwrap();
    let cluster = Cluster::start(&server, dir, options).await.unwrap();
    let (endpoints, place) = (cluster.endpoints(), dir.to_path_buf());
    let mut number = 0;
    let new_worker = move || -> Result<Worker, Failed> {
        number += 1;
        let work = "--ttl-ms 1000 turns --lock many --among 3 --hold-us 0 --longer-us 10000 --clients 3 --seconds 600";
        let mut arguments: Vec<String> = work.split(' ').map(str::to_owned).collect();
        arguments.extend(["--seed".into(), number.to_string()]);
        Worker::start(&place, &format!("worker-{number}"), &endpoints, &arguments)
    };
    TestBed {
        cluster,
        net,
        workers: Vec::new(),
        new_worker: Box::new(new_worker),
        ttl: TTL,
        dir: dir.to_path_buf(),
        server,
        clocks_obey,
        moments: Moments::default(),
    }
}

/// Puts each of these on and takes it off, under writes.
async fn try_out(names: &[&str], nodes: u64, clients: usize) {
    try_out_on(Arc::new(ProxyNet::start(nodes).await.unwrap()), names, nodes, clients).await;
}

async fn try_out_on(net: Arc<dyn FaultNet>, names: &[&str], nodes: u64, clients: usize) {
    let mut nemeses: Vec<_> = nemesis::all().into_iter().filter(|nemesis| names.contains(&nemesis.name())).collect();
    assert_eq!(nemeses.len(), names.len());
    let dir = tempfile::tempdir().unwrap();
    let mut test_bed = test_bed(dir.path(), net, nodes, &nemeses).await;
    test_bed.cluster.api(1).create("/inside", &Create::default(), None).await.unwrap();
    for at in 0..clients {
        test_bed.replace_worker(at).unwrap();
    }
    let mut rng = StdRng::seed_from_u64(7);
    for nemesis in &mut nemeses {
        if let Some(lacks) = nemesis.lacks(&test_bed) {
            skip(&format!("{}: {lacks:?}", nemesis.name()));
            continue;
        }
        let writing = write_all_the_while(&test_bed);
        let what =
            nemesis.inject(&mut test_bed, &mut rng).await.unwrap_or_else(|why| panic!("{}: {why}", nemesis.name()));
        tokio::time::sleep(HOLD).await;
        let evidence =
            nemesis.heal(&mut test_bed).await.unwrap_or_else(|why| panic!("{} ({what}): {why}", nemesis.name()));
        eprintln!("{}: {what}: {}", nemesis.name(), evidence.join("; "));
        assert!(!evidence.is_empty(), "{} ({what}) did not bite", nemesis.name());
        writing.abort();
        test_bed.cluster.all_ready().await.unwrap();
        if clients == 0 {
            test_bed.cluster.agree(AGREE_WITHIN).await.unwrap();
        }
    }
}

#[tokio::test]
async fn partitions() {
    let names = ["one", "halves", "ring", "bridge", "leader", "oneway"].map(|shape| format!("partition-{shape}"));
    try_out(&names.each_ref().map(String::as_str), 3, 0).await;
}

#[tokio::test]
async fn minorities_and_majorities_of_five() {
    try_out(&["kill-minority", "pause-minority", "pause-majority"], 5, 0).await;
}

#[tokio::test]
async fn kills() {
    try_out(&["kill-one", "kill-leader", "kill-majority", "kill-all"], 3, 0).await;
}

#[tokio::test]
async fn pauses() {
    try_out(&["pause-one", "pause-leader", "pause-all"], 3, 0).await;
}

#[tokio::test]
async fn clients() {
    try_out(&["client-kill", "client-pause"], 1, 2).await;
}

#[tokio::test]
async fn slow_links_and_rolling_restart() {
    try_out(&["slow-links", "rolling-restart"], 3, 0).await;
}

#[tokio::test]
async fn disks() {
    try_out(&["disk-full", "damage", "lost-writes"], 3, 0).await;
}

#[tokio::test]
async fn clocks() {
    try_out(&["clock-jump", "clock-rate"], 3, 0).await;
}

#[tokio::test]
async fn membership() {
    try_out(&["membership"], 3, 0).await;
}

#[tokio::test]
async fn in_namespaces() {
    if let Some(lacks) = NetnsNet::lacks() {
        return skip(&lacks);
    }
    let net = Arc::new(NetnsNet::start(3).unwrap());
    try_out_on(net, &["partition-leader", "partition-oneway", "kill-leader", "membership"], 3, 0).await;
}
