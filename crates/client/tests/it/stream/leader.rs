//! The node at which a session has its stream.

use lockkeeper_client::api::Code;
use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::api::nodes::Create;
use lockkeeper_client::{PreferredNode, Session};
use serde_json::json;

use super::node::*;

/// A move comes within a third of it. Another endpoint is asked when the first is silent for half a second.
const TIMEOUT_MS: u32 = 6_000;
/// Streams of a move: one for the attempt, and one to stay.
const OF_A_MOVE: usize = 2;

fn upgrades(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Upgrade(_))).count()
}

/// A node that says who leads: in the answer to the opening of a session, and at the head of a stream.
fn names(opening: Option<String>, leader: String) -> impl Fn(&Event) -> Vec<Do> + Send + Sync {
    move |event| match event {
        Event::Upgrade(_) => vec![hello_of(&leader, TIMEOUT_MS)],
        Event::Http(line) if line == "POST /v1/sessions" => {
            let mut done = session_only(event, TIMEOUT_MS).unwrap();
            if let (Some(Do::Json(_, body)), Some(leader)) = (done.first_mut(), &opening) {
                body["leader"] = json!(leader);
            }
            done
        }
        _ => session_only(event, TIMEOUT_MS).unwrap_or_else(|| good(event)),
    }
}

async fn creates_at(session: &Session, node: &Node) {
    session.client().create("/a", &Create::default()).await.unwrap();
    assert_eq!(node.frames("request").len(), 1);
}

#[tokio::test]
async fn the_first_stream_goes_to_the_leader_that_the_opening_named() {
    let leader = Node::start(good).await;
    let first = Node::start(names(Some(leader.address.clone()), leader.address.clone())).await;
    let session = open(&[&first.address, &leader.address]).await;
    creates_at(&session, &leader).await;
    assert_eq!(upgrades(&first.seen.borrow()), 0);
}

#[tokio::test]
async fn a_stream_moves_to_the_leader_with_its_requests() {
    let leader = Node::start(good).await;
    let named = names(None, leader.address.clone());
    // The lock request waits here.
    let first = Node::start(move |event| match event {
        Event::Frame(_, value) if value.get("request").is_some() => vec![],
        _ => named(event),
    })
    .await;
    let session = open(&[&first.address, &leader.address]).await;
    let wait = Acquire { wait_ms: 10_000, ..Acquire::default() };
    assert_eq!(session.client().acquire("a", &wait).await.unwrap().token, 50);
    let ids =
        |node: &Node| node.frames("request").into_iter().map(|(_, r)| r["request_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&first).len(), 1);
    assert_eq!(ids(&first), ids(&leader), "it keeps its place under its id");
    assert_eq!(session.client().preferred().as_str(), format!("http://{}", leader.address));
}

#[tokio::test]
async fn a_stream_moves_when_a_keepalive_names_another_leader() {
    let leader = Node::start(good).await;
    let (address, named) = (leader.address.clone(), names(None, "127.0.0.1:1".into()));
    let first = Node::start(move |event| match event {
        Event::Frame(_, value) if value.get("keepalive").is_some() => {
            vec![Do::Say(json!({"alive": {"number": value["keepalive"], "timeout_ms": TIMEOUT_MS, "leader": address}}))]
        }
        _ => named(event),
    })
    .await;
    let session = open(&[&first.address, &leader.address]).await;
    leader.until(|seen| upgrades(seen) == OF_A_MOVE).await;
    creates_at(&session, &leader).await;
}

/// Two keepalives take longer than a move.
async fn stays(session: &Session, node: &Node) {
    node.until(|seen| frames(seen, "keepalive").len() >= 2).await;
    assert_eq!(upgrades(&node.seen.borrow()), 1);
    creates_at(session, node).await;
}

#[tokio::test]
async fn a_stream_stays_while_the_leader_cannot_be_reached() {
    // Bound and not listening.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = socket.local_addr().unwrap().to_string();
    let first = Node::start(names(None, gone.clone())).await;
    stays(&open(&[&first.address, &gone]).await, &first).await;
}

#[tokio::test]
async fn a_stream_stays_while_the_leader_refuses_it() {
    let leader = Node::start(|event| match event {
        Event::Upgrade(_) => vec![problem(Code::Overloaded)],
        _ => good(event),
    })
    .await;
    let first = Node::start(names(None, leader.address.clone())).await;
    let session = open(&[&first.address, &leader.address]).await;
    leader.until(|seen| upgrades(seen) == 1).await;
    stays(&session, &first).await;
    assert_eq!(upgrades(&leader.seen.borrow()), 1);
}

#[tokio::test]
async fn a_stream_stays_if_no_endpoint_is_the_leader() {
    let leader = Node::start(good).await;
    let first = Node::start(names(Some(leader.address.clone()), leader.address.clone())).await;
    stays(&open(&[&first.address]).await, &first).await;
    assert_eq!(upgrades(&leader.seen.borrow()), 0);
}

#[tokio::test]
async fn the_nearest_node_is_the_one_that_answers_first() {
    let frozen = Node::start(|event| match event {
        Event::Upgrade(_) => vec![Do::Freeze],
        _ => good(event),
    })
    .await;
    let near = Node::start(good).await;
    let session = open_at(&[&frozen.address, &near.address], PreferredNode::Nearest).await;
    creates_at(&session, &near).await;
    frozen.until(|seen| upgrades(seen) == 1).await;
}

#[tokio::test]
async fn clients_that_spread_begin_at_different_nodes() {
    let (one, two) = (Node::start(good).await, Node::start(good).await);
    let mut sessions = Vec::new();
    // All of them begin at the same node once in 2^31 runs.
    for _ in 0..32 {
        sessions.push(open_at(&[&one.address, &two.address], PreferredNode::Spread).await);
    }
    for node in [&one, &two] {
        node.until(|seen| seen.contains(&Event::Http("POST /v1/sessions".into()))).await;
    }
}
