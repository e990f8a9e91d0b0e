//! `/openapi.json` describes what the server does, and the server does what it describes.

use std::collections::BTreeSet;

use lockkeeper_api::locks::Acquired;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, Got, Running};

async fn document(node: &Running) -> Value {
    let got = node.get("/openapi.json").await;
    assert_eq!(got.headers["content-type"], "application/json");
    got.json()
}

fn operations(document: &Value) -> Vec<(Method, String)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, &Value)| {
        let methods: Vec<String> = item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        methods.into_iter().map(|method| (method.parse::<Method>().unwrap(), path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn filled(path: &str) -> String {
    path.replace("{id}", "9")
        .replace("{token}", "9")
        .replace("{name}", "a/b")
        .replace("{path}", "a/b")
        .replace("{key}", "a/b")
}

#[tokio::test]
async fn every_documented_call_is_there_and_every_route_is_documented() {
    let node = Cluster::start(1).await;
    let document = document(&node).await;
    let operations = operations(&document);
    assert!(operations.len() >= 25, "{operations:?}");
    for (method, path) in &operations {
        let query = if path == "/v1/watch" { "?path=/" } else { "" };
        let body = (method == Method::POST || method == Method::PUT).then(|| json!({ "surely_not_a_field": 1 }));
        let mut request = node.request(method.clone(), &format!("{}{query}", filled(path)));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        assert_ne!(status, 405, "{method} {path}");
        if status == 404 {
            let text = Got::of(response).await.text;
            assert!(!text.contains("no resource"), "{method} {path}: {text}");
        }
    }
    // In turn, every route that the server counted is documented.
    let documented: BTreeSet<&str> = operations.iter().map(|(_, path)| path.as_str()).collect();
    let figures = node.get("/metrics").await.text;
    let counted: BTreeSet<&str> = figures
        .lines()
        .filter(|line| line.starts_with("lockkeeper_http_requests_total{"))
        .map(|line| line.split("route=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap())
        .filter(|route| *route != "none")
        .collect();
    assert_eq!(counted, documented);
}

/// Every value in a document, with its JSON pointer.
fn each<'d>(value: &'d Value, at: &str, found: &mut Vec<(String, &'d Value)>) {
    found.push((at.to_owned(), value));
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| each(value, &format!("{at}/{name}"), found)),
        Value::Array(items) => {
            items.iter().zip(0..).for_each(|(value, index)| each(value, &format!("{at}/{index}"), found))
        }
        _ => {}
    }
}

/// What client generators cannot handle is absent. `scripts/check openapi` runs another project's validator on it.
#[test]
fn the_document_is_one_that_generators_take() {
    let text = lockkeeper_server::openapi();
    let document: Value = serde_json::from_str(&text).unwrap();
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/openapi.json"), &text).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["license"]["identifier"], "Apache-2.0");
    let mut all = Vec::new();
    each(&document, "#", &mut all);
    for (at, value) in &all {
        assert!(!value.is_null(), "{at} is null, which is nothing in a description");
        if let Some(target) = value.as_object().and_then(|fields| fields.get("$ref")).and_then(Value::as_str) {
            assert!(document.pointer(&target[1..]).is_some(), "{at} refers to {target}, which is not there");
        }
        let holds_union = |part: &Value| resolve(&document, part)["oneOf"].is_array();
        let parts = value["allOf"].as_array();
        assert!(!parts.is_some_and(|parts| parts.iter().any(holds_union)), "{at}: a union within an allOf");
        let unsigned = value["minimum"].as_f64().is_some_and(|minimum| minimum >= 0.0);
        assert!(!unsigned || value["format"] != "int64", "{at}: a u64 is no int64");
    }
    let mut ids = BTreeSet::new();
    for (method, path) in operations(&document) {
        let operation = &document["paths"][&path][method.as_str().to_lowercase()];
        let id = operation["operationId"].as_str().unwrap_or_default();
        let is_name = id.chars().any(char::is_uppercase) && id.bytes().all(|b| b.is_ascii_alphabetic());
        assert!(is_name && ids.insert(id.to_owned()), "{method} {path}: operationId {id:?} is none, or another's");
        for class in ["4XX", "5XX"] {
            let schema = &operation["responses"][class]["content"]["application/problem+json"]["schema"];
            assert!(schema["$ref"] == "#/components/schemas/Problem", "{method} {path}: {class} is not described");
        }
    }
    let required = |path: &str| document["paths"][path]["post"]["requestBody"]["required"].as_bool();
    assert_eq!((required("/v1/sessions"), required("/v1/cluster/transfer")), (Some(false), Some(false)));
    assert_eq!((required("/v1/locks/{name}/acquire"), required("/v1/txn")), (Some(false), Some(true)));
    let field = |schema: &str, field: &str| document["components"]["schemas"][schema]["properties"][field].clone();
    assert_eq!(field("Acquire", "label")["maxLength"], 256);
    assert_eq!(
        (&field("Begin", "fingerprint")["minLength"], &field("Acquired", "token")["format"]),
        (&json!(1), &json!("uint64"))
    );
    assert_eq!(document["components"]["schemas"]["GateView"]["discriminator"]["propertyName"], "state");
}

/// Clients are generated from it, so it changes on purpose only: then the new hash goes here.
#[test]
fn the_document_stays_as_it_is() {
    let mut document: Value = serde_json::from_str(&lockkeeper_server::openapi()).unwrap();
    document["info"].as_object_mut().unwrap().remove("version");
    let hash = "81a451dea5fcb5da81a834d9ced430d48a637d9e07d73e9f9775147b1ed2c3e4";
    assert_eq!(crate::access::hash(&document.to_string()), hash);
}

/// Follows `$ref`.
fn resolve<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(target) => {
            document.pointer(target.trim_start_matches('#')).unwrap_or_else(|| panic!("nothing at {target}"))
        }
        None => schema,
    }
}

/// The plain objects that `allOf` and `oneOf` allow.
fn unfolded(document: &Value, schema: &Value) -> Vec<Value> {
    let schema = resolve(document, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        return choices.iter().flat_map(|choice| unfolded(document, choice)).collect();
    }
    let Some(parts) = schema["allOf"].as_array() else { return vec![schema.clone()] };
    let mut wholes = vec![json!({ "type": "object", "properties": {}, "required": [] })];
    for part in parts {
        let choices = unfolded(document, part);
        wholes = wholes.iter().flat_map(|whole| choices.iter().map(|choice| joined(whole, choice))).collect();
    }
    wholes
}

/// An object with the fields of both.
fn joined(one: &Value, two: &Value) -> Value {
    let mut whole = one.clone();
    let fields = two["properties"].as_object().unwrap().clone();
    whole["properties"].as_object_mut().unwrap().extend(fields);
    let required = two["required"].as_array().cloned().unwrap_or_default();
    whole["required"].as_array_mut().unwrap().extend(required);
    whole
}

/// Whether a value matches the schema: required fields present, no undescribed field, right types.
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = resolve(document, schema);
    if let Some(choices) = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array()) {
        let tried: Vec<_> = choices.iter().map(|choice| fits(document, choice, value, at)).collect();
        return if tried.iter().any(Result::is_ok) { Ok(()) } else { Err(format!("{at}: none of {tried:?}")) };
    }
    if schema["allOf"].is_array() {
        let tried: Vec<_> = unfolded(document, schema).iter().map(|whole| fits(document, whole, value, at)).collect();
        return if tried.iter().any(Result::is_ok) { Ok(()) } else { Err(format!("{at}: none of {tried:?}")) };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => return Err(format!("{at}: a schema without a type: {schema}")),
    };
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&actual) {
        return Err(format!("{at}: is {actual}, described as {types:?}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} is not among {words:?}"));
    }
    if let Some(items) = value.as_array() {
        let each = items
            .iter()
            .enumerate()
            .map(|(index, item)| fits(document, &schema["items"], item, &format!("{at}[{index}]")));
        return each.collect();
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for required in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(required.as_str().unwrap()) {
            return Err(format!("{at}: {required} is missing"));
        }
    }
    let described = |(name, value): (&String, &Value)| match schema["properties"].get(name) {
        Some(property) => fits(document, property, value, &format!("{at}.{name}")),
        None => Err(format!("{at}: {name} is not described")),
    };
    fields.iter().try_for_each(described)
}

