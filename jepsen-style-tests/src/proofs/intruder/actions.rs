//! What an intruder asks for over HTTP: every call of the table, and what is worse than it looks. Each action is well
//! formed, and somebody with the right to it would not be refused for want of one.

use lockkeeper_api::CallKind;
use lockkeeper_api::access::{Resource, Right};
use lockkeeper_api::row::{Headers, Needs, Row};
use reqwest::Method;
use serde_json::{Value, json};

use super::target::{AttackTarget, GATE, LOCK, NODE};

/// The session that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedSession {
    None,
    /// The intruder's own, where it has one.
    Own,
    /// The owner's, with its secret.
    Stolen,
    /// The owner's, with a secret that is drawn anew each time.
    Guessed,
}

/// See the module's text.
#[derive(Clone)]
pub(super) struct Action {
    pub(super) name: &'static str,
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) body: Option<Value>,
    /// On what it needs a right.
    pub(super) resource: Resource,
    /// Whether the right to read is enough.
    pub(super) reads: bool,
    /// Whether any role is enough.
    pub(super) with_any_role: bool,
    pub(super) session: NamedSession,
    /// Whether it asks for a session stream.
    pub(super) upgrades: bool,
    /// Refusals that are as good here as those for want of rights.
    pub(super) also: &'static [&'static str],
}

impl Action {
    fn new(name: &'static str, method: Method, resource: Resource, target: impl Into<String>) -> Self {
        let also: &'static [&'static str] = &[];
        let (target, body, session) = (target.into(), None, NamedSession::None);
        let (reads, with_any_role, upgrades) = (false, false, false);
        Self { name, method, target, body, resource, reads, with_any_role, session, upgrades, also }
    }

    fn get(name: &'static str, resource: Resource, target: impl Into<String>) -> Self {
        Self { reads: true, ..Self::new(name, Method::GET, resource, target) }
    }

    fn post(name: &'static str, resource: Resource, target: impl Into<String>, body: Value) -> Self {
        Self { body: Some(body), ..Self::new(name, Method::POST, resource, target) }
    }

    fn reads(self) -> Self {
        Self { reads: true, ..self }
    }

    fn with(self, session: NamedSession) -> Self {
        Self { session, ..self }
    }

    fn or(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }
}

/// All actions against the target.
pub(super) fn actions(target: &AttackTarget, token_id: &str) -> Vec<Action> {
    let mut all = calls(target);
    all.extend(on_locks(target));
    all.extend(on_nodes(target));
    all.extend(on_gates());
    all.extend(on_sessions(target));
    all.extend(on_cluster());
    all.extend(on_access(token_id));
    all
}

/// Every call of the table that needs a right, about what the owner has.
fn calls(target: &AttackTarget) -> Vec<Action> {
    let action = |row: &'static Row| {
        let path = row.path(|part| match (part.name, row.resource()) {
            ("token", _) => target.token.to_string(),
            ("id", Resource::Sessions) => target.session.to_string(),
            ("id", _) => "3".into(),
            (_, Resource::Locks) => LOCK.into(),
            (_, Resource::Gates) => GATE.into(),
            (_, Resource::Nodes) => NODE.into(),
            _ => "watched%2Flimit".into(),
        });
        let token = if row.resource() == Resource::Gates { target.gate_token } else { target.token };
        let body = row.rules.example.replace(r#""token":1"#, &format!(r#""token":{token}"#));
        let needs_session = row.rules.own_lane && row.rules.headers != Headers::None;
        Action {
            body: serde_json::from_str(&body).ok(),
            reads: matches!(row.rules.needs, Needs::OneOf(rights) if rights.contains(&Right::Read)),
            with_any_role: row.rules.needs == Needs::AnyRole,
            also: if needs_session { &["session_required"] } else { &[] },
            ..Action::new(row.name, Method::from_bytes(row.method.as_bytes()).unwrap_or_default(), row.resource(), path)
        }
    };
    CallKind::rows().filter(|row| row.rules.needs != Needs::NoRight).map(action).collect()
}

