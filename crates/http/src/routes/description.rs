//! The description of the calls, from their rows, and what completes that of all routes: numbers, bounds, which bodies
//! may be left out, codes of errors, and unions in the form that generators of clients take. Changes what is said,
//! never what is sent.

use lockkeeper_api::MAX_TIMEOUT_MS;
use lockkeeper_api::openapi::Types;
use lockkeeper_api::row::{Headers, PathPart, Row};
use lockkeeper_core::limits::{
    MAX_ACL_ENTRIES, MAX_ACL_ID_BYTES, MAX_DATA_BYTES, MAX_DELAY_MS, MAX_FINGERPRINT_BYTES, MAX_GATE_KEEP_MS,
    MAX_GATE_PENDING_MS, MAX_LABEL_BYTES, MAX_LOCKS_TOGETHER, MAX_MULTI_OPS, MAX_PATH_BYTES, MAX_PERMITS,
    MAX_RATE_LIMIT, MAX_RATE_PER_MS, MAX_SESSION_TIMEOUT_MS, MAX_TTL_MS, MIN_SESSION_TIMEOUT_MS,
};
use lockkeeper_service::calls::{MAX_CHILDREN, MAX_PAGE, MAX_WAIT_MS};
use serde_json::{Map, Value, json};
use utoipa::IntoParams;

use super::{RequestHeaders, SessionHeader};

/// The description of a call, as its row has it.
pub(super) fn operation(row: &Row, types: &Types) -> Value {
    let Row { rules, text, .. } = row;
    let schema = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let answer = |says: &str, content_type: &str, name: &str| {
        let mut content = Map::new();
        content.insert(content_type.to_owned(), schema(name));
        json!({ "description": says, "content": content })
    };
    let problem = |says: &str| answer(says, "application/problem+json", "Problem");
    let mut responses = json!({ "4XX": problem(rules.refused), "5XX": problem(rules.failed) });
    responses[row.status.to_string()] = answer(row.done, "application/json", &types.answer);
    if let Some((status, says)) = rules.otherwise {
        responses[status.to_string()] = problem(says);
    }
    let text: Vec<&str> = text.lines().map(str::trim).collect();
    let text = text.join("\n");
    let (summary, description) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut operation = json!({
        // Stable names, which generated clients call their functions by.
        "operationId": row.name[..1].to_owned() + &in_capitals(row.name)[1..],
        "tags": [row.group],
        "summary": summary,
        "parameters": parameters_of(row, types),
        "responses": responses,
    });
    if !description.is_empty() {
        operation["description"] = json!(description);
    }
    if let Some(body) = &types.body {
        operation["requestBody"]["content"]["application/json"] = schema(body);
    }
    operation
}

/// The parts of the path, the fields of the query, and the headers.
fn parameters_of(row: &Row, types: &Types) -> Vec<Value> {
    let part = |part: &PathPart| {
        let schema = match part.is_number() {
            true => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
            false => json!({ "type": "string" }),
        };
        json!({ "name": part.name, "in": "path", "description": part.about, "required": true, "schema": schema })
    };
    let mut parameters = types.query.clone();
    if matches!(row.rules.headers, Headers::Session | Headers::SessionAndRequestId) {
        parameters.extend(SessionHeader::into_params(|| None));
    }
    if row.rules.headers == Headers::SessionAndRequestId {
        parameters.extend(RequestHeaders::into_params(|| None));
    }
    row.parts.iter().map(part).chain(parameters.iter().map(|parameter| json!(parameter))).collect()
}

/// The document as it is served.
pub(crate) fn complete(mut document: Value) -> Value {
    plain_unions(&mut document);
    bounds(&mut document);
    unsigned(&mut document);
    let schemas = document["components"]["schemas"].clone();
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (_, operation) in item.as_object_mut().into_iter().flatten() {
            leader_limit(operation, path);
            parameters(operation);
            body(operation, &schemas);
            errors(operation, path);
        }
    }
    document
}

/// `u64` is no `int64`: a zxid or a token may be larger than what that holds, and than what a double holds exactly.
fn unsigned(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let format = match fields.get("format").and_then(Value::as_str) {
                Some("int64") => "uint64",
                Some("int32") => "uint32",
                _ => "",
            };
            let is_unsigned = fields.get("minimum").and_then(Value::as_f64).is_some_and(|minimum| minimum >= 0.0);
            if is_unsigned && !format.is_empty() {
                fields.insert("format".into(), json!(format));
            }
            fields.values_mut().for_each(unsigned);
        }
        Value::Array(items) => items.iter_mut().for_each(unsigned),
        _ => {}
    }
}

