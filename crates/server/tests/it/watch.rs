//! Watches: in order, complete, resumable, and ended with `compacted` when they cannot be resumed.

use futures::StreamExt;
use lockkeeper_api::watch::{Bookmark, Change, ChangeKind};
use lockkeeper_api::{Code, Problem};
use reqwest::{Method, Response};
use serde_json::json;
use tokio::time::timeout;

use crate::harness::{Cluster, Got, PATIENCE, Running};

/// A server-sent message.
#[derive(Debug, Default, PartialEq)]
struct Message {
    event: String,
    id: Option<u64>,
    data: String,
}

struct Stream {
    response: futures::stream::BoxStream<'static, Vec<u8>>,
    buffer: String,
    /// Whether the change given last completes its transaction.
    complete: bool,
}

impl Stream {
    async fn open(node: &Running, query: &str, last_id: Option<u64>) -> Result<Self, Got> {
        let mut request = node.request(Method::GET, &format!("/v1/watch?{query}"));
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let response: Response = request.send().await.unwrap();
        if !response.status().is_success() {
            return Err(Got::of(response).await);
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let response = response.bytes_stream().map(|chunk| chunk.map(|c| c.to_vec()).unwrap_or_default()).boxed();
        Ok(Self { response, buffer: String::new(), complete: false })
    }

    /// The next message; none when the stream has ended. Comments are skipped.
    async fn next(&mut self) -> Option<Message> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let text: String = self.buffer.drain(..end + 2).collect();
                let mut message = Message::default();
                for line in text.lines() {
                    match line.split_once(": ").unwrap_or((line, "")) {
                        ("event", value) => message.event = value.into(),
                        ("id", value) => message.id = Some(value.parse().unwrap()),
                        ("data", value) => message.data = value.into(),
                        _ => {}
                    }
                }
                if !message.event.is_empty() {
                    return Some(message);
                }
            }
            let chunk = timeout(PATIENCE, self.response.next()).await.expect("a message in time")?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn change(&mut self) -> Change {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if message.event == "bookmark" {
                let bookmark: Bookmark = serde_json::from_str(&message.data).unwrap();
                assert_eq!(message.id, Some(bookmark.zxid));
                continue;
            }
            assert_eq!(message.event, "change", "{message:?}");
            let change: Change = serde_json::from_str(&message.data).unwrap();
            // Only the last change of a transaction has an id.
            assert!(message.id.is_none_or(|id| id == change.zxid), "{message:?}");
            self.complete = message.id.is_some();
            return change;
        }
    }
}

async fn create(node: &Running, path: &str) {
    let got = node.post(&format!("/v1/nodes{path}"), None, json!({})).await;
    assert!(got.status.is_success(), "{}", got.text);
}

#[tokio::test]
async fn changes_come_in_order_and_can_be_resumed() {
    let node = Cluster::start(1).await;
    create(&node, "/a").await;
    let mut tree = Stream::open(&node, "path=/a&recursive=true", None).await.map_err(|got| got.text).unwrap();
    let mut one = Stream::open(&node, "path=%2Fa", None).await.map_err(|got| got.text).unwrap();
    create(&node, "/a/b").await;
    create(&node, "/elsewhere").await;
    node.call(Method::PUT, "/v1/nodes/a/b", None, Some(json!({ "data": { "text": "x" } }))).await;
    node.call(Method::DELETE, "/v1/nodes/a/b", None, None).await;
    node.call(Method::DELETE, "/v1/nodes/a", None, None).await;
    let mut changes = Vec::new();
    for _ in 0..4 {
        changes.push(tree.change().await);
    }
    let seen: Vec<_> = changes.iter().map(|change| (change.kind, change.path.as_str())).collect();
    let wanted = [
        (ChangeKind::Created, "/a/b"),
        (ChangeKind::DataChanged, "/a/b"),
        (ChangeKind::Deleted, "/a/b"),
        (ChangeKind::Deleted, "/a"),
    ];
    assert_eq!(seen, wanted);
    assert!(changes.is_sorted_by(|a, b| a.zxid < b.zxid));
    for wanted in [ChangeKind::ChildrenChanged, ChangeKind::ChildrenChanged, ChangeKind::Deleted] {
        let change = one.change().await;
        assert_eq!((change.kind, change.path.as_str()), (wanted, "/a"));
    }

    let mut again =
        Stream::open(&node, "path=/a&recursive=true", Some(changes[1].zxid)).await.map_err(|got| got.text).unwrap();
    assert_eq!(again.change().await, changes[2], "resumed behind Last-Event-ID");
    let query = format!("path=/a&recursive=true&from={}", changes[2].zxid);
    let mut again = Stream::open(&node, &query, None).await.map_err(|got| got.text).unwrap();
    assert_eq!(again.change().await, changes[3], "resumed behind from");
}

#[tokio::test]
async fn what_is_no_longer_known_is_said() {
    let node = Cluster::start_with(1, |config| config.limits.watch_history_events = 4).await;
    create(&node, "/a").await;
    let first = node.zxid().await;
    for name in 0..20 {
        create(&node, &format!("/n{name}")).await;
    }
    let Err(refused) = Stream::open(&node, &format!("path=/&recursive=true&from={first}"), None).await else {
        panic!("resumed from where the history does not reach")
    };
    let problem: Problem = refused.problem(Code::Compacted);
    let oldest = problem.oldest_zxid.unwrap();
    assert!(oldest > first, "{problem:?}");
    let mut stream = Stream::open(&node, &format!("path=/&recursive=true&from={oldest}"), None)
        .await
        .map_err(|got| got.text)
        .unwrap();
    assert!(stream.change().await.zxid > oldest);
}

#[tokio::test]
async fn a_stream_ends_when_the_node_goes() {
    let node = Cluster::start(1).await;
    let mut stream = Stream::open(&node, "path=/", None).await.map_err(|got| got.text).unwrap();
    let Cluster { mut nodes, directory } = node;
    nodes.remove(0).stop().await.unwrap();
    while let Some(message) = stream.next().await {
        assert_eq!(message.event, "bookmark", "{message:?}");
    }
    drop(directory);
}

#[tokio::test]
async fn only_a_whole_transaction_can_be_resumed_after() {
    let node = Cluster::start(1).await;
    create(&node, "/t").await;
    let mut live = Stream::open(&node, "path=/t&recursive=true", None).await.map_err(|got| got.text).unwrap();
    let operations = ["/t/a", "/t/b", "/t/c"].map(|path| json!({"op": "create", "path": path}));
    let got = node.post("/v1/txn", None, json!({ "operations": operations })).await;
    assert!(got.status.is_success(), "{}", got.text);
    for (path, complete) in [("/t/a", false), ("/t/b", false), ("/t/c", true)] {
        let change = live.change().await;
        assert_eq!((change.path.as_str(), live.complete), (path, complete));
    }
}
