//! Messages of the stream. Incoming ones borrow from the text, outgoing ones are written straight into one buffer.
//! `lockkeeper_api::stream` defines the types and their meaning.

use lockkeeper_api::stream::{FromServer, Watch};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// `lockkeeper_api::stream::FromClient`, without copies.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Incoming<'m> {
    #[serde(borrow)]
    Request(Request<'m>),
    Cancel(u64),
    Keepalive(u64),
    Watch(Watch),
    Unwatch(u64),
}

/// `lockkeeper_api::stream::StreamRequest`. A call that cannot be read is refused, and the stream goes on: so it is
/// read by itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request<'m> {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) request_id: Option<Uuid>,
    #[serde(default)]
    pub(super) acknowledge: Vec<Uuid>,
    #[serde(default)]
    pub(super) traceparent: Option<String>,
    #[serde(borrow)]
    pub(super) call: &'m RawValue,
}

/// The answer to a request; `body` writes JSON.
pub(super) fn answer(id: u64, status: u16, zxid: Option<u64>, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut text = Vec::with_capacity(512);
    text.extend_from_slice(b"{\"answer\":{\"id\":");
    number(&mut text, id);
    text.extend_from_slice(b",\"status\":");
    number(&mut text, status.into());
    if let Some(zxid) = zxid {
        text.extend_from_slice(b",\"zxid\":");
        number(&mut text, zxid);
    }
    text.extend_from_slice(b",\"body\":");
    let before = text.len();
    body(&mut text);
    if text.len() == before {
        text.extend_from_slice(b"null");
    }
    text.extend_from_slice(b"}}");
    text
}

fn number(text: &mut Vec<u8>, number: u64) {
    json(text, &number);
}

/// Numbers, strings and lists of them: writing those to memory does not fail.
pub(super) fn json(text: &mut Vec<u8>, value: &impl Serialize) {
    let before = text.len();
    if let Err(error) = serde_json::to_writer(&mut *text, value) {
        tracing::error!(%error, "a message could not be written; please report this");
        text.truncate(before);
    }
}

/// Any other message.
pub(super) fn message(message: &FromServer) -> Vec<u8> {
    let mut text = Vec::with_capacity(128);
    json(&mut text, message);
    text
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::Call;
    use lockkeeper_api::locks::Token;
    use lockkeeper_api::stream::{FromClient, StreamAnswer, StreamRequest};

    use super::*;
    use crate::stream::request::parse_call;

    #[test]
    fn whatever_a_client_can_say_is_understood() {
        let call = Call::VerifyLock { name: "a\"b".into(), body: Token { token: 7 } };
        let (request_id, acknowledge) = (Some(Uuid::from_u128(7)), vec![Uuid::from_u128(8)]);
        let traceparent = Some("00-0af7".to_owned());
        let asked =
            StreamRequest { id: 1, request_id, acknowledge, traceparent: traceparent.clone(), call: call.clone() };
        let watch = Watch { id: 2, path: "/a".into(), recursive: true, from: Some(9) };
        for message in [
            FromClient::Request(asked),
            FromClient::Cancel(3),
            FromClient::Keepalive(4),
            FromClient::Watch(watch),
            FromClient::Unwatch(5),
        ] {
            let text = serde_json::to_string(&message).unwrap();
            match serde_json::from_str::<Incoming<'_>>(&text).unwrap() {
                Incoming::Request(request) => {
                    assert_eq!((request.id, request.request_id), (1, Some(Uuid::from_u128(7))));
                    assert_eq!(request.acknowledge, [Uuid::from_u128(8)]);
                    assert_eq!(request.traceparent, traceparent);
                    assert_eq!(parse_call(request.call).unwrap(), call);
                }
                Incoming::Cancel(number) => assert_eq!(number, 3),
                Incoming::Keepalive(number) => assert_eq!(number, 4),
                Incoming::Watch(watch) => assert_eq!((watch.id, watch.from, watch.recursive), (2, Some(9), true)),
                Incoming::Unwatch(number) => assert_eq!(number, 5),
            }
        }
    }

    #[test]
    fn answers_are_what_clients_read() {
        let text = answer(7, 200, Some(9), |text| text.extend_from_slice(br#"{"a":1}"#));
        let FromServer::Answer(StreamAnswer { id: 7, status: 200, zxid: Some(9), body }) =
            serde_json::from_slice(&text).unwrap()
        else {
            panic!("{}", String::from_utf8_lossy(&text))
        };
        assert_eq!(body.get(), r#"{"a":1}"#);
        let text = answer(8, 204, None, |_| {});
        assert!(matches!(serde_json::from_slice(&text), Ok(FromServer::Answer(StreamAnswer { zxid: None, .. }))));
    }
}