fn on_locks(target: &AttackTarget) -> Vec<Action> {
    const LOCKS: Resource = Resource::Locks;
    const NOT_ITS_OWN: &[&str] = &["not_held", "not_queued"];
    let token = json!({ "token": target.token });
    let held = |verb: &str| format!("/v1/locks/{LOCK}/{verb}");
    let free = "/v1/locks/watched%2Ffree/acquire";
    let ttl = json!({ "ttl_ms": 5_000 });
    vec![
        Action::post("acquire a free lock", LOCKS, free, ttl),
        Action::post("acquire a free lock in a session", LOCKS, free, json!({})).with(NamedSession::Own),
        Action::post("release in another session", LOCKS, held("release"), token.clone())
            .with(NamedSession::Own)
            .or(NOT_ITS_OWN),
        Action::post("downgrade in another session", LOCKS, held("downgrade"), token)
            .with(NamedSession::Own)
            .or(NOT_ITS_OWN),
        Action::get("show the lock, stale", LOCKS, format!("/v1/locks/{LOCK}?consistency=stale")),
        Action::get("list the locks", LOCKS, "/v1/locks?prefix=watched"),
        in_transaction(
            "check a lock in a transaction",
            json!({
                "op": "lock_held", "lock": "watched/held", "token": target.token
            }),
        )
        .reads(),
    ]
}

fn in_transaction(name: &'static str, operation: Value) -> Action {
    let body = json!({ "operations": [operation] });
    Action::post(name, Resource::Nodes, "/v1/txn", body).or(&["transaction_failed", "session_required"])
}

fn on_nodes(target: &AttackTarget) -> Vec<Action> {
    const NODES: Resource = Resource::Nodes;
    // A rule of the queues may be looked at before the caller's rights.
    const QUEUE: &[&str] = &["bad_request", "bad_path", "session_required", "no_children_for_ephemerals"];
    let at = |path: &str| format!("/v1/nodes{path}");
    let queue = at(&target.queue_path);
    let data = json!({ "data": { "text": "forged" } });
    let ephemeral = json!({ "kind": "ephemeral" });
    let request = json!({ "kind": "ephemeral", "sequential": true });
    let forged = at("/locks/watched/held/_c_7d4c2b1a-0000-4000-8000-000000000000-lock-");
    let set = |name, path: String| Action { method: Method::PUT, ..Action::post(name, NODES, path, data.clone()) };
    let delete = |name, path: String| Action::new(name, Method::DELETE, NODES, path);
    vec![
        Action::post("create a node", NODES, at("/watched/forged"), data.clone()),
        Action::post("create an ephemeral node", NODES, at("/watched/forged"), ephemeral).with(NamedSession::Own),
        delete("delete a node", at("/watched/other")),
        Action::get("read a node, stale", NODES, at(&format!("{NODE}?consistency=stale"))),
        Action::get("list the children", NODES, at("/watched?children=true")),
        Action::get("list the top", NODES, at("/?children=true")),
        Action::get("watch", NODES, "/v1/watch?path=/watched&recursive=true"),
        Action::post("forge a request in a queue", NODES, forged.clone(), request).with(NamedSession::Own).or(QUEUE),
        Action::post("forge a lasting request in a queue", NODES, forged, json!({ "sequential": true })).or(QUEUE),
        delete("delete a request from a queue", queue.clone()).or(QUEUE),
        set("set a request of a queue", queue).or(QUEUE),
        in_transaction("create in a transaction", json!({ "op": "create", "path": "/watched/forged" })),
        in_transaction("set in a transaction", json!({ "op": "set", "path": NODE, "data": { "text": "forged" } })),
        in_transaction("delete in a transaction", json!({ "op": "delete", "path": "/watched/other" })),
        in_transaction("delete a request in a transaction", json!({ "op": "delete", "path": target.queue_path })),
        in_transaction("check in a transaction", json!({ "op": "check", "path": NODE })).reads(),
    ]
}

