//! Requests that are repeated much later.

use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::api::nodes::Changed;
use lockkeeper_client::api::{Credential, REQUEST_ID_HEADER, SESSION_HEADER};

use super::parties::{bystander, crowd};
use crate::support::Dev;

/// More requests of one kind than a session remembers.
const CYCLES: usize = 300;
const REQUEST_ID: &str = "6f8b1f0e-6a0c-4d0e-9a53-0d3c4c1f7a21";

/// Promise P9: a task that lost its answer may be frozen while the session's other tasks continue to acquire locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_sent_again_after_many_locks_creates_nothing_more() {
    let dev = Dev::start(3, &[]);
    let session = bystander(&dev).await;
    let first = create(&dev.endpoints[0], session.credential()).await;
    // This client does not know of the create and does not acknowledge it, but it acknowledges its releases.
    let others = session.client().as_session(session.credential());
    for _ in 0..CYCLES {
        let held = others.acquire("busy", &Acquire::default()).await.unwrap();
        others.release("busy", held.token).await.unwrap();
    }
    let again = create(&dev.endpoints[1], session.credential()).await;
    assert_eq!(again.path, first.path);
    assert_eq!(session.client().children("/").await.unwrap().iter().filter(|name| name.starts_with("job-")).count(), 1);
    assert_eq!(crowd(session.client(), "busy").await, (0, 0));
}

/// Creates a sequential node, always with the same request id.
async fn create(endpoint: &str, credential: Credential) -> Changed {
    let request = reqwest::Client::builder().no_proxy().build().unwrap().post(format!("{endpoint}/v1/nodes/job-"));
    let request = request.header(SESSION_HEADER, credential.to_string()).header(REQUEST_ID_HEADER, REQUEST_ID);
    let answer = request.json(&serde_json::json!({ "sequential": true })).send().await.unwrap();
    let status = answer.status();
    assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap());
    answer.json().await.unwrap()
}
