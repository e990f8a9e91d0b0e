//! The seeds of the fuzz target: one for each message of the golden tables, and they must hold what the fuzzer checks.
//!
//! After a change to the tables, build this test with `UPDATE_CORPUS=1` set and run it once.

use crate::bytes_by_hand::bytes;
use crate::{golden_replies, golden_requests, oracle};
use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::OpCode;
use std::collections::BTreeMap;
use std::path::Path;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");

fn seeds() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = BTreeMap::new();
    let mut pipeline = BytesMut::new();
    for (name, xid, request, notation) in golden_requests::cases() {
        seeds.insert(format!("request-{name}"), [&[oracle::REQUEST][..], &bytes(&notation)].concat());
        request.encode(xid, &mut pipeline);
    }
    for (name, operation, _, notation) in golden_replies::cases() {
        let place = (0..).zip(OpCode::ALL).find_map(|(place, &code)| (code == operation).then_some(place));
        let place: u8 = place.expect("it is one of all");
        let content = bytes(&format!("{} {notation}", golden_replies::HEADER));
        seeds.insert(format!("reply-{name}"), [&[oracle::REPLY, place][..], &content].concat());
    }
    let password = "00000010 0102030405060708090a0b0c0d0e0f10";
    let of_kind = |kind: u8, content: Bytes| [&[kind][..], &content].concat();
    let asked = bytes(&format!("00000000 0000000000000005 00007530 0000000000000007 {password} 01"));
    let answered = bytes(&format!("00000000 00007530 0000000000000007 {password} 00"));
    let event = bytes("ffffffff ffffffffffffffff 00000000 00000004 00000003 00000002 '/a'");
    seeds.insert("connect-request".into(), of_kind(oracle::CONNECT_REQUEST, asked));
    seeds.insert("connect-response".into(), of_kind(oracle::CONNECT_RESPONSE, answered));
    seeds.insert("event".into(), of_kind(oracle::EVENT, event));
    seeds.insert("stream-word".into(), of_kind(oracle::SERVER_STREAM, bytes("'ruok'")));
    seeds.insert("stream-pipeline".into(), of_kind(oracle::SERVER_STREAM, pipeline.freeze()));
    seeds.insert("stream-client".into(), of_kind(oracle::CLIENT_STREAM, bytes("00000008 fffffffe 0000000b 00000001")));
    seeds
}

#[test]
fn every_message_has_its_seed_and_every_seed_holds() {
    let seeds = seeds();
    if option_env!("UPDATE_CORPUS").is_some() {
        for (name, seed) in &seeds {
            std::fs::write(Path::new(CORPUS).join(name), seed).unwrap();
        }
    }
    for (name, seed) in &seeds {
        let stored = std::fs::read(Path::new(CORPUS).join(name)).unwrap_or_default();
        assert_eq!(&stored, seed, "seed {name} is out of date: see the comment above");
    }
    for entry in std::fs::read_dir(CORPUS).unwrap() {
        oracle::examine(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}