/// Checks a reply against the document's schema for that call and status.
#[track_caller]
fn as_described(document: &Value, method: &str, path: &str, got: &Got) {
    let responses = &document["paths"][path][method]["responses"];
    let status = got.status.as_str();
    let class = format!("{}XX", &status[..1]);
    let response = responses.get(status).or_else(|| responses.get(&class));
    let response = response.unwrap_or_else(|| panic!("{method} {path}: {status} is not described"));
    let content_type = got.headers["content-type"].to_str().unwrap();
    let schema = &response["content"][content_type]["schema"];
    assert!(schema.is_object(), "{method} {path} {status}: {content_type} is not described: {response}");
    let value: Value = serde_json::from_str(&got.text).unwrap();
    fits(document, schema, &value, "reply").unwrap_or_else(|why| panic!("{method} {path}: {why}: {}", got.text));
}

#[tokio::test]
async fn real_replies_are_as_described() {
    let node = Cluster::start(1).await;
    let doc = document(&node).await;
    let session = node.post("/v1/sessions", None, json!({ "label": "x" })).await;
    as_described(&doc, "post", "/v1/sessions", &session);
    let credential = session.json::<Value>()["credential"].as_str().unwrap().to_owned();
    let id = session.json::<Value>()["session_id"].as_u64().unwrap();
    let mine = Some(credential.as_str());
    let acquired = node.post("/v1/locks/a/b/acquire", mine, json!({ "label": "x" })).await;
    as_described(&doc, "post", "/v1/locks/{name}/acquire", &acquired);
    let token = acquired.json::<Acquired>().token;
    let made = node.post("/v1/locks/ttl/acquire", None, json!({ "ttl_ms": 5000 })).await;
    as_described(&doc, "post", "/v1/locks/{name}/acquire", &made);

    let ops = json!({ "operations": [
        { "op": "create", "path": "/t" }, { "op": "set", "path": "/t", "data": {} }, { "op": "check", "path": "/t" },
        { "op": "lock_held", "lock": "a/b", "token": token }, { "op": "delete", "path": "/t" },
    ] });
    let no = json!({ "operations": [{ "op": "delete", "path": "/t" }] });
    let one = json!({ "token": token });
    let calls = [
        ("post", "/v1/locks/{name}/acquire", "/v1/locks/a/b/acquire".into(), None, Some(json!({ "ttl_ms": 5000 }))),
        ("post", "/v1/locks/{name}/acquire", "/v1/locks/a/b/acquire".into(), None, Some(json!({ "x": 1 }))),
        ("post", "/v1/locks/{name}/verify", "/v1/locks/a/b/verify".into(), None, Some(one.clone())),
        ("get", "/v1/locks/{name}", "/v1/locks/a/b".into(), None, None),
        ("get", "/v1/locks/{name}", "/v1/locks/..".into(), None, None),
        ("get", "/v1/locks", "/v1/locks?limit=1".into(), None, None),
        ("post", "/v1/sessions/{id}/keepalive", format!("/v1/sessions/{id}/keepalive"), mine, None),
        ("post", "/v1/sessions/{id}/keepalive", format!("/v1/sessions/{id}/keepalive"), None, None),
        ("get", "/v1/sessions/{id}", format!("/v1/sessions/{id}"), None, None),
        ("get", "/v1/sessions/{id}", "/v1/sessions/99".into(), None, None),
        ("get", "/v1/sessions", "/v1/sessions?limit=1".into(), None, None),
        ("post", "/v1/nodes/{path}", "/v1/nodes/n".into(), None, Some(json!({ "data": { "hex": "00ff" } }))),
        ("post", "/v1/nodes/{path}", "/v1/nodes/n".into(), None, Some(json!({}))),
        ("post", "/v1/nodes/{path}", "/v1/nodes/ttl".into(), None, Some(json!({ "kind": "ttl", "ttl_ms": 60000 }))),
        ("post", "/v1/nodes/{path}", "/v1/nodes/mine".into(), mine, Some(json!({ "kind": "ephemeral" }))),
        ("get", "/v1/nodes/{path}", "/v1/nodes/?children=true&children_limit=1".into(), None, None),
        ("get", "/v1/nodes/{path}", "/v1/nodes/ttl".into(), None, None),
        ("get", "/v1/nodes/{path}", "/v1/nodes/mine".into(), None, None),
        ("get", "/v1/nodes/{path}", "/v1/nodes/none".into(), None, None),
        ("put", "/v1/nodes/{path}", "/v1/nodes/n".into(), None, Some(json!({ "data": { "text": "x" } }))),
        ("put", "/v1/nodes/{path}", "/v1/nodes/n?version=7".into(), None, Some(json!({ "data": {} }))),
        ("delete", "/v1/nodes/{path}", "/v1/nodes/n?version=7".into(), None, None),
        ("delete", "/v1/nodes/{path}", "/v1/nodes/n".into(), None, None),
        ("post", "/v1/txn", "/v1/txn".into(), None, Some(ops)),
        ("post", "/v1/txn", "/v1/txn".into(), None, Some(no)),
        ("get", "/v1/watch", "/v1/watch?path=/&from=x".into(), None, None),
        ("get", "/v1/cluster", "/v1/cluster?checksum=true".into(), None, None),
        ("post", "/v1/cluster/members/{id}/promote", "/v1/cluster/members/9/promote".into(), None, None),
        ("delete", "/v1/cluster/members/{id}", "/v1/cluster/members/9".into(), None, None),
        ("post", "/v1/cluster/transfer", "/v1/cluster/transfer".into(), None, Some(json!({ "to": 9 }))),
        ("delete", "/v1/locks/{name}/holders/{token}", "/v1/locks/a/b/holders/1".into(), None, None),
        ("post", "/v1/locks/{name}/release", "/v1/locks/a/b/release".into(), mine, Some(one.clone())),
        ("post", "/v1/locks/{name}/release", "/v1/locks/a/b/release".into(), mine, Some(one)),
        (
            "post",
            "/v1/locks/{name}/acquire",
            "/v1/locks/w/acquire".into(),
            mine,
            Some(json!({ "mode": "permit", "permits": 3, "also": ["v"] })),
        ),
        ("get", "/v1/locks/{name}", "/v1/locks/w".into(), None, None),
        ("post", "/v1/locks/{name}/downgrade", "/v1/locks/w/downgrade".into(), mine, Some(json!({ "token": 1 }))),
        ("get", "/v1/gates/{key}", "/v1/gates/a/b".into(), None, None),
        ("post", "/v1/gates/{key}/begin", "/v1/gates/a/b/begin".into(), mine, Some(json!({ "fingerprint": "f" }))),
        ("post", "/v1/gates/{key}/begin", "/v1/gates/a/b/begin".into(), mine, Some(json!({ "fingerprint": "f" }))),
        ("get", "/v1/gates/{key}", "/v1/gates/a/b".into(), None, None),
        ("get", "/v1/gates", "/v1/gates?prefix=a/&limit=1".into(), None, None),
        ("get", "/v1/gates", "/v1/gates?limit=0".into(), None, None),
        ("post", "/v1/gates/{key}/finish", "/v1/gates/a/b/finish".into(), mine, Some(json!({ "token": 1 }))),
        ("post", "/v1/gates/{key}/fail", "/v1/gates/a/b/fail".into(), mine, Some(json!({ "token": 1 }))),
        ("delete", "/v1/gates/{key}", "/v1/gates/a/b?token=1".into(), None, None),
        ("delete", "/v1/gates/{key}", "/v1/gates/a/b".into(), None, None),
        ("delete", "/v1/gates/{key}", "/v1/gates/a/b".into(), None, None),
        ("post", "/v1/counters/{path}", "/v1/counters/sum".into(), mine, Some(json!({ "delta": 1, "max": 5 }))),
        (
            "post",
            "/v1/rates/{name}/take",
            "/v1/rates/a/b/take".into(),
            None,
            Some(json!({ "limit": 5, "per_ms": 3_600_000 })),
        ),
        ("get", "/v1/rates/{name}", "/v1/rates/a/b".into(), None, None),
        ("get", "/v1/rates/{name}", "/v1/rates/none".into(), None, None),
        ("get", "/v1/rates", "/v1/rates?prefix=a&limit=1".into(), None, None),
        ("get", "/v1/sessions/{id}/stream", format!("/v1/sessions/{id}/stream"), mine, None),
        ("delete", "/v1/sessions/{id}", format!("/v1/sessions/{id}"), mine, None),
    ];
    for (method, pattern, path, credential, body) in calls {
        let got = node.call(method.to_uppercase().parse().unwrap(), &path, credential, body).await;
        as_described(&doc, method, pattern, &got);
    }
}
