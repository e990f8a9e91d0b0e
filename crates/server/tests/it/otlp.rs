//! Traces, as a collector of OpenTelemetry receives them: one acquire is one trace over all nodes, and a waiter's span
//! links to the trace of the holder.

use std::time::{Duration, Instant};

use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_api::{Code, SESSION_HEADER};
use lockkeeper_server::config::OtlpSection;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::collector::{Answers, Collector, Seen};
use crate::harness::{Cluster, Got, Running, eventually};
use crate::stream_client::StreamClient;

/// Nodes that record what their callers record, and nothing else.
async fn cluster_of(nodes: u64, collector: &Collector) -> Cluster {
    Cluster::start_with(nodes, |config| {
        config.otlp = Some(OtlpSection { sample_ratio: 0.0, ..OtlpSection::new(collector.endpoint()) });
    })
    .await
}

/// The spans of this name below this one, once there are so many.
async fn children(collector: &Collector, trace: u128, parent: &[u8], name: &str, count: usize) -> Vec<Seen> {
    let mut found = Vec::new();
    eventually(&format!("{count} spans {name}"), async || {
        let is_child = |seen: &Seen| seen.span.parent_span_id == parent && seen.span.name == name;
        found = collector.of_trace(trace).into_iter().filter(is_child).collect();
        found.len() >= count
    })
    .await;
    found
}

const CALLER: u64 = 0xb7ad_6b71_6920_3331;

fn traceparent(trace: u128) -> String {
    format!("00-{trace:032x}-{CALLER:016x}-01")
}

fn acquire(node: &Running, trace: u128, credential: &str, wait_ms: u64) -> RequestBuilder {
    acquire_of(node, "orders%2F42", trace, credential, json!({ "wait_ms": wait_ms }))
}

fn acquire_of(node: &Running, lock: &str, trace: u128, credential: &str, body: Value) -> RequestBuilder {
    let request = node.request(Method::POST, &format!("/v1/locks/{lock}/acquire")).header(SESSION_HEADER, credential);
    request.header("traceparent", traceparent(trace)).json(&body)
}

async fn sent(request: RequestBuilder) -> Got {
    Got::of(request.send().await.unwrap()).await
}

/// The leader and two followers.
async fn roles(cluster: &Cluster) -> (i64, [usize; 2]) {
    let mut leader = None;
    eventually("a leader", async || {
        leader = cluster.status().await.leader;
        leader.is_some()
    })
    .await;
    let leader = leader.unwrap();
    let followers: Vec<usize> = (0..3).filter(|index| *index as u64 + 1 != leader).collect();
    (i64::try_from(leader).unwrap(), [followers[0], followers[1]])
}

const ACQUIRE: &str = "POST /v1/locks/{name}/acquire";

