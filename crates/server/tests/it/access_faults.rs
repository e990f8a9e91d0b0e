//! Access control where nodes are missing: a minority changes nothing, and a node that was off does not serve by the
//! rights of before.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_server::local::Cluster;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::access::{enable, principal};
use crate::harness::{Caller, PATIENCE, eventually};

fn at(cluster: &Cluster, node: usize) -> Caller {
    Caller::new(Client::builder().timeout(PATIENCE), cluster.endpoints()[node - 1].clone())
}

#[tokio::test]
async fn a_minority_does_not_enable_it() {
    let mut cluster = Cluster::start(3).await.unwrap();
    cluster.stop(2).await.unwrap();
    cluster.stop(3).await.unwrap();
    let alone = at(&cluster, 1);
    let asked = alone.post("/v1/access", None, json!({ "enable": {} })).await;
    assert!(asked.status.is_server_error(), "{} {}", asked.status, asked.text);
    assert!(!asked.text.contains("lk_"), "no token is shown");
    let me: Value = alone.get("/v1/access/me?consistency=stale").await.json();
    assert_eq!(me["enabled"], false, "this node goes by no rights that were not agreed on");
    cluster.restart(2).await.unwrap();
    cluster.restart(3).await.unwrap();
    // What was asked may still take place, and its answer is lost: whoever draws the token itself has it. See
    // `a_caller_that_draws_its_token_may_repeat_the_call`.
    eventually("one answer of all", async || {
        let mut answers = Vec::new();
        for node in 1..=3 {
            let me: Value = at(&cluster, node).get("/v1/access/me").await.json();
            answers.push(me["enabled"].as_bool());
        }
        answers[0].is_some() && answers.iter().all(|answer| *answer == answers[0])
    })
    .await;
}

/// It may answer that it is not ready, but it never does what the token may not any more: not in its first moments, and
/// not by a read that may be stale.
#[tokio::test]
async fn a_node_that_was_off_does_not_serve_by_the_rights_of_before() {
    let mut cluster = Cluster::start(3).await.unwrap();
    let admin = enable(&at(&cluster, 1)).await;
    let admins = at(&cluster, 1).with(&admin);
    let rules = json!([{ "resource": "nodes", "prefix": "/a", "rights": ["read", "write"] }]);
    let made = principal(&admins, &admin, "worker", rules).await;
    let (token, off) = (made.token.unwrap(), at(&cluster, 3));
    off.with(&token).post("/v1/nodes/a", None, json!({})).await.json::<Value>();
    cluster.stop(3).await.unwrap();
    admins.change(json!({ "revoke_token": { "id": made.token_id } })).await;

    // Asked from before it listens until it has served the refusal a few times.
    let http = Client::builder().no_proxy().build().unwrap();
    let urls = ["/v1/nodes/a?consistency=stale", "/v1/nodes/a", "/v1/watch?path=/a"];
    let urls = urls.map(|path| format!("{}{path}", off.base));
    let asking = tokio::spawn(async move {
        let (mut refused, began) = (0, Instant::now());
        while refused < 20 {
            assert!(began.elapsed() < PATIENCE, "it does not serve");
            for url in &urls {
                let Ok(answer) = http.get(url).bearer_auth(&token).send().await else { continue };
                assert_ne!(answer.status(), StatusCode::OK, "it serves {url} by the rights of before");
                refused += u32::from(answer.status() == StatusCode::UNAUTHORIZED);
            }
            sleep(Duration::from_millis(2)).await;
        }
    });
    cluster.restart(3).await.unwrap();
    timeout(PATIENCE, asking).await.expect("it serves").unwrap();
    off.with(&admin).post("/v1/nodes/a/b", None, json!({})).await.json::<Value>();
    let mine: Value = off.with(&admin).get("/v1/access/me").await.json();
    assert_eq!(mine["principals"], json!(["admin"]));
    off.get("/v1/nodes/a").await.problem(Code::Unauthenticated);
}
