//! Every message encodes to exactly its golden bytes, and these decode to it.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::request::{ChangeRequest, CreateRequest, PathVersion, RequestGroup};
use lockkeeper_zookeeper::{
    ConnectRequest, ConnectResponse, DecodeError, ErrorCode, EventType, KeeperState, MultiOp, OpCode, Reply,
    ReplyHeader, Request, RequestHeader, UnknownNumber, WatcherEvent, decode_reply, encode_reply_with,
};

use crate::golden::replies::HEADER;
use crate::golden::{bytes, content, properties, replies, requests, seeds};

#[test]
fn the_properties_hold_for_every_golden_message() {
    for (name, seed) in seeds() {
        println!("{name}");
        properties::examine(&seed);
    }
}

#[test]
fn every_request_has_exactly_these_bytes() {
    for (name, xid, request, notation) in requests::cases() {
        let mut out = BytesMut::new();
        request.encode(xid, &mut out);
        assert_eq!(content(&out), bytes(&notation), "{name}");

        let (header, body) = RequestHeader::split(bytes(&notation)).unwrap();
        assert_eq!(header, RequestHeader { xid, opcode: request.opcode() }, "{name}");
        assert_eq!(Request::decode(header.opcode, body).unwrap(), request, "{name}");
        if let Some(reserved) = request.reserved_xid() {
            assert_eq!(reserved, xid, "{name}");
        }
    }
}

#[test]
fn every_operation_has_golden_bytes() {
    let requests: BTreeSet<i32> = requests::cases().iter().map(|(_, _, request, _)| request.opcode()).collect();
    let replies: BTreeSet<OpCode> = replies::cases().iter().map(|(_, operation, _, _)| *operation).collect();
    for operation in OpCode::ALL {
        assert!(requests.contains(&operation.number()), "no case of requests has {operation:?}");
        assert_eq!(replies.contains(operation), operation.row().reply.is_some(), "a case of replies has {operation:?}");
        assert_eq!(OpCode::from_name(operation.row().name), Some(*operation), "its name is that of another");
    }
}

/// The metrics publish the names in lower case.
#[test]
fn names_differ_from_the_variants_in_case_alone() {
    for operation in OpCode::ALL {
        assert_eq!(operation.row().name.to_lowercase(), format!("{operation:?}").to_lowercase());
    }
}

#[test]
fn requests_are_charged_for_the_paths_that_they_name() {
    for (name, _, request, _) in requests::cases() {
        let expected: Vec<&str> = match &request {
            Request::Multi(ops) => ops.iter().filter_map(charged_path).collect(),
            Request::MultiRead(ops) => vec!["/a"; ops.len()],
            _ => vec!["/a"; usize::from(request.is_charged())],
        };
        assert_eq!(request.charged_paths(), expected, "{name}");
    }
    let deletion = MultiOp::Delete(PathVersion { path: "/a".into(), version: -1 });
    assert_eq!(Request::Multi(vec![deletion]).charged_paths(), Vec::<&str>::new());
}

fn charged_path(op: &MultiOp) -> Option<&str> {
    match op {
        MultiOp::Create(op) | MultiOp::Create2(op) | MultiOp::CreateContainer(op) => Some(&op.path),
        MultiOp::CreateTtl(op) => Some(&op.path),
        MultiOp::SetData(op) => Some(&op.path),
        MultiOp::Check(op) => Some(&op.path),
        MultiOp::Delete(_) => None,
    }
}

/// What gives back, or is about the session alone, must not be charged (promise P13); all else must be.
#[test]
fn these_operations_alone_are_not_charged() {
    let free: BTreeSet<OpCode> =
        OpCode::ALL.iter().copied().filter(|operation| !operation.row().rules.charged).collect();
    let expected = BTreeSet::from([
        OpCode::Delete,
        OpCode::CloseSession,
        OpCode::GetEphemerals,
        OpCode::WhoAmI,
        OpCode::CheckWatches,
        OpCode::RemoveWatches,
        OpCode::Ping,
        OpCode::Auth,
        OpCode::Sasl,
        OpCode::SetWatches,
        OpCode::SetWatches2,
        OpCode::Sync,
        OpCode::Reconfig,
        OpCode::Notification,
        OpCode::DeleteContainer,
        OpCode::CreateSession,
        OpCode::Error,
    ]);
    assert_eq!(free, expected);
}

