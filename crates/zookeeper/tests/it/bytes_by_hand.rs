//! A notation for messages that a human can check against zookeeper.jute: hexadecimal fields, text in quotes.

use bytes::{Bytes, BytesMut};

/// A stat in which each field has a value of its own, in the order of the wire: 1, 2, 3, …, 11.
pub(crate) const STAT: &str = "0000000000000001 0000000000000002 0000000000000003 0000000000000004 \
    00000005 00000006 00000007 0000000000000008 00000009 0000000a 000000000000000b";

/// One line of an access control list: everything to everybody.
pub(crate) const OPEN: &str = "0000001f 00000005 'world' 00000006 'anyone'";

/// The header at the end of a list of operations or results.
pub(crate) const DONE: &str = "ffffffff 01 ffffffff";

/// Reads the notation.
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

/// The content of the one frame in `framed`, whose length must be right.
pub(crate) fn content(framed: &BytesMut) -> Bytes {
    let (length, content) = framed.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize, content.len());
    Bytes::copy_from_slice(content)
}

/// The stat that [`STAT`] writes down.
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
