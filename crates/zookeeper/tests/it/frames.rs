//! Splitting a stream into frames.

use crate::golden::bytes;
use bytes::BytesMut;
use lockkeeper_zookeeper::{
    ConnectRequest, DEFAULT_MAX_FRAME_BYTES, FourLetterWord, FrameDecoder, FrameError, Inbound, Request,
};

fn server() -> FrameDecoder {
    FrameDecoder::for_server(DEFAULT_MAX_FRAME_BYTES)
}

#[test]
fn frames_come_whole_however_their_bytes_arrive() {
    let mut stream = BytesMut::new();
    let password = bytes("00000000000000000000000000000000");
    ConnectRequest { protocol_version: 0, last_zxid_seen: 0, timeout_ms: 1, session_id: 0, password, read_only: None }
        .encode(&mut stream);
    Request::Ping.encode(-2, &mut stream);
    stream.extend_from_slice(&bytes("00000000"));
    for step in 1..=stream.len() {
        let mut decoder = server();
        let mut lengths = Vec::new();
        for chunk in stream.chunks(step) {
            decoder.feed(chunk);
            while let Some(inbound) = decoder.next_inbound().unwrap() {
                let Inbound::Frame(frame) = inbound else { panic!("not a word") };
                lengths.push(frame.len());
            }
        }
        assert_eq!(lengths, [44, 8, 0], "in steps of {step}");
        assert_eq!(decoder.buffered_bytes(), 0);
    }
}

#[test]
fn a_word_is_recognized_only_as_the_first_frame_of_a_client() {
    for word in FourLetterWord::all() {
        let mut decoder = server();
        decoder.feed(&word.as_str().as_bytes()[..3]);
        assert_eq!(decoder.next_inbound(), Ok(None));
        decoder.feed(&word.as_str().as_bytes()[3..]);
        assert_eq!(decoder.next_inbound(), Ok(Some(Inbound::Word(word))));
        assert_eq!(decoder.next_inbound(), Ok(None));

        let mut decoder = server();
        decoder.feed(&bytes("00000001 00"));
        decoder.feed(word.as_str().as_bytes());
        assert!(matches!(decoder.next_inbound(), Ok(Some(Inbound::Frame(_)))));
        assert!(matches!(decoder.next_inbound(), Err(FrameError::TooLong { .. })));

        let mut decoder = FrameDecoder::for_client(DEFAULT_MAX_FRAME_BYTES);
        decoder.feed(word.as_str().as_bytes());
        assert!(matches!(decoder.next_inbound(), Err(FrameError::TooLong { .. })));
    }
}

#[test]
fn invalid_lengths_are_refused_at_once_and_for_good() {
    for (notation, expected) in [
        ("ffffffff", FrameError::Negative { length: -1 }),
        ("80000000", FrameError::Negative { length: i32::MIN }),
        ("00100000", FrameError::TooLong { length: 0x10_0000, max: 0xf_ffff }),
        ("47455420", FrameError::TooLong { length: 0x4745_5420, max: 0xf_ffff }),
    ] {
        let mut decoder = server();
        decoder.feed(&bytes(notation));
        assert_eq!(decoder.next_inbound(), Err(expected));
        decoder.feed(&bytes("00000000"));
        assert_eq!(decoder.next_inbound(), Err(expected));
        assert!(!expected.to_string().is_empty());
    }
    let mut decoder = server();
    decoder.feed(&bytes("000fffff"));
    assert_eq!(decoder.next_inbound(), Ok(None));
}

#[test]
fn a_length_alone_reserves_nothing() {
    let mut decoder = server();
    decoder.buffer_mut().extend_from_slice(&bytes("000fffff 00"));
    assert_eq!(decoder.next_inbound(), Ok(None));
    assert!(decoder.buffer_mut().capacity() < 1024);
}
