//! Promise P14 call by call: every principal makes every call of the table (`api/src/calls.rs`). What must come of it
//! follows from the rules of its role alone.

use lockkeeper_api::access::{AccessAnswer, Resource, Right, Rule};
use lockkeeper_api::gates::{GateReset, GateView};
use lockkeeper_api::rates::{PermitsTaken, Rates};
use lockkeeper_api::row::{Headers, Needs, Row};
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_api::{CallKind, Code, Problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::access::{enable, principal};
use crate::harness::{Caller, Cluster, Got, Running};

const RESOURCES: [Resource; 6] =
    [Resource::Locks, Resource::Nodes, Resource::Gates, Resource::Sessions, Resource::Cluster, Resource::Rates];
const RIGHTS: [Right; 6] = [Right::Read, Right::Acquire, Right::Write, Right::Force, Right::Admin, Right::Backup];
/// Rules are for this name and what is below it.
const PREFIX: &str = "own";
/// A name below it, and one that only looks like it.
const NAMES: [&str; 2] = ["own/1", "own2"];

struct Principal {
    name: String,
    token: Option<String>,
    /// Of a principal with a role, who may have one.
    session: Option<SessionOpened>,
    /// Those of its role, if it has one.
    rules: Vec<Rule>,
    /// How it is refused.
    refused: Code,
}

/// A name as the rules on a resource have it.
fn name_in(resource: Resource, name: &str) -> String {
    match resource {
        Resource::Nodes => format!("/{name}"),
        Resource::Sessions | Resource::Cluster => String::new(),
        Resource::Locks | Resource::Gates | Resource::Rates => name.to_owned(),
    }
}

impl Principal {
    /// Whether a rule gives it one of these rights.
    fn has(&self, resource: Resource, name: &str, rights: &[Right]) -> bool {
        let name = name_in(resource, name);
        self.rules.iter().any(|rule| {
            let below = rule.prefix.is_empty() || name == rule.prefix || name.starts_with(&format!("{}/", rule.prefix));
            rule.resource == resource && below && rights.iter().any(|right| rule.rights.contains(right))
        })
    }

    fn caller(&self, node: &Running) -> Caller {
        Caller { token: self.token.clone(), ..node.caller.clone() }
    }

    fn may(&self, row: &Row, name: &str) -> bool {
        match row.rules.needs {
            Needs::NoRight => true,
            Needs::AnyRole | Needs::OwnSession => self.session.is_some(),
            Needs::OneOf(rights) => self.has(row.resource(), name, rights),
        }
    }

    /// Makes the call, about that name or its own session. `shown` is the id of a session of another.
    async fn make(&self, node: &Running, row: &Row, name: &str, shown: u64) -> Got {
        let own = self.session.as_ref().map_or(shown, |session| session.session_id);
        let mut target = row.path(|part| match (part.name, row.rules.needs) {
            ("id", Needs::OwnSession) => own.to_string(),
            ("id", _) if row.resource() == Resource::Sessions => shown.to_string(),
            ("id", _) => "9".into(),
            ("token", _) => "1".into(),
            _ => name_in(row.resource(), name),
        });
        let example = row.rules.example;
        let body = match row.method {
            "GET" if !example.is_empty() => {
                target = format!("{target}?{example}");
                None
            }
            "GET" if row.name.starts_with("list_") && !name_in(row.resource(), name).is_empty() => {
                target = format!("{target}?prefix={name}");
                None
            }
            _ if example.is_empty() => None,
            _ => Some(example.replace("\"/a\"", &format!("\"/{name}\"")).parse::<Value>().unwrap()),
        };
        let in_session = row.rules.own_lane && row.rules.headers != Headers::None;
        let session = self.session.as_ref().filter(|_| in_session).map(|session| session.credential.as_str());
        self.caller(node).call(row.method.parse().unwrap(), &target, session, body).await
    }

    /// Makes every call, and checks who may.
    async fn make_all(&self, node: &Running, shown: u64) {
        let mut rows: Vec<&Row> = CallKind::rows().collect();
        rows.sort_by_key(|row| row.name == CallKind::CloseSession.row().name);
        for row in rows {
            let has_name = matches!(row.rules.needs, Needs::OneOf(_)) && !name_in(row.resource(), PREFIX).is_empty();
            let names: &[&str] = match has_name {
                // All names, and the beginnings of more than its own.
                true if row.name.starts_with("list_") => &[NAMES[0], NAMES[1], "ow", ""],
                true => &NAMES,
                false => &NAMES[..1],
            };
            for name in names {
                let got = self.make(node, row, name, shown).await;
                let code = serde_json::from_str::<Problem>(&got.text).ok().map(|problem| problem.code);
                let wanted = match self.may(row, name) {
                    true => None,
                    // Asked for first where there can be no session.
                    false if row.rules.own_lane && self.session.is_none() && row.rules.headers != Headers::None => {
                        Some(Code::SessionRequired)
                    }
                    false => Some(self.refused),
                };
                let refused = [Code::Unauthenticated, Code::Forbidden, Code::SessionRequired];
                let refused = code.filter(|code| refused.contains(code));
                assert!(got.status < StatusCode::INTERNAL_SERVER_ERROR, "{}: {}", row.name, got.text);
                assert_ne!(got.status, StatusCode::METHOD_NOT_ALLOWED, "{}", row.name);
                assert_eq!(refused, wanted, "{}: {} {name}: {} {}", self.name, row.name, got.status, got.text);
            }
        }
    }

    /// Asks what it may do, and compares.
    async fn ask_all(&self, node: &Running) {
        let questions = RESOURCES.iter().flat_map(|resource| RIGHTS.iter().map(move |right| (*resource, *right)));
        for (resource, right) in questions {
            for own in NAMES {
                let name = name_in(resource, own);
                let question = format!("/v1/access/check?resource={resource}&right={right}&name={name}");
                let answer: AccessAnswer = self.caller(node).get(&question).await.json();
                let mut rights = vec![right];
                if right == Right::Backup {
                    // Who administers the cluster takes backups too.
                    rights.push(Right::Admin);
                }
                assert_eq!(answer.allowed, self.has(resource, own, &rights), "{}: {question}", self.name);
            }
        }
    }
}

/// A principal with a role of these rules.
async fn with_role(node: &Running, admin: &str, name: String, rules: Vec<Rule>) -> Principal {
    let token = principal(node, admin, &name, json!(rules)).await.token.unwrap();
    let session = Some(node.with(&token).session(60_000).await);
    Principal { name, token: Some(token), session, rules, refused: Code::Forbidden }
}

#[tokio::test]
async fn every_call_is_for_those_whose_rules_allow_it() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let shown = node.with(&admin).session(60_000).await.session_id;
    let without = |name: &str, token: Option<String>, refused| Principal {
        name: name.into(),
        token,
        session: None,
        rules: Vec::new(),
        refused,
    };
    let unknown = format!("lk_{}", "A".repeat(43));
    let lonely = node.with(&admin).change(json!({ "create_token": { "principal": "lonely" } })).await.token;
    without("nobody", None, Code::Unauthenticated).make_all(&node, shown).await;
    without("unknown", Some(unknown), Code::Unauthenticated).make_all(&node, shown).await;
    without("lonely", lonely, Code::Forbidden).make_all(&node, shown).await;
    let everything = RESOURCES.map(|resource| Rule { resource, prefix: String::new(), rights: RIGHTS.to_vec() });
    let mut roles = vec![("guest".to_owned(), Vec::new()), ("everything".to_owned(), everything.to_vec())];
    for resource in RESOURCES {
        let role = |right: Right| {
            let rule = Rule { resource, prefix: name_in(resource, PREFIX), rights: vec![right] };
            (format!("{resource}-{right}"), vec![rule])
        };
        roles.extend(RIGHTS.map(role));
    }
    for (name, rules) in roles {
        // One after the other, so that no session expires before its turn.
        let one = with_role(&node, &admin, name, rules).await;
        one.make_all(&node, shown).await;
        one.ask_all(&node).await;
    }
}