#[tokio::test]
async fn an_acquire_is_one_trace_over_all_nodes() {
    let collector = Collector::start();
    let cluster = cluster_of(3, &collector).await;
    let (leader, [first, second]) = roles(&cluster).await;
    let (holder_node, waiter_node) = (&cluster.nodes[first], &cluster.nodes[second]);
    let (holder, waiter, beside) =
        (holder_node.session(10_000).await, waiter_node.session(10_000).await, holder_node.session(10_000).await);
    let [held_trace, waited_trace, beside_trace] = [1u128 << 100, 2 << 100, 3 << 100];

    // Not recorded: its caller sends no context.
    let plain = holder_node.post("/v1/locks/other/acquire", Some(&holder.credential), json!({})).await;
    plain.json::<Acquired>();

    let held: Acquired = sent(acquire(holder_node, held_trace, &holder.credential, 0)).await.json();
    let busy = sent(acquire(holder_node, beside_trace, &beside.credential, 10)).await;
    busy.problem(Code::LockBusy);
    let waiting = tokio::spawn(sent(acquire(waiter_node, waited_trace, &waiter.credential, 60_000)));
    let lock = async || cluster.get("/v1/locks/orders%2F42").await.json::<Lock>();
    eventually("it waits", async || lock().await.waiting == 1).await;
    let release = json!({ "token": held.token });
    holder_node.post("/v1/locks/orders%2F42/release", Some(&holder.credential), release).await;
    let granted: Acquired = waiting.await.unwrap().json();

    // From the caller to the node, the batch, the leader, and all replicas.
    let [request] = &children(&collector, held_trace, &CALLER.to_be_bytes(), ACQUIRE, 1).await[..] else { panic!() };
    assert_eq!(request.node, Some(first as i64 + 1));
    assert_eq!(request.span.kind(), SpanKind::Server);
    assert_eq!(request.text("lockkeeper.lock").as_deref(), Some("orders/42"));
    assert_eq!(request.text("lockkeeper.outcome").as_deref(), Some("granted"));
    assert_eq!(request.text("lockkeeper.mode").as_deref(), Some("exclusive"));
    assert_eq!(request.number("lockkeeper.token"), Some(held.token as i64));
    assert_eq!(request.number("lockkeeper.session"), Some(holder.session_id as i64));
    assert_eq!(request.number("http.response.status_code"), Some(200));
    let [batch] = &children(&collector, held_trace, &request.span.span_id, "lockkeeper.propose", 1).await[..] else {
        panic!()
    };
    assert_eq!(batch.node, request.node);
    assert_eq!(batch.text("lockkeeper.outcome").as_deref(), Some("done"));
    let below = async |name, count| {
        let mut nodes: Vec<i64> = children(&collector, held_trace, &batch.span.span_id, name, count)
            .await
            .iter()
            .filter_map(|seen| seen.node)
            .collect();
        nodes.sort_unstable();
        nodes
    };
    assert_eq!(below("lockkeeper.replicate", 1).await, [leader]);
    assert_eq!(below("lockkeeper.append", 3).await, [1, 2, 3]);
    assert_eq!(below("lockkeeper.apply", 3).await, [1, 2, 3]);

    // A waiter links to the holder's request, wherever it waits.
    let wait = async |trace: u128| {
        let asked = children(&collector, trace, &CALLER.to_be_bytes(), ACQUIRE, 1).await;
        let waits = children(&collector, trace, &asked[0].span.span_id, "lockkeeper.wait", 1).await;
        (asked[0].clone(), waits[0].clone())
    };
    let (asked, waited) = wait(waited_trace).await;
    assert_eq!(asked.number("lockkeeper.token"), Some(granted.token as i64));
    assert_eq!(waited.text("lockkeeper.outcome").as_deref(), Some("granted"));
    assert_eq!(waited.number("lockkeeper.blocker.token"), Some(held.token as i64));
    assert_eq!(waited.node, Some(second as i64 + 1));
    let [link] = &waited.span.links[..] else { panic!("{waited:?}") };
    assert_eq!((&link.trace_id[..], &link.span_id), (&held_trace.to_be_bytes()[..], &request.span.span_id));
    let (asked, waited) = wait(beside_trace).await;
    assert_eq!(asked.text("lockkeeper.outcome").as_deref(), Some("timed_out"));
    assert_eq!(asked.text("error.type").as_deref(), Some("lock_busy"));
    assert_eq!(waited.text("lockkeeper.outcome").as_deref(), Some("timed_out"));
    let [link] = &waited.span.links[..] else { panic!("{waited:?}") };
    assert_eq!((&link.trace_id[..], &link.span_id), (&held_trace.to_be_bytes()[..], &request.span.span_id));

    let traces = [held_trace, waited_trace, beside_trace].map(u128::to_be_bytes);
    let strangers = collector.spans().iter().filter(|seen| !traces.iter().any(|t| seen.span.trace_id == t)).count();
    assert_eq!(strangers, 0, "spans of requests that nobody records");
    let secret = holder.credential.split_once('.').unwrap().1.to_owned();
    assert!(!format!("{:?}", collector.spans()).contains(&secret), "a secret is in a span");
}

#[tokio::test]
async fn the_last_spans_are_sent_at_shutdown_and_the_stream_takes_contexts() {
    let collector = Collector::start();
    let mut cluster = cluster_of(1, &collector).await;
    let session = cluster.session(10_000).await;
    let (mut stream, _) = StreamClient::greeted(&cluster, &session.credential).await;
    for (id, traceparent) in [(1u64, traceparent(7)), (2, "nonsense".into())] {
        let call = json!({ "acquire_lock": { "name": id.to_string() } });
        stream.send(json!({ "request": { "id": id, "traceparent": traceparent, "call": call } })).await;
        assert_eq!(stream.answer(id).await["status"], 200);
    }
    drop(stream);
    cluster.nodes.remove(0).stop().await.unwrap();
    let spans = collector.of_trace(7);
    let request = spans.iter().find(|seen| seen.span.name == ACQUIRE).expect("sent before the node ended");
    assert_eq!(request.text("network.protocol.name").as_deref(), Some("websocket"));
    assert_eq!(request.span.parent_span_id, CALLER.to_be_bytes());
    for name in ["lockkeeper.propose", "lockkeeper.replicate", "lockkeeper.append", "lockkeeper.apply"] {
        assert!(spans.iter().any(|seen| seen.span.name == name), "{name} in {spans:?}");
    }
    assert_eq!(spans.len(), collector.spans().len(), "the other request was not recorded");
}

#[tokio::test]
async fn without_a_collector_requests_go_on_and_lost_spans_are_counted() {
    // Bound and never listened to.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    lose_a_span(&format!("http://{}", socket.local_addr().unwrap())).await;
    let refuses = Collector::that_answers(Answers::Status(503));
    lose_a_span(&refuses.endpoint()).await;
    assert!(!refuses.heads().is_empty(), "nothing was sent");
}