/// An `allOf` with a union in it becomes a union of whole objects, each with a name, told apart by their tag.
fn plain_unions(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object().cloned() else { return };
    for (name, schema) in &schemas {
        let Some(parts) = schema["allOf"].as_array() else { continue };
        let resolved = |part: &Value| match part["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
            Some(name) => schemas.get(name).cloned().unwrap_or_default(),
            None => part.clone(),
        };
        let parts: Vec<Value> = parts.iter().map(resolved).collect();
        let Some(choices) = parts.iter().find_map(|part| part["oneOf"].as_array().cloned()) else { continue };
        let common: Vec<&Value> = parts.iter().filter(|part| part["oneOf"].is_null()).collect();
        let (mut union, mut mapping) = (Vec::new(), Map::new());
        let mut tag = String::new();
        for choice in &choices {
            let whole = common.iter().fold(choice.clone(), |whole, part| joined(whole, part));
            let Some((field, word)) = tag_of(&whole) else { return };
            let own = format!("{name}{}", in_capitals(&word));
            let at = format!("#/components/schemas/{own}");
            union.push(json!({ "$ref": at }));
            mapping.insert(word, json!(at));
            tag = field;
            document["components"]["schemas"][own] = whole;
        }
        let description = schema["description"].clone();
        let mut plain = json!({ "oneOf": union, "discriminator": { "propertyName": tag, "mapping": mapping } });
        if description.is_string() {
            plain["description"] = description;
        }
        document["components"]["schemas"][name.as_str()] = plain;
    }
}

/// An object with the fields of both.
fn joined(mut whole: Value, part: &Value) -> Value {
    for (name, property) in part["properties"].as_object().into_iter().flatten() {
        whole["properties"][name.as_str()] = property.clone();
    }
    let more = part["required"].as_array().cloned().unwrap_or_default();
    if let Some(required) = whole["required"].as_array_mut() {
        required.extend(more);
    }
    whole
}

/// The field that has one word only, and the word.
fn tag_of(schema: &Value) -> Option<(String, String)> {
    schema["properties"].as_object()?.iter().find_map(|(name, property)| {
        match property["enum"].as_array()?.as_slice() {
            [Value::String(word)] => Some((name.clone(), word.clone())),
            _ => None,
        }
    })
}

fn in_capitals(word: &str) -> String {
    let capital = |part: &str| part.get(..1).map_or_else(String::new, |first| first.to_uppercase() + &part[1..]);
    word.split('_').map(capital).collect()
}

/// What the handlers and the state refuse beyond the types.
fn bounds(document: &mut Value) {
    for (schema, field, more) in field_bounds() {
        // Indexing would make what is not there.
        if let Some(known) = document.pointer_mut(&format!("/components/schemas/{schema}/properties/{field}")) {
            extend(known, &more);
        }
    }
}

