//! Access control where nodes are missing: a minority changes nothing, and a node that was off does not serve by the
//! rights of before.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_server::local::Cluster;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{Got, PATIENCE, eventually};

struct Node {
    base: String,
    http: Client,
}

impl Node {
    fn of(cluster: &Cluster, node: usize) -> Self {
        let http = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { base: cluster.endpoints()[node - 1].clone(), http }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Got {
        let request = self.http.get(format!("{}{path}", self.base));
        let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
        Got::of(request.send().await.unwrap()).await
    }

    async fn post(&self, path: &str, token: Option<&str>, body: Value) -> Got {
        let request = self.http.post(format!("{}{path}", self.base)).json(&body);
        let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
        Got::of(request.send().await.unwrap()).await
    }

    async fn change(&self, token: Option<&str>, change: Value) -> Value {
        self.post("/v1/access", token, change).await.json()
    }

    async fn enable(&self) -> String {
        self.change(None, json!({ "enable": {} })).await["token"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_minority_does_not_enable_it() {
    let mut cluster = Cluster::start(3).await.unwrap();
    cluster.stop(2).await.unwrap();
    cluster.stop(3).await.unwrap();
    let alone = Node::of(&cluster, 1);
    let asked = alone.post("/v1/access", None, json!({ "enable": {} })).await;
    assert!(asked.status.is_server_error(), "{} {}", asked.status, asked.text);
    assert!(!asked.text.contains("lk_"), "no token is shown");
    let me: Value = alone.get("/v1/access/me?consistency=stale", None).await.json();
    assert_eq!(me["enabled"], false, "this node goes by no rights that were not agreed on");
    cluster.restart(2).await.unwrap();
    cluster.restart(3).await.unwrap();
    // What was asked may still take place, and its answer is lost: whoever draws the token itself has it. See
    // `a_caller_that_draws_its_token_may_repeat_the_call`.
    eventually("one answer of all", async || {
        let mut answers = Vec::new();
        for node in 1..=3 {
            let me: Value = Node::of(&cluster, node).get("/v1/access/me", None).await.json();
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
    let admin = Node::of(&cluster, 1).enable().await;
    let change = async |change: Value| Node::of(&cluster, 1).change(Some(&admin), change).await;
    let rules = json!([{ "resource": "nodes", "prefix": "/a", "rights": ["read", "write"] }]);
    change(json!({ "put_role": { "name": "worker", "rules": rules } })).await;
    change(json!({ "grant": { "principal": "worker", "role": "worker" } })).await;
    let made = change(json!({ "create_token": { "principal": "worker" } })).await;
    let (token, id) = (made["token"].as_str().unwrap(), made["token_id"].clone());
    let off = Node::of(&cluster, 3);
    off.post("/v1/nodes/a", Some(token), json!({})).await.json::<Value>();
    cluster.stop(3).await.unwrap();
    Node::of(&cluster, 1).change(Some(&admin), json!({ "revoke_token": { "id": id } })).await;

    // Asked from before it listens until it has served the refusal a few times.
    let http = Client::builder().no_proxy().build().unwrap();
    let urls = ["/v1/nodes/a?consistency=stale", "/v1/nodes/a", "/v1/watch?path=/a"];
    let urls = urls.map(|path| format!("{}{path}", off.base));
    let token = token.to_owned();
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
    off.post("/v1/nodes/a/b", Some(&admin), json!({})).await.json::<Value>();
    let mine: Value = off.get("/v1/access/me", Some(&admin)).await.json();
    assert_eq!(mine["principals"], json!(["admin"]));
    Node::of(&cluster, 3).get("/v1/nodes/a", None).await.problem(Code::Unauthenticated);
}
