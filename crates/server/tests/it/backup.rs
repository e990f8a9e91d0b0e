//! Backups: taken while the cluster runs, restored into a new one; a new cluster from a survivor.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_api::{CLUSTER_HEADER, Code};
use lockkeeper_core::ZXID_GAP;
use lockkeeper_server::backup::{BackupFailure, Restore, inspect, recover, restore};
use lockkeeper_server::config::NodeRole;
use lockkeeper_server::{Config, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Cluster, Got, Running, adjust_for_tests, eventually, spawn};
use crate::{access, audit};

/// A cluster with something of everything, and a backup of it.
struct Old {
    cluster: Cluster,
    file: PathBuf,
    session: SessionOpened,
    /// Of the lock that the session holds.
    token: u64,
    /// Name and uid.
    identity: String,
}

async fn acquire(node: &Running, lock: &str, credential: &str) -> u64 {
    let got = node.post(&format!("/v1/locks/{lock}/acquire"), Some(credential), json!({ "wait_ms": 0 })).await;
    got.json::<Value>()["token"].as_u64().unwrap()
}

async fn save(node: &Running, file: &Path) {
    let got = node.http.get(format!("{}/v1/snapshot", node.base)).send().await.unwrap();
    assert_eq!(got.headers()["content-type"], "application/vnd.lockkeeper.backup");
    std::fs::write(file, got.bytes().await.unwrap()).unwrap();
}

impl Old {
    async fn start(nodes: u64) -> Self {
        let cluster = Cluster::start(nodes).await;
        let identity = cluster.cluster().await;
        for node in &cluster.nodes {
            assert_eq!(node.cluster().await, identity, "every member names one cluster");
        }
        let session = cluster.session(60_000).await;
        let token = acquire(&cluster, "orders", &session.credential).await;
        for path in ["/kept", "/kept/child"] {
            cluster.post(&format!("/v1/nodes{path}"), None, json!({ "data": { "text": "x" } })).await.json::<Value>();
        }
        let begun = json!({ "fingerprint": "f", "pending_ms": 60_000 });
        let gate: Value = cluster.post("/v1/gates/paid/begin", None, begun).await.json();
        let done = json!({ "token": gate["token"], "result": { "text": "paid" }, "keep_ms": 600_000 });
        cluster.post("/v1/gates/paid/finish", None, done).await.json::<Value>();
        let file = cluster.directory.path().join("backup");
        // From any node.
        save(&cluster.nodes[cluster.nodes.len() - 1], &file).await;
        Self { cluster, file, session, token, identity }
    }

    fn ask(&self) -> Restore {
        Restore { file: self.file.clone(), other_cluster: false, attempt: std::num::NonZeroU32::MIN }
    }

    /// Stops all nodes; their data stays as long as the directory.
    async fn stop(self) -> tempfile::TempDir {
        for node in self.cluster.nodes {
            node.stop().await.unwrap();
        }
        self.cluster.directory
    }
}

/// Nodes of a new cluster on new ports, which do not serve yet.
fn new_servers(nodes: u64, directory: &Path) -> Vec<Server> {
    Server::bind_cluster("test", nodes, directory, adjust_for_tests).unwrap()
}

/// Waits until a node has turned a peer away for this reason.
async fn rejected(node: &Running, code: &str) {
    let series = format!("lockkeeper_peer_rejections_total{{code=\"{code}\"}}");
    eventually(&series, async || node.get("/metrics").await.text.contains(&series)).await;
}

