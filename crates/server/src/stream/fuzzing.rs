//! One entry for fuzzing: a text as a message of a client.

use lockkeeper_api::locks::{Acquire, Release, Token};
use lockkeeper_api::stream::{FromClient, FromServer};

use super::frame::{Incoming, Request};
use super::request::{Verb, lock_call, refused_text};
use crate::extract;
use crate::failure::Failure;
use crate::http::paths;

/// Checks that a message is read as the published types read it, and that a refused call gets an answer that clients
/// can read.
pub(crate) fn examine(text: &str) {
    let incoming = serde_json::from_str::<Incoming<'_>>(text);
    match (incoming, serde_json::from_str::<FromClient>(text)) {
        (Ok(Incoming::Request(request)), Ok(FromClient::Request(asked))) => {
            assert_eq!((request.id, &*request.method, &*request.path), (asked.id, &*asked.method, &*asked.path));
            assert_eq!((request.request_id, &request.acknowledge), (asked.request_id, &asked.acknowledge));
            if let Err(failure) = examine_request(&request) {
                assert!((400..500).contains(&failure.status()), "{}", failure.status());
                let answer = refused_text(request.id, &failure);
                assert!(matches!(serde_json::from_slice(&answer), Ok(FromServer::Answer(_))), "{answer:?}");
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

fn examine_request(request: &Request<'_>) -> Result<(), Failure> {
    let body = request.body.map_or("{}", |body| body.get()).as_bytes();
    match lock_call(request)? {
        Some((Verb::Acquire, _)) => extract::parse::<Acquire>(body).map(drop),
        Some((Verb::Release, _)) => extract::parse::<Release>(body).map(drop),
        Some((Verb::Downgrade, _)) => extract::parse::<Token>(body).map(drop),
        None => {
            let (Ok(uri), Ok(method)) = (request.path.parse(), request.method.parse()) else { return Ok(()) };
            paths::fold(&method, &uri).map(drop)
        }
    }
}
