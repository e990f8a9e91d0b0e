//! Requests in an open session.

use crate::codes::OpCode;
use crate::frame::write_frame;
use crate::header::{RequestHeader, xid};
use crate::jute::{DecodeError, Reader, Wire, Writer};
use crate::multi::{MultiOp, MultiReadOp, read_parts, write_parts};
use crate::records::Acl;
use bytes::{Bytes, BytesMut};

record! {
    /// The body of create, create2 and createContainer.
    CreateRequest {
        /// For a sequential node, the prefix that the sequence number is appended to.
        path: String,
        /// Null and empty differ.
        data: Option<Bytes>,
        /// Empty is an error.
        acl: Vec<Acl>,
        /// The number of a [`crate::CreateMode`].
        flags: i32,
    }
}

record! {
    /// The body of createTTL.
    CreateTtlRequest {
        /// As in [`CreateRequest`].
        path: String,
        /// As in [`CreateRequest`].
        data: Option<Bytes>,
        /// As in [`CreateRequest`].
        acl: Vec<Acl>,
        /// The number of a [`crate::CreateMode`] with a TTL.
        flags: i32,
        /// How long the node may stay unchanged.
        ttl_ms: i64,
    }
}

record! {
    /// The body of delete and check.
    PathVersion {
        /// The node.
        path: String,
        /// The expected version, −1 for any.
        version: i32,
    }
}

record! {
    /// The body of exists, getData, getChildren and getChildren2.
    PathWatch {
        /// The node.
        path: String,
        /// Whether to set a watch.
        watch: bool,
    }
}

record! {
    /// The body of setData.
    SetDataRequest {
        /// The node.
        path: String,
        /// Null and empty differ.
        data: Option<Bytes>,
        /// The expected version, −1 for any.
        version: i32,
    }
}

record! {
    /// The body of setACL.
    SetAclRequest {
        /// The node.
        path: String,
        /// Empty is an error.
        acl: Vec<Acl>,
        /// The expected version of the list, −1 for any.
        version: i32,
    }
}

record! {
    /// The body of auth.
    AuthRequest {
        /// Always 0 and ignored.
        auth_type: i32,
        /// `digest`, …
        scheme: String,
        /// In the scheme's form: `user:password`, …
        credentials: Bytes,
    }
}

record! {
    /// The body of setWatches.
    SetWatchesRequest {
        /// The client has seen changes up to this zxid.
        relative_zxid: i64,
        /// Nodes with a watch on their data.
        data_watches: Vec<String>,
        /// Absent nodes with a watch on their creation.
        exist_watches: Vec<String>,
        /// Nodes with a watch on their children.
        child_watches: Vec<String>,
    }
}

record! {
    /// The body of setWatches2.
    SetWatches2Request {
        /// As in [`SetWatchesRequest`].
        relative_zxid: i64,
        /// As in [`SetWatchesRequest`].
        data_watches: Vec<String>,
        /// As in [`SetWatchesRequest`].
        exist_watches: Vec<String>,
        /// As in [`SetWatchesRequest`].
        child_watches: Vec<String>,
        /// Nodes with a persistent watch.
        persistent_watches: Vec<String>,
        /// Nodes with a persistent recursive watch.
        persistent_recursive_watches: Vec<String>,
    }
}

record! {
    /// The body of addWatch.
    AddWatchRequest {
        /// The node.
        path: String,
        /// The number of a [`crate::AddWatchMode`].
        mode: i32,
    }
}

record! {
    /// The body of checkWatches and removeWatches.
    WatchesRequest {
        /// The node.
        path: String,
        /// The number of a [`crate::WatcherType`].
        watcher_type: i32,
    }
}

record! {
    /// The body of reconfig.
    ReconfigRequest {
        /// Servers to add.
        joining_servers: String,
        /// Servers to remove.
        leaving_servers: String,
        /// All servers, instead of the two above.
        new_members: String,
        /// The expected id of the present configuration, −1 for any.
        current_config_id: i64,
    }
}