async fn check_goes_on(new: &Running, old: &str, old_zxid: u64, session: &SessionOpened, token: u64) {
    let named = new.cluster().await;
    assert!(named.starts_with("test/") && named != old, "{named} after {old}");
    // Whoever means the old cluster is told so, and nothing is done for it.
    let open = new.request(Method::POST, "/v1/sessions").header(CLUSTER_HEADER, old).json(&json!({}));
    let refused = Got::of(open.send().await.unwrap()).await.problem(Code::OtherCluster);
    assert!(refused.detail.contains(old) && refused.detail.contains(&named), "{refused}");
    let sessions = new.get("/v1/sessions").await.json::<Value>();
    assert_eq!(sessions["sessions"], json!([]), "{sessions}");
    let same = new.request(Method::POST, "/v1/sessions").header(CLUSTER_HEADER, &named).json(&json!({}));
    assert!(same.send().await.unwrap().status().is_success());
    let node: Value = new.get("/v1/nodes/kept/child").await.json();
    assert_eq!(node["path"], "/kept/child", "{node}");
    let gate: Value = new.get("/v1/gates/paid").await.json();
    assert_eq!((&gate["state"], &gate["result"]), (&json!("done"), &json!({ "text": "paid" })), "{gate}");
    assert!(new.zxid().await >= old_zxid + ZXID_GAP);
    // The holder of before is told that its session is over, and holds nothing.
    let credential = Some(session.credential.as_str());
    let keepalive = format!("/v1/sessions/{}/keepalive", session.session_id);
    new.post(&keepalive, credential, json!({})).await.problem(Code::SessionExpired);
    let released = new.post("/v1/locks/orders/release", credential, json!({ "token": token })).await;
    released.problem(Code::SessionExpired);
    let verified: Value = new.post("/v1/locks/orders/verify", None, json!({ "token": token })).await.json();
    assert_eq!(verified["held"], false);
    let next = new.session(60_000).await;
    assert!(next.session_id > old_zxid + ZXID_GAP);
    assert!(acquire(new, "orders", &next.credential).await > token + ZXID_GAP);
}

#[tokio::test]
async fn a_new_cluster_goes_on_from_a_backup_behind_a_gap_and_turns_old_members_away() {
    let old = Old::start(3).await;
    let (ask, session, token, identity) = (old.ask(), old.session.clone(), old.token, old.identity.clone());
    let contents = inspect(&old.file).unwrap();
    assert_eq!((contents.header.cluster.as_str(), contents.header.node_id), ("test", 3));
    assert_eq!((contents.sessions, contents.locks_held, contents.ephemerals), (1, 1, 1));
    // Set after the client has the last piece.
    let time = "\nlockkeeper_last_backup_timestamp_seconds 1";
    let metrics = async || old.cluster.nodes[2].get("/metrics").await.text;
    eventually("the time of the backup", async || metrics().await.contains(time)).await;
    // What came after the backup is lost, and what the old cluster issued then is not issued again.
    let late = acquire(&old.cluster, "late", &session.credential).await;
    let old_zxid = old.cluster.zxid().await;
    let kept = old.stop().await;

    let directory = tempfile::tempdir().unwrap();
    let mut servers = new_servers(3, directory.path());
    for server in &servers {
        let restored = restore(server.config(), &ask).await.unwrap();
        assert_eq!((restored.origin.founders, restored.sessions_ended), (vec![1, 2, 3], 1));
    }
    // Node 3 of the old cluster has the name, the id and the addresses of node 3 of the new one, and comes first.
    let third = servers.pop().unwrap();
    let mut impostor = third.config().clone();
    impostor.storage.directory = kept.path().join("node3");
    let new_config = third.config().clone();
    drop(third);
    let nodes: Vec<Running> = servers.into_iter().map(spawn).collect();
    let impostor = spawn(Server::bind(impostor).unwrap());
    nodes[0].ready().await;
    rejected(&nodes[0], "wrong_directory").await;
    check_goes_on(&nodes[0], &identity, contents.header.zxid, &session, token).await;
    assert!(contents.header.zxid + ZXID_GAP > late && nodes[0].zxid().await > old_zxid);
    assert_eq!(impostor.get("/readyz").await.status, 503);
    assert_eq!(impostor.cluster().await, identity, "it says to which cluster it belongs");
    let status: Value = impostor.get("/v1/cluster").await.json();
    assert_eq!((&status["leader"], &status["ready"]), (&Value::Null, &json!(false)), "{status}");
    impostor.stop().await.unwrap();

    // The right node 3 is let in, and agrees.
    let third = spawn(Server::bind(new_config).unwrap());
    third.ready().await;
    let named = nodes[0].cluster().await;
    assert_eq!((third.cluster().await, nodes[1].cluster().await), (named.clone(), named));
    let checksum = async |node: &Running| node.get("/v1/cluster?checksum=true").await.json::<Value>()["state"].clone();
    eventually("the replicas to agree", async || checksum(&third).await == checksum(&nodes[1]).await).await;
}

