//! Requests in an open session. They follow from the rows of the table in `operations.rs`; here are the records that
//! the rows name.

use crate::frame::write_frame;
use crate::header::RequestHeader;
use crate::jute::{DecodeError, Reader, Wire, Writer};
use crate::multi::Part;
use crate::opcode::OpCode;
use crate::records::Acl;
use crate::row::Rules;
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

tagged! {
    /// One write of a multi.
    ///
    /// For the four creates ZooKeeper goes by the flags and ignores the opcode: flags of a container or a TTL node give
    /// a [`crate::MultiResult::Create2`], all others a [`crate::MultiResult::Create`]. A decoded value has both.
    MultiOp by OpCode else Self::PLACE {
        /// A node.
        Create(op: CreateRequest),
        /// A node; ZooKeeper's own clients never send this opcode in a multi.
        Create2(op: CreateRequest),
        /// A container.
        CreateContainer(op: CreateRequest),
        /// A TTL node.
        CreateTtl(op: CreateTtlRequest),
        /// Answered by [`crate::MultiResult::Delete`].
        Delete(op: PathVersion),
        /// Answered by [`crate::MultiResult::SetData`].
        SetData(op: SetDataRequest),
        /// Answered by [`crate::MultiResult::Check`].
        Check(op: PathVersion),
    }
}

tagged! {
    /// One read of a multiRead. ZooKeeper ignores its wish for a watch.
    MultiReadOp by OpCode else Self::PLACE {
        /// Answered by [`crate::MultiResult::GetChildren`].
        GetChildren(op: PathWatch),
        /// Answered by [`crate::MultiResult::GetData`].
        GetData(op: PathWatch),
    }
}

impl Part for MultiOp {
    const PLACE: &'static str = "Multi.op";
}

impl Part for MultiReadOp {
    const PLACE: &'static str = "MultiRead.op";
}

list_of_parts!(MultiOp);
list_of_parts!(MultiReadOp);

macro_rules! define {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $operation:ident = $number:literal $name:literal $abbreviation:literal
        $($field:ident: $body:ty,)?
        -> $reply:ident
        { $($rules:tt)* }
    )* })*) => {
        /// A request's body.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            $($(
                $(#[doc = $line])*
                $operation $(($body))?,
            )*)*
            /// An operation that does not exist or is used between servers only. Reply with
            /// [`crate::ErrorCode::Unimplemented`]. Encodes without a body.
            Unknown {
                /// Its number.
                opcode: i32,
            },
        }

        /// A request by the group of its row: a server that matches the groups forgets no operation.
        #[derive(Debug, Clone, Copy)]
        pub enum RequestGroup<'a> {
            $(
                #[doc = concat!("A [`", stringify!($group), "`].")]
                $group($group<'a>),
            )*
            /// [`Request::Unknown`].
            Unknown,
        }

        $(
            /// The requests of a group.
            #[derive(Debug, Clone, Copy)]
            pub enum $group<'a> {
                $(
                    $(#[doc = $line])*
                    $operation $((&'a $body))?,
                )*
            }
        )*

        impl Request {
            /// Decodes the body of the operation with this number.
            pub fn decode(opcode: i32, body: Bytes) -> Result<Self, DecodeError> {
                let reader = &mut Reader::new(body);
                Ok(match OpCode::from_number(opcode) {
                    $($(
                        Some(OpCode::$operation) => Self::$operation
                            $((<$body as Wire>::read(reader, concat!($name, ".", stringify!($field)))?))?,
                    )*)*
                    _ => Self::Unknown { opcode },
                })
            }

            /// The opcode in the request's header.
            #[must_use]
            pub fn opcode(&self) -> i32 {
                match self {
                    $($(Self::$operation { .. } => OpCode::$operation.number(),)*)*
                    Self::Unknown { opcode } => *opcode,
                }
            }

            /// The request by its group.
            #[must_use]
            pub fn group(&self) -> RequestGroup<'_> {
                match self {
                    $($(Self::$operation $(($field))? => RequestGroup::$group($group::$operation $(($field))?),)*)*
                    Self::Unknown { .. } => RequestGroup::Unknown,
                }
            }

            fn add_paths<'a>(&'a self, paths: &mut Vec<&'a str>) {
                match self {
                    $($(Self::$operation $(($field))? => {
                        $($field.add_paths(paths);)?
                    })*)*
                    Self::Unknown { .. } => {}
                }
            }

            fn write_body(&self, writer: &mut Writer<'_>) {
                match self {
                    $($(Self::$operation $(($field))? => {
                        $($field.write(writer);)?
                    })*)*
                    Self::Unknown { .. } => {}
                }
            }
        }
    };
}

