//! Every encoded value decodes to the same value.

use crate::golden::content;
use crate::strategies;
use bytes::BytesMut;
use lockkeeper_zookeeper::{
    ConnectRequest, ConnectResponse, FrameDecoder, Inbound, ReplyHeader, Request, RequestHeader, WatcherEvent,
    decode_reply,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn of_requests(xid in any::<i32>(), request in strategies::request()) {
        let mut out = BytesMut::new();
        request.encode(xid, &mut out);
        let (header, body) = RequestHeader::split(content(&out)).unwrap();
        prop_assert_eq!(header, RequestHeader { xid, opcode: request.opcode() });
        prop_assert_eq!(Request::decode(header.opcode, body).unwrap(), request);
    }

    #[test]
    fn of_replies(xid in any::<i32>(), zxid in any::<i64>(), (operation, reply) in strategies::reply()) {
        let mut out = BytesMut::new();
        reply.encode(xid, zxid, &mut out);
        let expected = (ReplyHeader { xid, zxid, error: 0 }, Some(reply));
        prop_assert_eq!(decode_reply(operation, content(&out)).unwrap(), expected);
    }

    #[test]
    fn of_events(zxid in any::<i64>(), event in strategies::event()) {
        let mut out = BytesMut::new();
        event.encode(zxid, &mut out);
        let (header, body) = ReplyHeader::split(content(&out)).unwrap();
        prop_assert_eq!(header, ReplyHeader { xid: -1, zxid, error: 0 });
        prop_assert_eq!(WatcherEvent::decode(body).unwrap(), event);
    }

    #[test]
    fn of_connecting(request in strategies::connect_request(), response in strategies::connect_response()) {
        let (mut asked, mut answered) = (BytesMut::new(), BytesMut::new());
        request.encode(&mut asked);
        response.encode(&mut answered);
        prop_assert_eq!(ConnectRequest::decode(content(&asked)).unwrap(), request);
        prop_assert_eq!(ConnectResponse::decode(content(&answered)).unwrap(), response);
    }

    /// Many requests in a row, arriving in pieces.
    #[test]
    fn of_pipelines(requests in proptest::collection::vec(strategies::request(), 1..20), step in 1..200usize) {
        let mut stream = BytesMut::new();
        for (xid, request) in (1..).zip(&requests) {
            request.encode(xid, &mut stream);
        }
        let mut decoder = FrameDecoder::for_server(1 << 20);
        let mut decoded = Vec::new();
        for chunk in stream.chunks(step) {
            decoder.feed(chunk);
            while let Some(inbound) = decoder.next_inbound().unwrap() {
                let Inbound::Frame(frame) = inbound else { panic!("not a word") };
                let (header, body) = RequestHeader::split(frame).unwrap();
                prop_assert_eq!(usize::try_from(header.xid).unwrap(), decoded.len() + 1);
                decoded.push(Request::decode(header.opcode, body).unwrap());
            }
        }
        prop_assert_eq!(decoded, requests);
    }
}