#[tokio::test]
async fn two_restores_of_one_backup_in_the_same_way_are_two_clusters() {
    let (old, directory) = (Old::start(1).await, tempfile::tempdir().unwrap());
    let mut config = new_servers(1, directory.path()).remove(0).config().clone();
    let mut clusters = BTreeSet::from([old.identity.clone()]);
    for storage in ["one", "other"] {
        config.storage.directory = directory.path().join(storage);
        restore(&config, &old.ask()).await.unwrap();
        let node = spawn(Server::bind(config.clone()).unwrap());
        node.ready().await;
        clusters.insert(node.cluster().await);
        node.stop().await.unwrap();
    }
    assert_eq!(clusters.len(), 3, "{clusters:?}");
}

#[tokio::test]
async fn what_cannot_be_restored_is_refused_and_leaves_nothing_behind() {
    let old = Old::start(1).await;
    let directory = tempfile::tempdir().unwrap();
    let config = new_servers(1, directory.path()).remove(0).config().clone();
    let refused = async |config: &Config, ask: Restore| {
        let error = restore(config, &ask).await.unwrap_err().to_string();
        assert!(!config.storage.directory.join("log").exists(), "{error}");
        error
    };
    let good = std::fs::read(&old.file).unwrap();
    let bad = directory.path().join("bad");
    let with = |bytes: &[u8]| {
        std::fs::write(&bad, bytes).unwrap();
        Restore { file: bad.clone(), ..old.ask() }
    };
    assert!(refused(&config, with(&good[..good.len() - 1])).await.contains("cut off"));
    let mut altered = good.clone();
    altered[good.len() / 2] ^= 1;
    assert!(refused(&config, with(&altered)).await.contains("does not match its checksum"));
    let mut newer = good.clone();
    newer[8] = 9;
    assert!(refused(&config, with(&newer)).await.contains("format 9"));
    assert!(refused(&config, with(b"#!/bin/sh\n")).await.contains("no backup"));
    assert!(refused(&config, Restore { file: "/nowhere".into(), ..old.ask() }).await.contains("cannot open"));

    let mut other = config.clone();
    other.cluster.id = "other".into();
    let why = refused(&other, old.ask()).await;
    assert!(why.contains("backup of cluster \"test\"") && why.contains("--cluster-name-differs"), "{why}");
    let mut front = config.clone();
    front.cluster.role = NodeRole::Front;
    front.cluster.node = 9;
    assert!(refused(&front, old.ask()).await.contains("founds no cluster"));
    let mut full = config.clone();
    full.storage.free_floor_mib = 1 << 30;
    let why = refused(&full, old.ask()).await;
    assert!(why.contains("bytes free"), "{why}");
    std::fs::create_dir(&config.storage.directory).unwrap();
    std::fs::write(config.storage.directory.join("something"), b"x").unwrap();
    assert!(refused(&config, old.ask()).await.contains("not empty (it has something)"));
    std::fs::remove_file(config.storage.directory.join("something")).unwrap();

    let confirmed = Restore { other_cluster: true, ..old.ask() };
    assert_eq!(restore(&other, &confirmed).await.unwrap().origin.from_cluster, "test");
    let again = restore(&other, &confirmed).await.unwrap_err();
    assert!(matches!(again, BackupFailure::Prepare(_)), "{again}");
}

