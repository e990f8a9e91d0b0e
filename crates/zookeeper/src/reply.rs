//! Replies and watch events.
//!
//! A reply does not name its operation. The reader must know it from the order of the requests.

use crate::codes::{EventType, KeeperState};
use crate::frame::write_frame;
use crate::header::ReplyHeader;
use crate::jute::{DecodeError, Reader, Tagged, Wire, Writer};
use crate::multi::MultiResult;
use crate::opcode::OpCode;
use crate::records::{Acl, ClientInfo, Stat};
use crate::row::ReplyKind;
use crate::xid;
use bytes::{Bytes, BytesMut};

tagged! {
    /// The body of a reply to a request that succeeded. The table of operations says which one an operation has.
    Reply by ReplyKind {
        /// Nothing.
        Empty,
        /// A path.
        Path(path: String),
        /// A new node.
        Created {
            /// With its sequence, if it has one.
            path: String,
            /// Of the new node.
            stat: Stat,
        },
        /// A stat.
        Stat(stat: Stat),
        /// To getData, and to reconfig with the new configuration.
        Data {
            /// Null and empty differ.
            data: Option<Bytes>,
            /// Of the node.
            stat: Stat,
        },
        /// An access control list.
        Acl {
            /// The list.
            acl: Vec<Acl>,
            /// Of the node.
            stat: Stat,
        },
        /// To getChildren.
        Children(children: Vec<String>),
        /// To getChildren2.
        ChildrenAndStat {
            /// Their names, in no order.
            children: Vec<String>,
            /// Of their parent.
            stat: Stat,
        },
        /// The results of a list.
        Multi(results: Vec<MultiResult>),
        /// To addWatch: an error code in the body, always 0. Without it Curator's caches fail.
        Error(number: i32),
        /// To getEphemerals.
        Ephemerals(paths: Vec<String>),
        /// To getAllChildrenNumber.
        ChildrenNumber(number: i32),
        /// To whoAmI.
        Identities(identities: Vec<ClientInfo>),
        /// To sasl.
        Token(token: Bytes),
    }
}

impl Reply {
    /// Decodes the body of a reply to `operation`. Only a header without an error has a body.
    pub fn decode(operation: OpCode, body: Bytes) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(body);
        let kind = match operation {
            // ZooKeeper declares a stat for a check outside a multi but sends none.
            OpCode::Check if reader.left() >= Stat::MIN_BYTES => Some(ReplyKind::Stat),
            operation => operation.row().reply,
        };
        let kind = kind.ok_or(DecodeError::Misplaced { field: "Reply", opcode: operation.number() })?;
        Tagged::read(kind, reader)
    }

    /// Appends header and body as a frame.
    pub fn encode(&self, xid: i32, zxid: i64, out: &mut BytesMut) {
        encode_reply_with(xid, zxid, out, |writer| self.write(writer));
    }
}

/// Appends the frame of a reply whose body `write` writes, for bodies that should not be collected into a [`Reply`]
/// first, such as the names of 100,000 children.
pub fn encode_reply_with(xid: i32, zxid: i64, out: &mut BytesMut, write: impl FnOnce(&mut Writer<'_>)) {
    write_frame(out, |writer| {
        ReplyHeader::ok(xid, zxid).write(writer);
        write(writer);
    });
}

/// Decodes a reply to `operation`: its header, and its body unless the header has an error.
pub fn decode_reply(operation: OpCode, frame: Bytes) -> Result<(ReplyHeader, Option<Reply>), DecodeError> {
    let (header, body) = ReplyHeader::split(frame)?;
    let reply = if header.error == 0 { Some(Reply::decode(operation, body)?) } else { None };
    Ok((header, reply))
}

record! {
    /// A watch event.
    #[derive(Hash)]
    WatcherEvent {
        /// What happened.
        event_type: EventType,
        /// The session's state.
        state: KeeperState,
        /// The node that changed; for a recursive watch this may be below the watched node.
        path: String,
    }
}

impl WatcherEvent {
    /// The zxid in an event's header if it is not known; always sent by ZooKeeper before 3.9.
    pub const NO_ZXID: i64 = -1;

    /// An event of a node in a connected session.
    #[must_use]
    pub fn of_node(event_type: EventType, path: String) -> Self {
        Self { event_type, state: KeeperState::SyncConnected, path }
    }

    /// Decodes the body that follows a header with [`xid::NOTIFICATION`].
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        Self::read(&mut Reader::new(body), "WatcherEvent")
    }

    /// Appends the event as a frame. Since 3.9 `zxid` may be that of the change; [`Self::NO_ZXID`] is always valid.
    pub fn encode(&self, zxid: i64, out: &mut BytesMut) {
        write_frame(out, |writer| {
            ReplyHeader::ok(xid::NOTIFICATION, zxid).write(writer);
            self.write(writer);
        });
    }
}
