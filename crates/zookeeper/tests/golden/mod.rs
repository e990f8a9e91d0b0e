//! Golden messages: each value beside its bytes, in a notation that a reader can check against zookeeper.jute
//! (hexadecimal fields, text in quotes). The tests compare them with the codec; the fuzz target `jute` (crates/fuzz)
//! starts from the same messages.

pub(crate) mod properties;
pub(crate) mod replies;
pub(crate) mod requests;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::OpCode;

/// A stat whose fields are 1, 2, 3, …, 11 in wire order.
pub(crate) const STAT: &str = "0000000000000001 0000000000000002 0000000000000003 0000000000000004 \
    00000005 00000006 00000007 0000000000000008 00000009 0000000a 000000000000000b";

/// The entry of an access control list that grants everything to everybody.
pub(crate) const OPEN: &str = "0000001f 00000005 'world' 00000006 'anyone'";

/// The header at the end of a list of operations or results.
pub(crate) const DONE: &str = "ffffffff 01 ffffffff";

/// Parses the notation.
pub(crate) fn bytes(notation: &str) -> Bytes {
    let mut out = BytesMut::new();
    for token in notation.split_whitespace() {
        if let Some(text) = token.strip_prefix('\'') {
            out.extend_from_slice(text.strip_suffix('\'').expect("text ends in a quote").as_bytes());
        } else {
            assert!(token.len() % 2 == 0, "odd number of digits in {token}");
            let byte = |index: usize| u8::from_str_radix(&token[index..index + 2], 16).expect("hexadecimal");
            out.extend((0..token.len()).step_by(2).map(byte));
        }
    }
    out.freeze()
}

/// The content of the only frame in `framed`, whose length must be right.
pub(crate) fn content(framed: &BytesMut) -> Bytes {
    let (length, content) = framed.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize, content.len());
    Bytes::copy_from_slice(content)
}

/// The value of [`STAT`].
pub(crate) fn stat() -> lockkeeper_zookeeper::Stat {
    lockkeeper_zookeeper::Stat {
        czxid: 1,
        mzxid: 2,
        ctime_ms: 3,
        mtime_ms: 4,
        version: 5,
        cversion: 6,
        aversion: 7,
        ephemeral_owner: 8,
        data_length: 9,
        num_children: 10,
        pzxid: 11,
    }
}

/// An input of the property check for each golden message, by name.
pub(crate) fn seeds() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = BTreeMap::new();
    let mut pipeline = BytesMut::new();
    for (name, xid, request, notation) in requests::cases() {
        seeds.insert(format!("request-{name}"), [&[properties::REQUEST][..], &bytes(&notation)].concat());
        request.encode(xid, &mut pipeline);
    }
    for (name, operation, _, notation) in replies::cases() {
        let choice = (0..).zip(OpCode::ALL).find_map(|(index, &code)| (code == operation).then_some(index));
        let choice: u8 = choice.expect("OpCode::ALL has every operation");
        let content = bytes(&format!("{} {notation}", replies::HEADER));
        seeds.insert(format!("reply-{name}"), [&[properties::REPLY, choice][..], &content].concat());
    }
    let password = "00000010 0102030405060708090a0b0c0d0e0f10";
    let of_kind = |kind: u8, content: Bytes| [&[kind][..], &content].concat();
    let request = bytes(&format!("00000000 0000000000000005 00007530 0000000000000007 {password} 01"));
    let response = bytes(&format!("00000000 00007530 0000000000000007 {password} 00"));
    let event = bytes("ffffffff ffffffffffffffff 00000000 00000004 00000003 00000002 '/a'");
    seeds.insert("connect-request".into(), of_kind(properties::CONNECT_REQUEST, request));
    seeds.insert("connect-response".into(), of_kind(properties::CONNECT_RESPONSE, response));
    seeds.insert("event".into(), of_kind(properties::EVENT, event));
    seeds.insert("stream-word".into(), of_kind(properties::SERVER_STREAM, bytes("'ruok'")));
    seeds.insert("stream-pipeline".into(), of_kind(properties::SERVER_STREAM, pipeline.freeze()));
    seeds.insert(
        "stream-client".into(),
        of_kind(properties::CLIENT_STREAM, bytes("00000008 fffffffe 0000000b 00000001")),
    );
    seeds
}