fn on_gates() -> Vec<Action> {
    const GATES: Resource = Resource::Gates;
    const BY_HAND: &[&str] = &["bad_request", "bad_path"];
    let begin = json!({ "fingerprint": "forged" });
    let node = "/v1/nodes/gates/watched/gate";
    vec![
        Action::post("begin a gate", GATES, "/v1/gates/watched%2Fanother/begin", begin),
        Action::post("forge a gate", GATES, "/v1/nodes/gates/watched/forged", json!({})).or(BY_HAND),
        Action::new("delete a gate", Method::DELETE, GATES, node).or(BY_HAND),
    ]
}

fn on_sessions(target: &AttackTarget) -> Vec<Action> {
    const SESSIONS: Resource = Resource::Sessions;
    const SECRET: &[&str] = &["wrong_secret"];
    let session = format!("/v1/sessions/{}", target.session);
    let keepalive = || Action::new("keep a session alive", Method::POST, SESSIONS, format!("{session}/keepalive"));
    let close = || Action::new("close a session", Method::DELETE, SESSIONS, session.clone());
    let stream =
        || Action { upgrades: true, ..Action::new("stream", Method::GET, SESSIONS, format!("{session}/stream")) };
    let free = "/v1/locks/watched%2Ffree/acquire";
    let release = Action::post(
        "release in the stolen session",
        SESSIONS,
        format!("/v1/locks/{LOCK}/release"),
        json!({ "token": target.token }),
    );
    let ephemeral = json!({ "kind": "ephemeral" });
    let create = Action::post("create in the stolen session", SESSIONS, "/v1/nodes/watched/forged", ephemeral);
    let acquire = Action::post("acquire in the stolen session", SESSIONS, free, json!({}));
    let (stolen, guessed) = (NamedSession::Stolen, NamedSession::Guessed);
    let mut all = vec![stream().or(&["session_required"])];
    let with_a_secret = [
        keepalive().with(stolen),
        keepalive().with(guessed),
        keepalive().with(guessed),
        close().with(stolen),
        close().with(guessed),
        close().with(guessed),
        stream().with(stolen),
        stream().with(guessed),
        release.with(stolen),
        create.with(stolen),
        acquire.with(stolen),
    ];
    all.extend(with_a_secret.map(|action| action.or(SECRET)));
    all
}

fn on_cluster() -> Vec<Action> {
    const CLUSTER: Resource = Resource::Cluster;
    let member = json!({ "node_id": 9, "peer_address": "127.0.0.1:9" });
    vec![
        Action::post("add a member", CLUSTER, "/v1/cluster/members", member),
        Action::post("transfer leadership", CLUSTER, "/v1/cluster/transfer", json!({})),
    ]
}

fn on_access(token_id: &str) -> Vec<Action> {
    const CLUSTER: Resource = Resource::Cluster;
    let change = |name, body| Action::post(name, CLUSTER, "/v1/access", body);
    let everything = json!([{ "resource": "cluster", "rights": ["read", "admin"] }]);
    let question = "/v1/access/check?resource=cluster&right=admin&principal=admin";
    vec![
        Action::get("ask about another's rights", CLUSTER, question),
        change("disable access control", json!({ "disable": {} })),
        change("put a role", json!({ "put_role": { "name": "forged", "rules": everything } })),
        change("replace a role", json!({ "put_role": { "name": "elsewhere", "rules": everything } })),
        change("delete a role", json!({ "delete_role": { "name": "owner" } })),
        change("grant a role to anyone", json!({ "grant": { "principal": "anyone", "role": "admin" } })),
        change("take a role away", json!({ "revoke": { "principal": "owner", "role": "owner" } })),
        change("make a token", json!({ "create_token": { "principal": "admin" } })),
        change("revoke a token", json!({ "revoke_token": { "id": token_id } })),
    ]
}