/// The bounds of the fields of bodies: type, field, bound.
fn field_bounds() -> Vec<(&'static str, &'static str, Value)> {
    let label = json!({ "maxLength": MAX_LABEL_BYTES });
    let timeout = json!({ "minimum": MIN_SESSION_TIMEOUT_MS, "maximum": MAX_SESSION_TIMEOUT_MS });
    let locks = json!({ "maxItems": MAX_LOCKS_TOGETHER - 1, "uniqueItems": true });
    let token = json!({ "minimum": 1 });
    let address = json!({ "minLength": 3, "maxLength": 256 });
    let acl = json!({ "minItems": 1, "maxItems": MAX_ACL_ENTRIES });
    let ttl = json!({ "minimum": 1, "maximum": MAX_TTL_MS });
    let id = json!({ "minLength": 0, "maxLength": MAX_ACL_ID_BYTES });
    vec![
        ("OpenSession", "timeout_ms", timeout.clone()),
        ("OpenSession", "label", label.clone()),
        ("Acquire", "wait_ms", json!({ "maximum": MAX_WAIT_MS })),
        ("Acquire", "label", label.clone()),
        ("Acquire", "also", locks.clone()),
        ("Acquire", "permits", json!({ "minimum": 1, "maximum": MAX_PERMITS })),
        ("Acquire", "delay_ms", json!({ "maximum": MAX_DELAY_MS })),
        ("Acquire", "ttl_ms", timeout),
        ("Release", "token", token.clone()),
        ("Release", "also", locks),
        ("Token", "token", token.clone()),
        ("Finish", "token", token.clone()),
        ("Fail", "token", token.clone()),
        ("Begin", "fingerprint", json!({ "minLength": 1, "maxLength": MAX_FINGERPRINT_BYTES })),
        ("Begin", "pending_ms", json!({ "minimum": 1, "maximum": MAX_GATE_PENDING_MS })),
        ("Begin", "keep_ms", json!({ "minimum": 1, "maximum": MAX_GATE_KEEP_MS })),
        ("Begin", "label", label),
        ("Finish", "keep_ms", json!({ "minimum": 1, "maximum": MAX_GATE_KEEP_MS })),
        ("Create", "ttl_ms", ttl),
        ("Create", "acl", acl),
        ("AclEntry", "permissions", json!({ "maximum": 31 })),
        ("AclEntry", "scheme", json!({ "minLength": 1, "maxLength": MAX_ACL_ID_BYTES })),
        ("AclEntry", "id", id),
        ("Data", "text", json!({ "maxLength": MAX_DATA_BYTES })),
        ("Data", "hex", json!({ "maxLength": MAX_DATA_BYTES * 2 })),
        ("Txn", "operations", json!({ "minItems": 1, "maxItems": MAX_MULTI_OPS })),
        ("AddMember", "node_id", json!({ "minimum": 1, "maximum": u32::MAX })),
        ("AddMember", "peer_address", address.clone()),
        ("AddMember", "client_address", address.clone()),
        ("AddMember", "zookeeper_address", address),
        ("Transfer", "to", token),
        ("TakePermits", "permits", json!({ "minimum": 1, "maximum": MAX_RATE_LIMIT })),
        ("TakePermits", "limit", json!({ "minimum": 1, "maximum": MAX_RATE_LIMIT })),
        ("TakePermits", "per_ms", json!({ "minimum": 1, "maximum": MAX_RATE_PER_MS })),
    ]
}

fn extend(schema: &mut Value, more: &Value) {
    if let (Some(schema), Some(more)) = (schema.as_object_mut(), more.as_object()) {
        schema.extend(more.clone());
    }
}

/// The header that every call of the API takes but those whose answers have no end.
fn leader_limit(operation: &mut Value, path: &str) {
    let has_no_end = path.ends_with("/stream") || matches!(path, "/v1/watch" | "/v1/snapshot");
    if !path.starts_with("/v1/") || has_no_end {
        return;
    }
    let header = json!({
        "name": "Lockkeeper-Timeout-Ms",
        "in": "header",
        "description": "How long the node waits for the leader before it answers: 10 s at most, also if this is more",
        "required": false,
        "schema": { "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS },
    });
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(header),
        None => operation["parameters"] = json!([header]),
    }
}

fn parameters(operation: &mut Value) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let more = match parameter["name"].as_str() {
            Some("name" | "key") => json!({ "minLength": 1, "maxLength": MAX_PATH_BYTES }),
            Some("path" | "after" | "prefix" | "children_after") => json!({ "maxLength": MAX_PATH_BYTES }),
            Some("id" | "token") => json!({ "minimum": 1 }),
            Some("limit") => json!({ "minimum": 1, "maximum": MAX_PAGE }),
            Some("children_limit") => json!({ "minimum": 1, "maximum": MAX_CHILDREN }),
            Some("Lockkeeper-Session") => json!({ "pattern": "^[0-9]+\\.[0-9a-f]{32}$" }),
            Some("Lockkeeper-Request-Id") => json!({ "format": "uuid" }),
            _ => continue,
        };
        extend(&mut parameter["schema"], &more);
    }
}

/// A call whose fields are all optional needs no body.
fn body(operation: &mut Value, schemas: &Value) {
    let content = &operation["requestBody"]["content"]["application/json"]["schema"];
    let Some(name) = content["$ref"].as_str().and_then(|at| at.rsplit('/').next()) else { return };
    let required = schemas[name]["required"].as_array().is_some_and(|fields| !fields.is_empty());
    operation["requestBody"]["required"] = json!(required);
}

