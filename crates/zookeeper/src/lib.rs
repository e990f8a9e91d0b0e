//! ZooKeeper's client protocol as ZooKeeper 3.9 speaks it: bytes in, values out, and back.
//!
//! The codec works in both directions, so that the server's front door (decode requests, encode replies and events) and
//! the programs that talk to one (encode requests, decode replies and events) share one description of each message.
//!
//! This crate is pure. It must never do IO, read a clock, spawn, or depend on another crate of Lockkeeper; it must never
//! panic on bytes from outside, nor allocate more than a small multiple of what has arrived. It must never judge what a
//! well-formed message *means*: create flags, watch modes, versions and paths are handed on as they came, because the
//! answer to a senseless one is an error code, not a broken connection.
//!
//! # The way of a message
//! A connection feeds a [`FrameDecoder`], which yields whole frames (and, on a server, four-letter words). The first
//! frame of a client is a [`ConnectRequest`]. From then on
//! [`RequestHeader::split`] takes the header off a frame, and [`Request::decode`] reads the body. They fail differently:
//! without a header there is nobody to answer and the connection closes; a body that cannot be read is answered with
//! [`ErrorCode::MarshallingError`], and an operation that nobody knows is [`Request::Unknown`], answered with
//! [`ErrorCode::Unimplemented`]; both keep the connection.
//!
//! Whatever is called `encode` appends a whole frame, length included, to a buffer; whatever is called `decode` takes a
//! frame's content without its length. Bytes behind the last field are ignored, as ZooKeeper ignores them.
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
//! let Some(Inbound::Frame(frame)) = decoder.next_inbound()? else { panic!("it has arrived as a whole") };
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
//! Buffers in decoded values share the memory of the frame that they came in: copy what is to be kept.

#[macro_use]
mod macros;

pub mod connect;
pub mod error_code;
pub mod four_letter;
pub mod frame;
pub mod header;
pub mod jute;
pub mod modes;
pub mod multi;
pub mod opcode;
pub mod records;
pub mod reply;
pub mod request;
pub mod watch;

pub use connect::{ConnectRequest, ConnectResponse};
pub use error_code::ErrorCode;
pub use four_letter::FourLetterWord;
pub use frame::{DEFAULT_MAX_FRAME_BYTES, FrameDecoder, FrameError, Inbound};
pub use header::{ReplyHeader, RequestHeader, xid};
pub use jute::{DecodeError, Reader, UnknownNumber, Wire, Writer};
pub use modes::{AddWatchMode, CreateMode, WatcherType};
pub use multi::{MultiOp, MultiReadOp, MultiResult};
pub use opcode::OpCode;
pub use records::{Acl, ClientInfo, Id, Permissions, Stat};
pub use reply::{Reply, decode_reply, encode_reply_with};
pub use request::Request;
pub use watch::{EventType, KeeperState, WatcherEvent};
