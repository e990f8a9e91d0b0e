//! Messages on a session stream.

pub(super) fn examine(input: &[u8]) {
    lockkeeper_server::fuzzing::stream_message(input);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let uuid = "0a0b0c0d-0000-4000-8000-000000000001";
    [
        r#"{"request":{"id":1,"method":"POST","path":"/v1/locks/orders%2F42/acquire","request_id":"UUID","acknowledge":["UUID"],"body":{"mode":"shared","wait_ms":1000,"label":"a\"\u00e4","also":["b"],"delay_ms":5}}}"#,
        r#"{"request":{"id":2,"method":"POST","path":"/v1/locks/a/b/release","request_id":"UUID","body":{"token":7,"also":["x","y"]}}}"#,
        r#"{"request":{"id":3,"method":"POST","path":"/v1/locks/a/downgrade","body":{"token":18446744073709551615}}}"#,
        r#"{"request":{"id":4,"method":"PUT","path":"/v1/nodes/a/b?version=3","body":{"data":"YQ==","encoding":"base64"}}}"#,
        r#"{"request":{"id":5,"method":"GET","path":"/v1/nodes/a%2Fb?children=true&consistency=stale"}}"#,
        r#"{"request":{"id":6,"method":"POST","path":"/v1/gates/k/begin","body":{"fingerprint":"f","pending_ms":1000}}}"#,
        r#"{"request":{"id":7,"method":"DELETE","path":"/v1/locks/a/holders/7"}}"#,
        r#"{"request":{"id":8,"method":"POST","path":"/v1/txn","body":{"operations":[{"create":{"path":"/a"}},{"lock_held":{"lock":"l","token":1}}]}}}"#,
        r#"{"cancel":1}"#,
        r#"{"keepalive":18446744073709551615}"#,
        r#"{"watch":{"id":1,"path":"/a","recursive":true,"from":9}}"#,
        r#"{"unwatch":1}"#,
    ]
    .iter()
    .map(|text| text.replace("UUID", uuid).into_bytes())
    .collect()
}
