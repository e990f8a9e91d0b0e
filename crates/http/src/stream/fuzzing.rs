//! One entry for fuzzing: a text as a message of a client.

use lockkeeper_api::stream::{FromClient, FromServer};

use super::frame::Incoming;
use super::request::{parse_call, refused_text};

/// Checks that a message is read as the published types read it, and that a refused call gets an answer that clients
/// can read.
pub(crate) fn examine(text: &str) {
    let incoming = serde_json::from_str::<Incoming<'_>>(text);
    match (incoming, serde_json::from_str::<FromClient>(text)) {
        (Ok(Incoming::Request(request)), published) => {
            let asked = match published {
                Ok(FromClient::Request(asked)) => Some(asked),
                Ok(other) => panic!("a request here, {other:?} by the published types"),
                Err(_) => None,
            };
            if let Some(asked) = &asked {
                assert_eq!(request.id, asked.id);
                assert_eq!((request.request_id, &request.acknowledge), (asked.request_id, &asked.acknowledge));
            }
            match (parse_call(request.call), asked) {
                (Ok(call), Some(asked)) => assert_eq!(call, asked.call),
                (Ok(call), None) => panic!("the published types do not read {call:?}"),
                (Err(failure), asked) => {
                    // A call whose fields are an array is read by serde, and refused here.
                    let by_position =
                        request.call.get().split_once(':').is_some_and(|(_, it)| !it.trim().starts_with('{'));
                    assert!(asked.is_none() || by_position, "refused here only: {asked:?}");
                    assert!((400..500).contains(&failure.status()), "{}", failure.status());
                    let answer = refused_text(request.id, &failure);
                    assert!(matches!(serde_json::from_slice(&answer), Ok(FromServer::Answer(_))), "{answer:?}");
                }
            }
        }
        (Ok(Incoming::Cancel(number)), Ok(FromClient::Cancel(asked)))
        | (Ok(Incoming::Keepalive(number)), Ok(FromClient::Keepalive(asked)))
        | (Ok(Incoming::Unwatch(number)), Ok(FromClient::Unwatch(asked))) => assert_eq!(number, asked),
        (Ok(Incoming::Watch(watch)), Ok(FromClient::Watch(asked))) => assert_eq!(watch, asked),
        (Err(_), Err(_)) => {}
        (ours, published) => panic!("read as {ours:?} here and as {published:?} by the published types"),
    }
}
