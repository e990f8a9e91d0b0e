//! The session stream: what it carries and in which order.

use serde_json::json;

use crate::harness::Cluster;
use crate::wire::Wire;

#[tokio::test]
async fn a_stream_carries_a_lock_from_acquire_to_release() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let (mut wire, hello) = Wire::greeted(&node, &session.credential).await;
    assert_eq!(hello["timeout_ms"], 10_000);
    assert_eq!(hello["held"], json!([]));
    wire.send(json!({ "keepalive": 7 })).await;
    assert_eq!(wire.kind("alive").await, json!({ "number": 7, "timeout_ms": 10_000 }));
    let held = wire.get("POST", "/v1/locks/orders/42/acquire", json!({ "label": "w" })).await;
    assert_eq!(held["lock"], "orders/42");
    let token = held["token"].as_u64().unwrap();
    let shown = wire.get("GET", "/v1/locks/orders/42", json!(null)).await;
    assert_eq!(shown["holders"][0]["token"], token);
    let released = wire.get("POST", "/v1/locks/orders/42/release", json!({ "token": token })).await;
    assert_eq!(released["token"], token);
}