/// Acquires a lock at a node whose spans are lost; returns once that is counted.
async fn lose_a_span(endpoint: &str) {
    let mut cluster = Cluster::start_with(1, |config| {
        config.otlp = Some(OtlpSection { sample_ratio: 0.0, ..OtlpSection::new(endpoint) });
    })
    .await;
    let lost = async || {
        let metrics = cluster.get("/metrics").await.text;
        let counted =
            |line: &str| line.strip_prefix("lockkeeper_spans_dropped_total{reason=\"not_sent\"} ")?.parse().ok();
        metrics.lines().find_map(counted).unwrap_or(0u64)
    };
    let before = lost().await;
    let session = cluster.session(10_000).await;
    sent(acquire(&cluster, 9, &session.credential, 0)).await.json::<Acquired>();
    eventually("they are counted", async || lost().await > before).await;
    cluster.nodes.remove(0).stop().await.unwrap();
}

#[tokio::test]
async fn a_collector_that_does_not_answer_holds_up_no_shutdown() {
    let collector = Collector::that_answers(Answers::Never);
    let mut cluster = cluster_of(1, &collector).await;
    let session = cluster.session(10_000).await;
    sent(acquire(&cluster, 9, &session.credential, 0)).await.json::<Acquired>();
    eventually("the node waits for the collector", async || !collector.heads().is_empty()).await;
    let began = Instant::now();
    cluster.nodes.remove(0).stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}: a request may take 10 s, a shutdown 2 s", began.elapsed());
}

#[tokio::test]
async fn the_collector_gets_the_configured_headers() {
    let collector = Collector::start();
    let cluster = Cluster::start_with(1, |config| {
        let mut section = OtlpSection::new(collector.endpoint());
        section.headers.insert("authorization".into(), "Bearer of spans".into());
        config.otlp = Some(section);
    })
    .await;
    let session = cluster.session(10_000).await;
    sent(acquire(&cluster, 9, &session.credential, 0)).await.json::<Acquired>();
    eventually("spans come", async || !collector.heads().is_empty()).await;
    assert!(collector.heads().iter().all(|head| head.contains("authorization: Bearer of spans\r\n")));
}

#[tokio::test]
async fn refused_callers_are_not_recorded() {
    let collector = Collector::start();
    let mut cluster = cluster_of(1, &collector).await;
    let (session, trace) = (cluster.session(10_000).await, 9);
    let wrong = acquire(&cluster, trace, &session.credential, 0).bearer_auth("lk_none");
    assert_eq!(sent(wrong).await.status, 401);
    let no_json = acquire(&cluster, trace, &session.credential, 0).body("{");
    assert_eq!(sent(no_json).await.status, 400);
    sent(acquire(&cluster, 10, &session.credential, 0)).await.json::<Acquired>();
    cluster.nodes.remove(0).stop().await.unwrap();
    assert!(!collector.of_trace(10).is_empty());
    assert!(collector.of_trace(trace).is_empty(), "{:?}", collector.of_trace(trace));
}

/// The traces to which the wait of this request links.
async fn links(collector: &Collector, trace: u128) -> Vec<u128> {
    let request = children(collector, trace, &CALLER.to_be_bytes(), ACQUIRE, 1).await.remove(0);
    let wait = children(collector, trace, &request.span.span_id, "lockkeeper.wait", 1).await.remove(0);
    let mut traces: Vec<u128> =
        wait.span.links.iter().map(|link| u128::from_be_bytes(link.trace_id[..].try_into().unwrap())).collect();
    traces.sort_unstable();
    traces
}

#[tokio::test]
async fn a_wait_links_to_its_blocker_and_to_the_holders() {
    let collector = Collector::start();
    let cluster = cluster_of(1, &collector).await;
    let (holder, waiter) = (cluster.session(10_000).await.credential, cluster.session(10_000).await.credential);
    let held =
        async |lock, trace, body| sent(acquire_of(&cluster, lock, trace, &holder, body)).await.json::<Acquired>();
    let wait = async |lock, trace, body| {
        sent(acquire_of(&cluster, lock, trace, &waiter, body)).await.problem(Code::LockBusy);
    };
    // The nearest reader is the blocker; the other one holds as well.
    for trace in [11, 12] {
        held("shared", trace, json!({ "mode": "shared" })).await;
    }
    wait("shared", 13, json!({ "mode": "write", "wait_ms": 50 })).await;
    assert_eq!(links(&collector, 13).await, [11, 12]);
    // The request ahead waits too, and goes: then the holder is the blocker.
    held("queue", 21, json!({})).await;
    let behind = async { wait("queue", 23, json!({ "wait_ms": 2_000 })).await };
    let ahead = async { wait("queue", 22, json!({ "wait_ms": 500 })).await };
    let later = async {
        let lock = async || cluster.get("/v1/locks/queue").await.json::<Lock>();
        eventually("one waits", async || lock().await.waiting == 1).await;
        behind.await;
    };
    tokio::join!(ahead, later);
    assert_eq!(links(&collector, 22).await, [21]);
    assert_eq!(links(&collector, 23).await, [21, 22]);
    for trace in [31, 32] {
        held("permits", trace, json!({ "mode": "permit", "permits": 2 })).await;
    }
    wait("permits", 33, json!({ "mode": "permit", "permits": 2, "wait_ms": 50 })).await;
    assert_eq!(links(&collector, 33).await, [31, 32]);
}