/// A request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations are described at `OpCode`, one by one")]
pub enum Request {
    Create(CreateRequest),
    Create2(CreateRequest),
    CreateContainer(CreateRequest),
    CreateTtl(CreateTtlRequest),
    Delete(PathVersion),
    Exists(PathWatch),
    GetData(PathWatch),
    SetData(SetDataRequest),
    /// The node's path.
    GetAcl(String),
    SetAcl(SetAclRequest),
    GetChildren(PathWatch),
    GetChildren2(PathWatch),
    /// A path, which the reply repeats and which has no other meaning.
    Sync(String),
    Ping,
    Check(PathVersion),
    Multi(Vec<MultiOp>),
    MultiRead(Vec<MultiReadOp>),
    Auth(AuthRequest),
    SetWatches(SetWatchesRequest),
    SetWatches2(SetWatches2Request),
    AddWatch(AddWatchRequest),
    CheckWatches(WatchesRequest),
    RemoveWatches(WatchesRequest),
    /// A prefix of paths; empty for all.
    GetEphemerals(String),
    /// The node's path.
    GetAllChildrenNumber(String),
    WhoAmI,
    Reconfig(ReconfigRequest),
    /// A step's token.
    Sasl(Bytes),
    CloseSession,
    /// An operation that does not exist or is used between servers only. Reply with
    /// [`crate::ErrorCode::Unimplemented`]. Encodes without a body.
    Unknown {
        /// Its number.
        opcode: i32,
    },
}

