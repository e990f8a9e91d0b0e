//! Replies and watch events.
//!
//! A reply does not name its operation. The reader must know it from the order of the requests.

use crate::codes::{EventType, KeeperState, OpCode};
use crate::frame::write_frame;
use crate::header::{ReplyHeader, xid};
use crate::jute::{DecodeError, Reader, Wire, Writer};
use crate::multi::{MultiResult, read_parts, write_parts};
use crate::records::{Acl, ClientInfo, Stat};
use bytes::{Bytes, BytesMut};

/// The body of a reply to a request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To delete, check, ping, auth, setWatches, setWatches2, checkWatches, removeWatches and closeSession.
    Empty,
    /// To create and sync.
    Path(String),
    /// To create2, createContainer and createTTL.
    Created {
        /// With its sequence, if it has one.
        path: String,
        /// Of the new node.
        stat: Stat,
    },
    /// To exists, setData and setACL.
    Stat(Stat),
    /// To getData, and to reconfig with the new configuration.
    Data {
        /// Null and empty differ.
        data: Option<Bytes>,
        /// Of the node.
        stat: Stat,
    },
    /// To getACL.
    Acl {
        /// The list.
        acl: Vec<Acl>,
        /// Of the node.
        stat: Stat,
    },
    /// To getChildren.
    Children(Vec<String>),
    /// To getChildren2.
    ChildrenAndStat {
        /// Their names, in no order.
        children: Vec<String>,
        /// Of their parent.
        stat: Stat,
    },
    /// To multi and multiRead.
    Multi(Vec<MultiResult>),
    /// To addWatch: an error code in the body, always 0. Without it Curator's caches fail.
    Error(i32),
    /// To getEphemerals.
    Ephemerals(Vec<String>),
    /// To getAllChildrenNumber.
    ChildrenNumber(i32),
    /// To whoAmI.
    Identities(Vec<ClientInfo>),
    /// To sasl.
    Token(Bytes),
}

impl Reply {
    /// Decodes the body of a reply to `operation`. Only a header without an error has a body.
    pub fn decode(operation: OpCode, body: Bytes) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(body);
        Ok(match operation {
            OpCode::Delete
            | OpCode::Ping
            | OpCode::Auth
            | OpCode::SetWatches
            | OpCode::SetWatches2
            | OpCode::CheckWatches
            | OpCode::RemoveWatches
            | OpCode::CloseSession => Self::Empty,
            // ZooKeeper declares a stat for a check outside a multi but sends none.
            OpCode::Check if reader.left() < Stat::MIN_BYTES => Self::Empty,
            OpCode::Create => Self::Path(Wire::read(reader, "create.path")?),
            OpCode::Sync => Self::Path(Wire::read(reader, "sync.path")?),
            OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
                Self::Created { path: Wire::read(reader, "create2.path")?, stat: Wire::read(reader, "create2.stat")? }
            }
            OpCode::Check | OpCode::Exists | OpCode::SetData | OpCode::SetAcl => {
                Self::Stat(Wire::read(reader, "stat")?)
            }
            OpCode::GetData | OpCode::Reconfig => {
                Self::Data { data: Wire::read(reader, "getData.data")?, stat: Wire::read(reader, "getData.stat")? }
            }
            OpCode::GetAcl => {
                Self::Acl { acl: Wire::read(reader, "getACL.acl")?, stat: Wire::read(reader, "getACL.stat")? }
            }
            OpCode::GetChildren => Self::Children(Wire::read(reader, "getChildren.children")?),
            OpCode::GetChildren2 => Self::ChildrenAndStat {
                children: Wire::read(reader, "getChildren2.children")?,
                stat: Wire::read(reader, "getChildren2.stat")?,
            },
            OpCode::Multi | OpCode::MultiRead => Self::Multi(read_parts(reader)?),
            OpCode::AddWatch => Self::Error(reader.int("addWatch.error")?),
            OpCode::GetEphemerals => Self::Ephemerals(Wire::read(reader, "getEphemerals.ephemerals")?),
            OpCode::GetAllChildrenNumber => Self::ChildrenNumber(reader.int("getAllChildrenNumber.number")?),
            OpCode::WhoAmI => Self::Identities(Wire::read(reader, "whoAmI.identities")?),
            OpCode::Sasl => Self::Token(Wire::read(reader, "sasl.token")?),
            OpCode::Notification | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Error => {
                return Err(DecodeError::Misplaced { field: "Reply", opcode: operation.number() });
            }
        })
    }

    /// Appends header and body as a frame.
    pub fn encode(&self, xid: i32, zxid: i64, out: &mut BytesMut) {
        encode_reply_with(xid, zxid, out, |writer| self.write_body(writer));
    }

    fn write_body(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Empty => {}
            Self::Path(path) => path.write(writer),
            Self::Created { path, stat } => {
                path.write(writer);
                stat.write(writer);
            }
            Self::Stat(stat) => stat.write(writer),
            Self::Data { data, stat } => {
                data.write(writer);
                stat.write(writer);
            }
            Self::Acl { acl, stat } => {
                acl.write(writer);
                stat.write(writer);
            }
            Self::Children(names) | Self::Ephemerals(names) => names.write(writer),
            Self::ChildrenAndStat { children, stat } => {
                children.write(writer);
                stat.write(writer);
            }
            Self::Multi(results) => write_parts(results, writer),
            Self::Error(number) | Self::ChildrenNumber(number) => writer.int(*number),
            Self::Identities(identities) => identities.write(writer),
            Self::Token(token) => token.write(writer),
        }
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