#[tokio::test]
async fn a_survivor_becomes_a_cluster_that_the_lost_members_cannot_join() {
    let old = Old::start(3).await;
    let (session, token, identity) = (old.session.clone(), old.token, old.identity.clone());
    let configs = old.cluster.directory.path().to_path_buf();
    let zxid = old.cluster.zxid().await;
    eventually("every replica to have it", async || {
        old.cluster.nodes[1].get("/v1/nodes/?consistency=stale").await.zxid.unwrap() >= zxid
    })
    .await;
    let kept = old.stop().await;

    let servers = new_servers(2, kept.path());
    let (mut survivor, mut lost) = (servers[1].config().clone(), servers[0].config().clone());
    drop(servers);
    let why = recover(&survivor, std::num::NonZeroU32::MIN).await.unwrap_err().to_string();
    assert!(why.contains("[peers] must list node 2 alone"), "{why}");
    survivor.peers.remove("1");
    let recovered = recover(&survivor, std::num::NonZeroU32::MIN).await.unwrap();
    assert_eq!((recovered.origin.how.as_str(), recovered.sessions_ended), ("recovery", 1));
    assert!(recovered.kept_as.starts_with(&configs) && recovered.kept_as.join("log").is_dir());

    let alone = spawn(Server::bind(survivor.clone()).unwrap());
    alone.ready().await;
    check_goes_on(&alone, &identity, zxid, &session, token).await;
    // Node 1 of the old cluster still believes in node 2.
    lost.storage.free_floor_mib = 1;
    let lost = spawn(Server::bind(lost).unwrap());
    rejected(&alone, "unknown_node").await;
    let status: Value = alone.get("/v1/cluster").await.json();
    assert_eq!(status["members"].as_array().unwrap().len(), 1, "{status}");
    lost.get("/readyz").await.problem(Code::NoLeader);

    alone.stop().await.unwrap();
    let mut nowhere = survivor;
    nowhere.storage.directory = kept.path().join("gone");
    assert!(recover(&nowhere, std::num::NonZeroU32::MIN).await.unwrap_err().to_string().contains("no data of a node"));
}

#[tokio::test]
async fn a_backup_needs_a_right_of_its_own_and_is_audited() {
    let cluster = Cluster::start_with(1, audit::with_file).await;
    let admin = access::enable(&cluster).await;
    let reader = json!([{ "resource": "cluster", "rights": ["read"] }]);
    let reader = access::principal(&cluster, &admin, "reader", reader).await.token.unwrap();
    let nobody = cluster.caller.clone();
    nobody.get("/v1/snapshot").await.problem(Code::Unauthenticated);
    cluster.with(&reader).get("/v1/snapshot").await.problem(Code::Forbidden);
    let taken = |token: String| cluster.request(Method::GET, "/v1/snapshot").bearer_auth(token).send();
    assert_eq!(taken(admin.clone()).await.unwrap().status(), 200);
    let night = json!([{ "resource": "cluster", "rights": ["backup"] }]);
    let night = access::principal(&cluster, &admin, "night", night).await.token.unwrap();
    cluster.with(&night).get("/v1/access").await.problem(Code::Forbidden);
    // The administrator did not wait for the end of its own, and one is taken at a time.
    let mut backup = taken(night.clone()).await.unwrap();
    while backup.status() == StatusCode::TOO_MANY_REQUESTS {
        backup = taken(night.clone()).await.unwrap();
    }
    assert_eq!(backup.status(), StatusCode::OK);
    let bytes = backup.bytes().await.unwrap().len();
    eventually("the audit record", async || {
        let mut taken = audit_lines(&cluster).into_iter().filter(|line| line["event"] == "backup_taken");
        taken.any(|line| (&line["bytes"], &line["outcome"]) == (&json!(bytes), &json!("done")))
    })
    .await;
}

fn audit_lines(cluster: &Cluster) -> Vec<Value> {
    let text = std::fs::read_to_string(cluster.directory.path().join("node1.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test]
async fn one_backup_is_taken_at_a_time_and_a_client_that_goes_makes_room() {
    let node = Cluster::start(1).await;
    let data = "x".repeat(900_000);
    for at in 0..16 {
        node.post(&format!("/v1/nodes/large{at}"), None, json!({ "data": { "text": data } })).await.json::<Value>();
    }
    let unread = node.request(Method::GET, "/v1/snapshot").send().await.unwrap();
    let problem = node.get("/v1/snapshot").await.problem(Code::Overloaded);
    assert!(problem.detail.contains("takes a backup already"), "{}", problem.detail);
    // Writes do not wait for it.
    node.post("/v1/nodes/meanwhile", None, json!({})).await.json::<Value>();
    drop(unread);
    eventually("the turn to be free", async || {
        node.request(Method::GET, "/v1/snapshot").send().await.unwrap().status().is_success()
    })
    .await;
}
