//! Properties that must hold for any bytes. The tests and the fuzz target `jute` (crates/fuzz) check them.
//!
//! The first byte selects the kind of the rest. Nothing may panic. A value that was decoded must encode into no more
//! bytes and decode to the same value again. A stream must be split into the same frames however it arrives.

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::{
    ConnectRequest, ConnectResponse, FrameDecoder, FrameError, Inbound, OpCode, ReplyHeader, Request, RequestHeader,
    WatcherEvent, decode_reply,
};

/// Number of kinds that the first byte can select.
pub(crate) const KINDS: u8 = 7;
/// A stream of bytes at a server.
pub(crate) const SERVER_STREAM: u8 = 0;
/// A stream of bytes at a client.
pub(crate) const CLIENT_STREAM: u8 = 1;
/// The content of a client's first frame.
pub(crate) const CONNECT_REQUEST: u8 = 2;
/// The content of a server's first frame.
pub(crate) const CONNECT_RESPONSE: u8 = 3;
/// The content of a request's frame.
pub(crate) const REQUEST: u8 = 4;
/// A byte that selects an operation, then the content of a reply's frame.
pub(crate) const REPLY: u8 = 5;
/// The content of a watch event's frame.
pub(crate) const EVENT: u8 = 6;

const MAX_FRAME_BYTES: usize = 0xf_ffff;

/// Checks one input. Panics if a property does not hold.
pub(crate) fn examine(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    let content = Bytes::copy_from_slice(rest);
    match kind % KINDS {
        SERVER_STREAM => stream(rest, || FrameDecoder::for_server(MAX_FRAME_BYTES)),
        CLIENT_STREAM => stream(rest, || FrameDecoder::for_client(MAX_FRAME_BYTES)),
        CONNECT_REQUEST => round_trip(&content, ConnectRequest::decode, ConnectRequest::encode),
        CONNECT_RESPONSE => round_trip(&content, ConnectResponse::decode, ConnectResponse::encode),
        REQUEST => request(&content),
        REPLY => reply(rest),
        _ => event(&content),
    }
}

/// Decodes, and if that succeeds encodes and decodes again.
fn round_trip<T: PartialEq + std::fmt::Debug, E: std::error::Error>(
    content: &Bytes,
    decode: impl Fn(Bytes) -> Result<T, E>,
    encode: impl Fn(&T, &mut BytesMut),
) {
    match decode(content.clone()) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(value) => {
            let mut framed = BytesMut::new();
            encode(&value, &mut framed);
            let mut decoder = FrameDecoder::for_client(usize::MAX);
            decoder.feed(&framed);
            let Ok(Some(Inbound::Frame(second))) = decoder.next_inbound() else { panic!("no frame in {framed:?}") };
            assert_eq!(decoder.buffered_bytes(), 0, "more than one frame in {framed:?}");
            assert!(second.len() <= content.len(), "{second:?} is longer than {content:?}");
            assert_eq!(decode(second).expect("what was encoded decodes"), value);
        }
    }
}

fn request(content: &Bytes) {
    let decode = |frame| {
        let (header, body) = RequestHeader::split(frame)?;
        Request::decode(header.opcode, body).map(|request| (header, request))
    };
    round_trip(content, decode, |(header, request), out| request.encode(header.xid, out));
}

fn reply(rest: &[u8]) {
    let Some((&choice, content)) = rest.split_first() else { return };
    let operation = OpCode::ALL[usize::from(choice) % OpCode::ALL.len()];
    let decode = |frame| decode_reply(operation, frame);
    round_trip(&Bytes::copy_from_slice(content), decode, |(header, reply), out| match reply {
        Some(reply) => reply.encode(header.xid, header.zxid, out),
        None => header.encode(out),
    });
}

fn event(content: &Bytes) {
    let decode = |frame| {
        let (header, body) = ReplyHeader::split(frame)?;
        WatcherEvent::decode(body).map(|event| (header.zxid, event))
    };
    round_trip(content, decode, |(zxid, event), out| event.encode(*zxid, out));
}

fn stream(bytes: &[u8], decoder: impl Fn() -> FrameDecoder) {
    let at_once = split(bytes, bytes.len().max(1), decoder());
    for step in [1, 5] {
        assert_eq!(at_once, split(bytes, step, decoder()), "in steps of {step}");
    }
    for inbound in at_once.0 {
        if let Inbound::Frame(frame) = inbound {
            request(&frame);
        }
    }
}

/// Everything until the first word or error, after which a connection reads no more.
fn split(bytes: &[u8], step: usize, mut decoder: FrameDecoder) -> (Vec<Inbound>, Option<FrameError>) {
    let mut seen = Vec::new();
    for chunk in bytes.chunks(step) {
        decoder.feed(chunk);
        loop {
            match decoder.next_inbound() {
                Ok(None) => break,
                Ok(Some(Inbound::Word(word))) => {
                    seen.push(Inbound::Word(word));
                    return (seen, None);
                }
                Ok(Some(frame)) => seen.push(frame),
                Err(error) => return (seen, Some(error)),
            }
        }
    }
    (seen, None)
}
