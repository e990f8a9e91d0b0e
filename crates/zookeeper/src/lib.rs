//! The client protocol of ZooKeeper 3.9: decodes bytes into values and encodes values into bytes.
//!
//! The codec works in both directions: the server's frontend (which decodes requests and encodes replies and events)
//! and the programs that talk to it (which do the opposite) share one description of each message.
//!
//! This crate is pure. It must never do IO, read a clock, spawn, or depend on another crate of Lockkeeper. It must
//! never panic on bytes from outside, nor allocate more than a small multiple of the bytes received. It must never
//! judge the *meaning* of a well-formed message: create flags, watch modes, versions and paths are passed on unchecked,
//! because an invalid one is answered with an error code and does not close the connection.
//!
//! The table in `operations.rs` has every operation that clients ask for, and what follows from its row.
//!
//! # Decoding a message
//! A connection feeds a [`FrameDecoder`], which returns whole frames (and, on a server, four-letter words). A client's
//! first frame is a [`ConnectRequest`]. For later frames, [`RequestHeader::split`] separates the header and
//! [`Request::decode`] decodes the body. Their errors differ: without a header no reply is possible and the connection
//! must be closed. A malformed body is answered with [`ErrorCode::MarshallingError`] and an unknown operation
//! ([`Request::Unknown`]) with [`ErrorCode::Unimplemented`]; the connection stays open.
//!
//! Every `encode` appends a whole frame, length included, to a buffer. Every `decode` takes a frame's content without
//! its length. Bytes after the last field are ignored, as in ZooKeeper.
//!
//! ```
//! use bytes::BytesMut;
//! use lockkeeper_zookeeper::{ErrorCode, FrameDecoder, Inbound, ReplyHeader, Request, RequestHeader};
//!
//! let mut sent = BytesMut::new();
//! Request::GetAcl("/orders".to_owned()).encode(7, &mut sent);
//!
//! let mut decoder = FrameDecoder::for_server(lockkeeper_zookeeper::DEFAULT_MAX_FRAME_BYTES);
//! decoder.feed(&sent);
//! let Some(Inbound::Frame(frame)) = decoder.next_inbound()? else { panic!("the frame is complete") };
//! let (header, body) = RequestHeader::split(frame)?;
//! let mut answer = BytesMut::new();
//! match Request::decode(header.opcode, body) {
//!     Ok(Request::GetAcl(path)) if path == "/orders" => {
//!         ReplyHeader::failed(header.xid, 42, ErrorCode::NoNode).encode(&mut answer);
//!     }
//!     Ok(_) => ReplyHeader::failed(header.xid, 42, ErrorCode::Unimplemented).encode(&mut answer),
//!     Err(_) => ReplyHeader::failed(header.xid, 42, ErrorCode::MarshallingError).encode(&mut answer),
//! }
//! assert_eq!(answer.len(), 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Buffers in decoded values share memory with their frame: copy them to keep them.
//!
//! # Differences from ZooKeeper
//! Strings must be UTF-8 (ZooKeeper replaces invalid bytes), a length below −1 is always an error (ZooKeeper takes it
//! for an empty vector), null strings and vectors decode as empty ones, and an element count that the rest of the
//! message cannot hold is refused before memory is allocated. `tests/golden` has the bytes of every message; the fuzz
//! target `jute` starts from them.

#[macro_use]
pub mod jute;

#[macro_use]
pub mod multi;

#[macro_use]
pub mod operations;

pub mod codes;
pub mod connect;
pub mod frame;
pub mod header;
pub mod opcode;
pub mod records;
pub mod reply;
pub mod request;
pub mod row;
pub mod xid;

pub use codes::{AddWatchMode, CreateMode, ErrorCode, EventType, FourLetterWord, KeeperState, WatcherType};
pub use connect::{ConnectRequest, ConnectResponse};
pub use frame::{DEFAULT_MAX_FRAME_BYTES, FrameDecoder, FrameError, Inbound};
pub use header::{ReplyHeader, RequestHeader};
pub use jute::{DecodeError, Reader, UnknownNumber, Wire, Writer};
pub use multi::MultiResult;
pub use opcode::OpCode;
pub use records::{Acl, ClientInfo, Id, Permissions, Stat};
pub use reply::{Reply, WatcherEvent, decode_reply, encode_reply_with};
pub use request::{MultiOp, MultiReadOp, Request};