/// Says of every call which codes its problems can have besides those that its own text names.
fn errors(operation: &mut Value, path: &str) {
    let has = |name: &str| {
        let mut parameters = operation["parameters"].as_array().into_iter().flatten();
        parameters.any(|parameter| parameter["name"] == name)
    };
    let mut refused = vec!["bad_request", "method_not_allowed", "too_slow", "header_too_large", "overloaded"];
    if operation["requestBody"].is_object() {
        refused.extend(["too_large", "unsupported_media_type"]);
    }
    if has("Lockkeeper-Session") {
        refused.extend(["session_required", "wrong_secret", "session_expired"]);
    }
    if has("Lockkeeper-Request-Id") {
        refused.push("request_mismatch");
    }
    if path.starts_with("/v1/") {
        refused.extend(["forbidden", "other_cluster"]);
    }
    let failed = ["internal", "no_leader", "shutting_down", "unknown_outcome"];
    let problem = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    for (class, otherwise, codes) in
        [("4XX", "Refused; nothing changed", &refused[..]), ("5XX", "Try again, or unknown (504)", &failed[..])]
    {
        let response = &mut operation["responses"][class];
        if response.is_null() {
            *response = json!({ "description": otherwise, "content": problem.clone() });
        }
        let text = response["description"].as_str().unwrap_or(otherwise);
        response["description"] = json!(format!("{text}. Any of: `{}`", codes.join("`, `")));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lockkeeper_api::CallKind;

    use super::*;
    use crate::routes::document;

    /// Fields of bodies, and parameters, for which this description says no bound.
    const UNBOUNDED: &str = "
        AccessChange.id AccessChange.name AccessChange.owner AccessChange.principal AccessChange.role
        AccessChange.rules AccessChange.token_hash AccessChange.ttl_s AccessChange.version Add.delta Add.max Add.min
        AddMember.if_version Lockkeeper-Acknowledge NamespaceLimits.bytes NamespaceLimits.lock_requests
        NamespaceLimits.nodes NamespaceLimits.requests_per_s NamespaceLimits.sessions Rule.prefix Rule.rights
        TxnOp.acl TxnOp.delta TxnOp.lock TxnOp.max TxnOp.min TxnOp.path TxnOp.token TxnOp.ttl_ms TxnOp.version
        checksum_from if_version principal version";

    fn is_bounded(schema: &Value) -> bool {
        let kind = schema["type"].to_string();
        let is_open = ["string", "integer", "number", "array"].iter().any(|open| kind.contains(open));
        let has = |bound: &&str| schema.get(bound).is_some();
        !is_open
            || ["maximum", "maxLength", "maxItems", "pattern", "enum"].iter().any(has)
            || schema["format"] == "uuid"
            || schema["minimum"].as_f64().is_some_and(|minimum| minimum >= 1.0)
    }

    /// Hands each object in a value to `look`.
    fn each_object(value: &Value, look: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(fields) => {
                look(fields);
                fields.values().for_each(|value| each_object(value, look));
            }
            Value::Array(items) => items.iter().for_each(|value| each_object(value, look)),
            _ => {}
        }
    }

    /// The fields of all bodies, as `Type.field`, each with whether it is bounded.
    fn fields_of_bodies(document: &Value) -> Vec<(String, bool)> {
        let mut types: Vec<String> = CallKind::ALL.iter().filter_map(|kind| kind.types().body).collect();
        let (mut seen, mut fields) = (BTreeSet::new(), Vec::new());
        while let Some(name) = types.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            each_object(&document["components"]["schemas"][&name], &mut |object| {
                let target = object.get("$ref").and_then(Value::as_str).and_then(|at| at.rsplit('/').next());
                types.extend(target.map(str::to_owned));
                let properties = object.get("properties").and_then(Value::as_object).into_iter().flatten();
                fields.extend(properties.map(|(field, schema)| (format!("{name}.{field}"), is_bounded(schema))));
            });
        }
        fields
    }

    /// A new call states its bounds, or says here that it has none.
    #[test]
    fn what_a_call_takes_is_bounded() {
        let document = document();
        let mut open: BTreeSet<String> =
            fields_of_bodies(&document).into_iter().filter(|(_, bounded)| !bounded).map(|(field, _)| field).collect();
        for row in CallKind::rows() {
            let operation = &document["paths"][row.route][row.method.to_lowercase()];
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let unbounded = parameters.filter(|parameter| !is_bounded(&parameter["schema"]));
            open.extend(unbounded.filter_map(|parameter| parameter["name"].as_str()).map(str::to_owned));
        }
        let named: BTreeSet<String> = UNBOUNDED.split_whitespace().map(str::to_owned).collect();
        assert_eq!(open, named);
    }

    #[test]
    fn each_bound_is_that_of_a_field() {
        let fields: BTreeSet<String> = fields_of_bodies(&document()).into_iter().map(|(field, _)| field).collect();
        for (schema, field, _) in field_bounds() {
            assert!(fields.contains(&format!("{schema}.{field}")), "{schema} has no field {field}");
        }
    }
}