each_operation!(define);

impl Request {
    /// Its rules, if its opcode is known.
    fn rules(&self) -> Option<&'static Rules> {
        OpCode::from_number(self.opcode()).map(|operation| &operation.row().rules)
    }

    /// The reserved xid of this kind of request, if it has one.
    #[must_use]
    pub fn reserved_xid(&self) -> Option<i32> {
        self.rules()?.xid
    }

    /// Whether it counts where requests are limited by the paths that they name. A list does, though it counts nowhere
    /// if none of its parts does: [`Self::charged_paths`].
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.rules().is_some_and(|rules| rules.charged)
    }

    /// The paths in whose limits the request counts; of a list, those of its charged parts. A multi of deletions alone
    /// has none: it gives back.
    #[must_use]
    pub fn charged_paths(&self) -> Vec<&str> {
        let mut paths = Vec::new();
        if self.is_charged() {
            self.add_paths(&mut paths);
        }
        paths
    }

    /// Appends header and body as a frame.
    pub fn encode(&self, xid: i32, out: &mut BytesMut) {
        write_frame(out, |writer| {
            RequestHeader { xid, opcode: self.opcode() }.write(writer);
            self.write_body(writer);
        });
    }
}

/// A body, with the paths that it names.
trait Paths {
    fn add_paths<'a>(&'a self, paths: &mut Vec<&'a str>);
}

macro_rules! paths {
    ($($body:ty: |$this:ident, $paths:ident| $add:expr;)*) => {
        $(impl Paths for $body {
            fn add_paths<'a>(&'a self, $paths: &mut Vec<&'a str>) {
                let $this = self;
                $add
            }
        })*
    };
}

paths! {
    String: |path, paths| paths.push(path);
    CreateRequest: |body, paths| paths.push(&body.path);
    CreateTtlRequest: |body, paths| paths.push(&body.path);
    PathVersion: |body, paths| paths.push(&body.path);
    PathWatch: |body, paths| paths.push(&body.path);
    SetDataRequest: |body, paths| paths.push(&body.path);
    SetAclRequest: |body, paths| paths.push(&body.path);
    AddWatchRequest: |body, paths| paths.push(&body.path);
    WatchesRequest: |body, paths| paths.push(&body.path);
    AuthRequest: |_body, _paths| {};
    SetWatchesRequest: |_body, _paths| {};
    SetWatches2Request: |_body, _paths| {};
    ReconfigRequest: |_body, _paths| {};
    Bytes: |_body, _paths| {};
    Vec<MultiOp>: |parts, paths| paths.extend(parts.iter().filter(|part| is_charged(*part)).map(MultiOp::path));
    Vec<MultiReadOp>: |parts, paths| paths.extend(parts.iter().filter(|part| is_charged(*part)).map(MultiReadOp::path));
}

fn is_charged(part: &impl Part) -> bool {
    part.tag().row().rules.charged
}

impl MultiOp {
    fn path(&self) -> &str {
        match self {
            Self::Create(op) | Self::Create2(op) | Self::CreateContainer(op) => &op.path,
            Self::CreateTtl(op) => &op.path,
            Self::Delete(op) | Self::Check(op) => &op.path,
            Self::SetData(op) => &op.path,
        }
    }
}

impl MultiReadOp {
    fn path(&self) -> &str {
        match self {
            Self::GetChildren(op) | Self::GetData(op) => &op.path,
        }
    }
}