/// A session is shown to its own principal. A watch needs the right to read, and who asks about the node needs none.
#[tokio::test]
async fn what_is_its_own_or_no_call_is_for_those_who_may_read_or_for_all() {
    let node = Cluster::start(1).await;
    let before = node.session(60_000).await;
    let admin = enable(&node).await;
    let guest = principal(&node, &admin, "guest", json!([])).await.token.unwrap();
    let own = node.with(&guest).session(60_000).await.session_id;
    node.with(&guest).get(&format!("/v1/sessions/{own}")).await.json::<Value>();
    let nobody = node.caller.clone();
    nobody.get("/v1/watch?path=/").await.problem(Code::Unauthenticated);
    node.with(&format!("lk_{}", "A".repeat(43))).get("/v1/watch?path=/").await.problem(Code::Unauthenticated);
    node.with(&guest).get("/v1/watch?path=/").await.problem(Code::Forbidden);
    let stranger = Some(before.credential.as_str());
    nobody.post("/v1/locks/orders/acquire", stranger, json!({})).await.problem(Code::Unauthenticated);
    for open in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(nobody.get(open).await.status, StatusCode::OK, "{open}");
    }
    let force = json!([{ "resource": "gates", "prefix": "pay", "rights": ["force"] }]);
    let operator = principal(&node, &admin, "operator", force).await.token.unwrap();
    node.with(&admin).post("/v1/gates/pay/42/begin", None, json!({ "fingerprint": "f" })).await.json::<GateView>();
    node.with(&operator).call(Method::DELETE, "/v1/gates/pay/42", None, None).await.json::<GateReset>();
    let mails = json!([{ "resource": "rates", "prefix": "mails", "rights": ["acquire"] }]);
    let mailer = principal(&node, &admin, "mailer", mails).await.token.unwrap();
    let body = json!({ "limit": 5, "per_ms": 3_600_000 });
    let taken = node.with(&mailer).post("/v1/rates/mails/a/take", None, body).await;
    assert!(taken.json::<PermitsTaken>().granted);
    assert_eq!(node.with(&mailer).get("/v1/rates?prefix=mails").await.json::<Rates>().rates.len(), 1);
}