#[test]
fn transactions_are_the_changes_and_the_end_of_a_session() {
    for (name, _, request, _) in requests::cases() {
        let expected = match request.group() {
            RequestGroup::ChangeRequest(change) => !matches!(change, ChangeRequest::Check(_)),
            _ => request == Request::CloseSession,
        };
        let operation = OpCode::from_number(request.opcode());
        assert_eq!(operation.is_some_and(|operation| operation.row().rules.transaction), expected, "{name}");
    }
}

#[test]
fn a_truncated_body_is_an_error_and_keeps_its_header() {
    for (name, xid, request, notation) in requests::cases() {
        let whole = bytes(&notation);
        for length in 8..whole.len() {
            let (header, body) = RequestHeader::split(whole.slice(..length)).unwrap();
            assert_eq!(header.xid, xid, "{name}");
            assert!(Request::decode(header.opcode, body).is_err(), "{name} cut to {length} bytes");
        }
        assert!(RequestHeader::split(whole.slice(..7)).is_err());
        let (header, body) = RequestHeader::split([&whole[..], b"more"].concat().into()).unwrap();
        assert_eq!(Request::decode(header.opcode, body).unwrap(), request, "{name} with more behind it");
    }
}

#[test]
fn null_strings_and_vectors_read_as_empty_ones_and_null_data_does_not() {
    let (_, body) = RequestHeader::split(bytes("00000001 00000001 ffffffff ffffffff ffffffff 00000000")).unwrap();
    let expected = CreateRequest { path: String::new(), data: None, acl: Vec::new(), flags: 0 };
    assert_eq!(Request::decode(1, body).unwrap(), Request::Create(expected));
}

#[test]
fn invalid_lengths_are_refused_with_the_field() {
    let decode = |opcode, notation| Request::decode(opcode, bytes(notation)).unwrap_err();
    let field = "PathWatch.path";
    assert_eq!(decode(4, "fffffffe 00"), DecodeError::NegativeLength { field, length: -2 });
    assert_eq!(decode(4, "7fffffff 00"), DecodeError::Truncated { field, needed: 0x7fff_ffff, left: 1 });
    assert_eq!(decode(4, "00000002 c328 00"), DecodeError::NotUtf8 { field, valid_up_to: 0 });
    let field = "CreateRequest.acl";
    let error = decode(1, "00000000 00000000 20000000 00000000 00000000 00000000");
    assert_eq!(error, DecodeError::Truncated { field, needed: 0x2000_0000 * 12, left: 12 });
    assert!(error.to_string().starts_with("CreateRequest.acl needs"), "{error}");
    let error = decode(14, "00000004 00 ffffffff 00000000 00");
    assert_eq!(error, DecodeError::Misplaced { field: "Multi.op", opcode: 4 });
    let error = decode(14, "00000063 00 ffffffff 00000000 00");
    assert_eq!(error, DecodeError::Misplaced { field: "Multi.op", opcode: 99 }, "no operation has this number");
    let error = decode(22, "00000002 00 ffffffff 00000000 00000000");
    assert_eq!(error, DecodeError::Misplaced { field: "MultiRead.op", opcode: 2 });
}

/// The three forms: 45 bytes, 44 bytes, and one with unknown bytes at its end.
#[test]
fn connect_requests_have_exactly_these_bytes() {
    let fields = "00000000 0000000000000005 00007530 0000000000000007 00000010 0102030405060708090a0b0c0d0e0f10";
    let request = |read_only| ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 5,
        timeout_ms: 30_000,
        session_id: 7,
        password: (1..=16).collect::<Vec<u8>>().into(),
        read_only,
    };
    for (read_only, notation, length) in [
        (Some(true), format!("{fields} 01"), 45),
        (Some(false), format!("{fields} 00"), 45),
        (None, fields.to_owned(), 44),
    ] {
        let mut out = BytesMut::new();
        request(read_only).encode(&mut out);
        assert_eq!(content(&out), bytes(&notation));
        assert_eq!(content(&out).len(), length);
        assert_eq!(ConnectRequest::decode(bytes(&notation)).unwrap(), request(read_only));
    }
    assert_eq!(ConnectRequest::decode(bytes(&format!("{fields} 00 '-and-more'"))).unwrap(), request(Some(false)));
    assert!(ConnectRequest::decode(bytes(fields).slice(..43)).is_err());
}