impl Request {
    /// Decodes the body of the operation with this number.
    pub fn decode(opcode: i32, body: Bytes) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(body);
        let Some(operation) = OpCode::from_number(opcode) else { return Ok(Self::Unknown { opcode }) };
        Ok(match operation {
            OpCode::Create => Self::Create(Wire::read(reader, "create")?),
            OpCode::Create2 => Self::Create2(Wire::read(reader, "create2")?),
            OpCode::CreateContainer => Self::CreateContainer(Wire::read(reader, "createContainer")?),
            OpCode::CreateTtl => Self::CreateTtl(Wire::read(reader, "createTTL")?),
            OpCode::Delete => Self::Delete(Wire::read(reader, "delete")?),
            OpCode::Exists => Self::Exists(Wire::read(reader, "exists")?),
            OpCode::GetData => Self::GetData(Wire::read(reader, "getData")?),
            OpCode::SetData => Self::SetData(Wire::read(reader, "setData")?),
            OpCode::GetAcl => Self::GetAcl(Wire::read(reader, "getACL.path")?),
            OpCode::SetAcl => Self::SetAcl(Wire::read(reader, "setACL")?),
            OpCode::GetChildren => Self::GetChildren(Wire::read(reader, "getChildren")?),
            OpCode::GetChildren2 => Self::GetChildren2(Wire::read(reader, "getChildren2")?),
            OpCode::Sync => Self::Sync(Wire::read(reader, "sync.path")?),
            OpCode::Ping => Self::Ping,
            OpCode::Check => Self::Check(Wire::read(reader, "check")?),
            OpCode::Multi => Self::Multi(read_parts(reader)?),
            OpCode::MultiRead => Self::MultiRead(read_parts(reader)?),
            OpCode::Auth => Self::Auth(Wire::read(reader, "auth")?),
            OpCode::SetWatches => Self::SetWatches(Wire::read(reader, "setWatches")?),
            OpCode::SetWatches2 => Self::SetWatches2(Wire::read(reader, "setWatches2")?),
            OpCode::AddWatch => Self::AddWatch(Wire::read(reader, "addWatch")?),
            OpCode::CheckWatches => Self::CheckWatches(Wire::read(reader, "checkWatches")?),
            OpCode::RemoveWatches => Self::RemoveWatches(Wire::read(reader, "removeWatches")?),
            OpCode::GetEphemerals => Self::GetEphemerals(Wire::read(reader, "getEphemerals.prefix")?),
            OpCode::GetAllChildrenNumber => {
                Self::GetAllChildrenNumber(Wire::read(reader, "getAllChildrenNumber.path")?)
            }
            OpCode::WhoAmI => Self::WhoAmI,
            OpCode::Reconfig => Self::Reconfig(Wire::read(reader, "reconfig")?),
            OpCode::Sasl => Self::Sasl(Wire::read(reader, "sasl.token")?),
            OpCode::CloseSession => Self::CloseSession,
            OpCode::Notification | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Error => {
                Self::Unknown { opcode }
            }
        })
    }

    /// The opcode in the request's header.
    #[must_use]
    pub fn opcode(&self) -> i32 {
        let operation = match self {
            Self::Create(_) => OpCode::Create,
            Self::Create2(_) => OpCode::Create2,
            Self::CreateContainer(_) => OpCode::CreateContainer,
            Self::CreateTtl(_) => OpCode::CreateTtl,
            Self::Delete(_) => OpCode::Delete,
            Self::Exists(_) => OpCode::Exists,
            Self::GetData(_) => OpCode::GetData,
            Self::SetData(_) => OpCode::SetData,
            Self::GetAcl(_) => OpCode::GetAcl,
            Self::SetAcl(_) => OpCode::SetAcl,
            Self::GetChildren(_) => OpCode::GetChildren,
            Self::GetChildren2(_) => OpCode::GetChildren2,
            Self::Sync(_) => OpCode::Sync,
            Self::Ping => OpCode::Ping,
            Self::Check(_) => OpCode::Check,
            Self::Multi(_) => OpCode::Multi,
            Self::MultiRead(_) => OpCode::MultiRead,
            Self::Auth(_) => OpCode::Auth,
            Self::SetWatches(_) => OpCode::SetWatches,
            Self::SetWatches2(_) => OpCode::SetWatches2,
            Self::AddWatch(_) => OpCode::AddWatch,
            Self::CheckWatches(_) => OpCode::CheckWatches,
            Self::RemoveWatches(_) => OpCode::RemoveWatches,
            Self::GetEphemerals(_) => OpCode::GetEphemerals,
            Self::GetAllChildrenNumber(_) => OpCode::GetAllChildrenNumber,
            Self::WhoAmI => OpCode::WhoAmI,
            Self::Reconfig(_) => OpCode::Reconfig,
            Self::Sasl(_) => OpCode::Sasl,
            Self::CloseSession => OpCode::CloseSession,
            Self::Unknown { opcode } => return *opcode,
        };
        operation.number()
    }

    /// The reserved xid of this kind of request, if it has one.
    #[must_use]
    pub fn reserved_xid(&self) -> Option<i32> {
        match self {
            Self::Ping => Some(xid::PING),
            Self::Auth(_) => Some(xid::AUTH),
            Self::SetWatches(_) | Self::SetWatches2(_) => Some(xid::SET_WATCHES),
            _ => None,
        }
    }

    /// Appends header and body as a frame.
    pub fn encode(&self, xid: i32, out: &mut BytesMut) {
        write_frame(out, |writer| {
            RequestHeader { xid, opcode: self.opcode() }.write(writer);
            self.write_body(writer);
        });
    }

    fn write_body(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create(body) | Self::Create2(body) | Self::CreateContainer(body) => body.write(writer),
            Self::CreateTtl(body) => body.write(writer),
            Self::Delete(body) | Self::Check(body) => body.write(writer),
            Self::Exists(body) | Self::GetData(body) | Self::GetChildren(body) | Self::GetChildren2(body) => {
                body.write(writer);
            }
            Self::SetData(body) => body.write(writer),
            Self::SetAcl(body) => body.write(writer),
            Self::GetAcl(path) | Self::Sync(path) | Self::GetEphemerals(path) | Self::GetAllChildrenNumber(path) => {
                path.write(writer);
            }
            Self::Multi(ops) => write_parts(ops, writer),
            Self::MultiRead(ops) => write_parts(ops, writer),
            Self::Auth(body) => body.write(writer),
            Self::SetWatches(body) => body.write(writer),
            Self::SetWatches2(body) => body.write(writer),
            Self::AddWatch(body) => body.write(writer),
            Self::CheckWatches(body) | Self::RemoveWatches(body) => body.write(writer),
            Self::Reconfig(body) => body.write(writer),
            Self::Sasl(token) => token.write(writer),
            Self::Ping | Self::WhoAmI | Self::CloseSession | Self::Unknown { .. } => {}
        }
    }
}
