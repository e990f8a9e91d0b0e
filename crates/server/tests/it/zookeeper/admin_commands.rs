//! Four-letter commands of monitoring tools.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::Client;
use super::{cluster_with, with_addresses};
use crate::fronts::front_node;
use crate::harness::{Cluster, Running, eventually};

/// The reply to a four-letter command.
pub(super) async fn word(at: SocketAddr, word: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(word.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn commands_on_the_list_are_answered() {
    let cluster = cluster_with(1, |config| config.zookeeper.words = vec!["*".into()]).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/e", 1).await.unwrap();
    client.exists("/e", true).await.unwrap();
    let session = format!("{:#x}", client.session.session_id);
    let ask = async |asked: &str| word(cluster.zookeeper(0), asked).await;
    assert_eq!(ask("ruok").await, "imok");
    assert_eq!(ask("isro").await, "rw");
    let (srvr, stat) = (ask("srvr").await, ask("stat").await);
    for line in ["Zookeeper version: 3.9.1-", "Mode: leader", "Node count: ", "Zxid: 0x", "Connections: "] {
        assert!(srvr.contains(line) && stat.contains(line), "{line}\n{srvr}\n{stat}");
    }
    assert!(stat.contains("Clients:"));
    let mntr = ask("mntr").await;
    for key in [
        "zk_version\t3.9.1-",
        "zk_server_state\tleader",
        "zk_znode_count\t",
        "zk_ephemerals_count\t1",
        "zk_watch_count\t1",
        "zk_peer_state\tleading - broadcast",
        "zk_quorum_size\t1\n",
        "zk_learners\t0\n",
        "zk_synced_observers\t0\n",
        "zk_leader_uptime\t",
        "zk_local_sessions\t0\n",
        "zk_connection_request_count\t1\n",
        "zk_connection_rejected\t0\n",
        "zk_auth_failed_count\t0\n",
        "zk_bytes_received_count\t",
    ] {
        assert!(mntr.contains(key), "{key}\n{mntr}");
    }
    assert!(ask("envi").await.contains("\nzookeeper.version=3.9.1"));
    assert!(ask("conf").await.contains("tickTime=500\n"));
    let cons = ask("cons").await;
    assert!(cons.contains(&session) && stat.contains("(queued=0,recved=3,sent=") && !stat.contains(&session), "{stat}");
    let dump = ask("dump").await;
    assert!(dump.contains(&format!("{session}:\n\t/e\n")), "{dump}");
    assert!(ask("wchs").await.contains("1 connections watching 1 paths"));
    assert!(ask("wchc").await.contains(&format!("{session}\n\t/e\n")));
    assert!(ask("wchp").await.contains(&format!("/e\n\t{session}\n")));
}

/// Monitoring tools parse a connection's line by these names.
#[tokio::test]
async fn each_connection_is_listed_with_its_last_operation() {
    let cluster = cluster_with(1, |config| config.zookeeper.words = vec!["cons".into()]).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let session = format!("sid={:#x}", client.session.session_id);
    let mine = async || -> std::collections::BTreeMap<String, String> {
        let cons = word(cluster.zookeeper(0), "cons").await;
        let line = cons.lines().find(|line| line.contains(&session)).unwrap_or_else(|| panic!("{cons}"));
        let fields = line.trim_end_matches(')').split_once('(').unwrap().1;
        fields.split(',').map(|field| field.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    };
    let opened = mine().await;
    assert_eq!((opened["lop"].as_str(), opened["lcxid"].as_str()), ("SESS", "0x0"));
    client.create("/a", 0).await.unwrap();
    let made = mine().await;
    assert_eq!((made["lop"].as_str(), &made["lzxid"]), ("CREA", &format!("{:#x}", client.zxid)));
    client.exists("/a", false).await.unwrap();
    client.ask(lockkeeper_zookeeper::Request::Ping).await.unwrap();
    let pinged = mine().await;
    assert_eq!((pinged["lop"].as_str(), pinged["lcxid"].as_str()), ("PING", "0x2"), "a ping has no number of its own");
    let names = "avglat est lcxid llat lop lresp lzxid maxlat minlat queued recved sent sid to";
    assert_eq!(pinged.keys().cloned().collect::<Vec<_>>().join(" "), names);
    let number = |name: &str| pinged[name].parse::<u64>().unwrap_or_else(|_| panic!("{name}={}", pinged[name]));
    assert_eq!(number("to"), 10_000);
    assert!(number("minlat") <= number("avglat") && number("avglat") <= number("maxlat") && number("llat") < 60_000);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(number("est") <= now && now - number("est") < 60_000, "milliseconds since 1970");
}

#[tokio::test]
async fn a_command_not_on_the_list_is_refused() {
    let cluster = cluster_with(1, |config| config.zookeeper.words = vec!["ruok".into()]).await;
    let answer = word(cluster.zookeeper(0), "wchp").await;
    assert_eq!(answer, "wchp is not executed because it is not in the whitelist.\n");
}

#[tokio::test]
async fn the_leader_reports_its_synced_followers() {
    let mut cluster = cluster_with(3, |_| {}).await;
    let followed_by = async |cluster: &Cluster, count: usize| {
        let key = format!("zk_synced_followers\t{count}\n");
        for (number, node) in cluster.nodes.iter().enumerate() {
            let status = node.status().await;
            let synced = status.members.iter().filter(|member| member.synced == Some(true)).count();
            // The status counts the leader itself too.
            if status.leading && synced == count + 1 && word(cluster.zookeeper(number), "mntr").await.contains(&key) {
                return Some(number);
            }
        }
        None
    };
    let mut leader = None;
    eventually("both to follow", async || {
        leader = followed_by(&cluster, 2).await;
        leader.is_some()
    })
    .await;
    cluster.nodes.remove((leader.unwrap() + 1) % 3).stop().await.unwrap();
    eventually("one to follow", async || followed_by(&cluster, 1).await.is_some()).await;
}

/// As ZooKeeper does: health checks and exporters of metrics go by these words.
#[tokio::test]
async fn a_leader_whose_followers_are_gone_serves_nobody() {
    let mut cluster = cluster_with(3, |_| {}).await;
    let leads = async |node: &Running| node.status().await.leading;
    let mut leader = None;
    eventually("a leader", async || {
        for (number, node) in cluster.nodes.iter().enumerate() {
            leader = leads(node).await.then_some(number).or(leader);
        }
        leader.is_some()
    })
    .await;
    let last = cluster.nodes.remove(leader.unwrap());
    for follower in cluster.nodes.drain(..) {
        follower.stop().await.unwrap();
    }
    let at = last.zookeeper.unwrap();
    for asked in ["srvr", "mntr", "isro"] {
        eventually(asked, async || {
            word(at, asked).await == "This ZooKeeper instance is not currently serving requests\n"
        })
        .await;
    }
    assert_eq!(word(at, "ruok").await, "imok", "the process is well");
    eventually("it to lead no more", async || !leads(&last).await).await;
}

#[tokio::test]
async fn a_front_node_is_an_observer_to_zookeepers_clients() {
    let cluster = with_addresses().await;
    let front = front_node(&cluster, 4);
    let own = front.zookeeper.unwrap();
    let body = json!({
        "node_id": 4, "role": "front", "peer_address": front.peer.to_string(), "zookeeper_address": own.to_string(),
    });
    let added = cluster.post("/v1/cluster/members", None, body).await;
    assert!(added.status.is_success(), "{}", added.text);
    front.ready().await;
    let mut client = Client::open(own).await;
    client.create("/a", 0).await.unwrap();
    let config = client.data("/zookeeper/config").await.unwrap();
    let config = String::from_utf8(config.to_vec()).unwrap();
    assert!(config.contains(&format!(":observer;{own}\n")), "{config}");
    assert_eq!(config.matches(":participant;").count(), 3, "{config}");

    let (srvr, mntr) = (word(own, "srvr").await, word(own, "mntr").await);
    assert!(srvr.contains("Mode: observer\n"), "{srvr}");
    for line in ["zk_server_state\tobserver\n", "zk_peer_state\tobserving - broadcast\n", "zk_quorum_size\t3\n"] {
        assert!(mntr.contains(line), "{line}\n{mntr}");
    }
    let leader = front.status().await.leader.unwrap();
    let leader = usize::try_from(leader).unwrap() - 1;
    eventually("the leader to count the front node as an observer", async || {
        let mntr = word(cluster.zookeeper(leader), "mntr").await;
        let counted = ["zk_synced_followers\t2\n", "zk_synced_observers\t1\n", "zk_learners\t3\n"];
        counted.iter().all(|line| mntr.contains(line)) && mntr.contains("zk_synced_non_voting_followers\t0\n")
    })
    .await;
}