#[test]
fn every_reply_has_exactly_these_bytes() {
    for (name, operation, reply, notation) in replies::cases() {
        let whole = bytes(&format!("{HEADER} {notation}"));
        let mut out = BytesMut::new();
        reply.encode(3, 4, &mut out);
        assert_eq!(content(&out), whole, "{name}");
        let expected = (ReplyHeader { xid: 3, zxid: 4, error: 0 }, Some(reply));
        assert_eq!(decode_reply(operation, whole.clone()).unwrap(), expected, "{name}");
        let longer = [&whole[..], b"more"].concat().into();
        assert_eq!(decode_reply(operation, longer).unwrap(), expected, "{name} with more behind it");
        if operation != OpCode::Check {
            for length in 0..whole.len() {
                assert!(decode_reply(operation, whole.slice(..length)).is_err(), "{name} cut to {length} bytes");
            }
        }
    }
}

#[test]
fn an_error_has_a_header_and_no_body() {
    let mut out = BytesMut::new();
    let header = ReplyHeader::failed(3, 4, ErrorCode::NoNode);
    header.encode(&mut out);
    assert_eq!(&out[..], &bytes("00000010 00000003 0000000000000004 ffffff9b")[..]);
    assert_eq!(decode_reply(OpCode::GetData, content(&out)).unwrap(), (header, None));
    assert_eq!(header.error_code(), Some(ErrorCode::NoNode));
    assert!(!header.is_notification());
}

#[test]
fn operations_between_servers_have_no_reply() {
    for operation in [OpCode::Notification, OpCode::DeleteContainer, OpCode::CreateSession, OpCode::Error] {
        let error = Reply::decode(operation, Bytes::new()).unwrap_err();
        assert_eq!(error, DecodeError::Misplaced { field: "Reply", opcode: operation.number() });
    }
}

#[test]
fn children_written_one_by_one_are_the_same_bytes() {
    let children = ["b", "cd"].map(str::to_owned).to_vec();
    let (mut collected, mut streamed) = (BytesMut::new(), BytesMut::new());
    Reply::Children(children.clone()).encode(3, 4, &mut collected);
    encode_reply_with(3, 4, &mut streamed, |writer| writer.strings(children.iter().map(String::as_str)));
    assert_eq!(collected, streamed);
}

#[test]
fn events_have_exactly_these_bytes() {
    let event = WatcherEvent::of_node(EventType::NodeChildrenChanged, "/a".into());
    let notation = "ffffffff ffffffffffffffff 00000000 00000004 00000003 00000002 '/a'";
    let mut out = BytesMut::new();
    event.encode(WatcherEvent::NO_ZXID, &mut out);
    assert_eq!(content(&out), bytes(notation));

    let (header, body) = ReplyHeader::split(bytes(notation)).unwrap();
    assert!(header.is_notification());
    assert_eq!(WatcherEvent::decode(body).unwrap(), event);

    let expired = WatcherEvent::decode(bytes("ffffffff ffffff90 00000000")).unwrap();
    let expected = WatcherEvent { event_type: EventType::None, state: KeeperState::Expired, path: String::new() };
    assert_eq!(expired, expected);
    let unknown = UnknownNumber { what: "event type", number: 8 };
    let error = WatcherEvent::decode(bytes("00000008 00000003 00000000")).unwrap_err();
    assert_eq!(error, DecodeError::Unknown { field: "WatcherEvent.event_type", unknown });
    assert_eq!(error.to_string(), "WatcherEvent.event_type: 8 is not a known event type");
}

#[test]
fn connect_responses_have_exactly_these_bytes() {
    let fields = "00000000 00007530 0000000000000007 00000010 0102030405060708090a0b0c0d0e0f10";
    let response = |read_only| ConnectResponse {
        protocol_version: 0,
        timeout_ms: 30_000,
        session_id: 7,
        password: (1..=16).collect::<Vec<u8>>().into(),
        read_only,
    };
    for (read_only, notation) in [(Some(true), format!("{fields} 01")), (None, fields.to_owned())] {
        let mut out = BytesMut::new();
        response(read_only).encode(&mut out);
        assert_eq!(content(&out), bytes(&notation));
        assert_eq!(ConnectResponse::decode(bytes(&notation)).unwrap(), response(read_only));
    }
}

#[test]
fn a_refusal_is_all_zeroes_in_the_form_of_the_request() {
    for (read_only, flag) in [(None, ""), (Some(false), "00"), (Some(true), "00")] {
        let password = Bytes::from_static(&[9; 16]);
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 1,
            timeout_ms: 1,
            session_id: 1,
            password,
            read_only,
        };
        let mut out = BytesMut::new();
        ConnectResponse::refused(&request).encode(&mut out);
        let zeroes = "00000000 00000000 0000000000000000 00000010 00000000000000000000000000000000";
        assert_eq!(content(&out), bytes(&format!("{zeroes} {flag}")));
    }
}
