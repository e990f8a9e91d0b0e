//! Encodes and decodes the messages of a stream. `lockkeeper_api::stream` defines them.

use std::collections::HashMap;

use lockkeeper_api::Call;
use lockkeeper_api::stream::{FromServer, Watch};
use serde::Serialize;
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::error::Error;
use crate::request_spec::unencodable;

/// `lockkeeper_api::stream::StreamRequest` with borrowed parts.
#[derive(Serialize)]
struct BorrowedRequest<'a> {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<Uuid>,
    #[serde(skip_serializing_if = "<[Uuid]>::is_empty")]
    acknowledge: &'a [Uuid],
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    call: &'a Call,
}

/// `lockkeeper_api::stream::FromClient` with borrowed parts.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum FromClient<'a> {
    Request(BorrowedRequest<'a>),
    Cancel(u64),
    Keepalive(u64),
    Watch(&'a Watch),
    Unwatch(u64),
}

fn text(message: &FromClient<'_>) -> Result<String, Error> {
    serde_json::to_string(message).map_err(unencodable)
}

/// Encodes a request under that id; `traces` is whether the server takes its trace.
pub(super) fn request(
    id: u64,
    request: &super::pending::PendingRequest,
    acknowledge: &[Uuid],
    traces: bool,
) -> Result<String, Error> {
    let (request_id, call) = (request.request_id, request.spec.call());
    let trace = request.spec.trace.as_ref().filter(|_| traces);
    let traceparent = trace.map(|trace| trace.traceparent.as_str());
    text(&FromClient::Request(BorrowedRequest { id, request_id, acknowledge, traceparent, call: &call }))
}

pub(super) fn cancel(id: u64) -> Result<String, Error> {
    text(&FromClient::Cancel(id))
}

pub(super) fn keepalive(number: u64) -> Result<String, Error> {
    text(&FromClient::Keepalive(number))
}

pub(super) fn watch(watch: &Watch) -> Result<String, Error> {
    text(&FromClient::Watch(watch))
}

pub(super) fn unwatch(id: u64) -> Result<String, Error> {
    text(&FromClient::Unwatch(id))
}

/// The kinds of messages that this version knows; others are skipped.
const KINDS: [&str; 10] = [
    "hello",
    "answer",
    "alive",
    "not_confirmed",
    "watching",
    "changes",
    "bookmark",
    "watch_ended",
    "lock_lost",
    "goodbye",
];

/// Decodes a message of the server. `None` for a kind that a later version may have; an error for anything that is not
/// Lockkeeper's protocol.
pub(super) fn decode(message: &str) -> Result<Option<FromServer>, String> {
    const SHOWN: usize = 80;
    let error = match serde_json::from_str(message) {
        Ok(message) => return Ok(Some(message)),
        Err(error) => error,
    };
    let kinds = serde_json::from_str::<HashMap<String, IgnoredAny>>(message).unwrap_or_default();
    if kinds.len() == 1 && !kinds.keys().any(|kind| KINDS.contains(&kind.as_str())) {
        return Ok(None);
    }
    let start: String = message.chars().take(SHOWN).collect();
    Err(format!("the message '{start}' cannot be understood: {error}"))
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::locks::Release;
    use lockkeeper_api::stream;

    use super::*;
    use crate::request_spec::RequestSpec;
    use crate::stream::pending::{PendingRequest, ReplyTo};
    use crate::traces::TraceHeaders;

    fn pending(spec: RequestSpec, request_id: Option<Uuid>) -> PendingRequest {
        let reply_to = ReplyTo::Detached;
        PendingRequest { spec, request_id, reply_to, sent: false, ever_sent: false, outcome_unknown: false }
    }

    #[test]
    fn what_is_written_is_what_the_contract_reads() {
        let call = Call::ReleaseLock { name: "a/b".into(), body: Release { token: 7, ..Release::default() } };
        let spec = RequestSpec::new(call.clone());
        let id = Uuid::new_v4();
        let asked = pending(spec, Some(id));
        let written = request(7, &asked, &[id], true).unwrap();
        let stream::FromClient::Request(read) = serde_json::from_str(&written).unwrap() else { panic!("{written}") };
        assert_eq!((read.id, read.call), (7, call));
        assert_eq!((read.request_id, read.acknowledge), (Some(id), vec![id]));
        assert_eq!(read.traceparent, None, "there is no trace");
        for written in [cancel(1), keepalive(2), unwatch(3)] {
            let written = written.unwrap();
            serde_json::from_str::<stream::FromClient>(&written).unwrap_or_else(|e| panic!("{written}: {e}"));
        }
        let asked = stream::Watch { id: 4, path: "/a".into(), recursive: true, from: Some(9) };
        let stream::FromClient::Watch(read) = serde_json::from_str(&watch(&asked).unwrap()).unwrap() else { panic!() };
        assert_eq!(read, asked);
    }

    #[test]
    fn a_node_without_traces_gets_none() {
        let headers = TraceHeaders { traceparent: "00-0af7".into(), tracestate: "a=b".into() };
        let mut spec = RequestSpec::new(Call::KeepSessionAlive { id: 1 });
        spec.trace = Some(headers.into());
        let asked = pending(spec, None);
        for (traces, sent) in [(true, Some("00-0af7")), (false, None)] {
            let written = request(7, &asked, &[], traces).unwrap();
            let stream::FromClient::Request(read) = serde_json::from_str(&written).unwrap() else {
                panic!("{written}")
            };
            assert_eq!(read.traceparent.as_deref(), sent);
        }
    }

    #[test]
    fn what_is_read() {
        let answer = decode(r#"{"answer":{"id":3,"status":200,"zxid":9,"body":{"x":[1, 2]}}}"#).unwrap();
        assert!(matches!(answer, Some(FromServer::Answer(answer)) if answer.body.get() == r#"{"x":[1, 2]}"#));
        assert!(matches!(decode(r#"{"alive":{"number":1,"timeout_ms":5}}"#), Ok(Some(FromServer::Alive { .. }))));
        assert!(matches!(decode(r#"{"fanfare":{"loud":true}}"#), Ok(None)), "a later version may say more");
        for bad in ["", "hello", "[]", "{}", r#"{"answer":{"id":"x"}}"#] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
