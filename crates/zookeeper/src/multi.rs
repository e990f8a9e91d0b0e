//! Lists of operations in one request, and of their results. A header with the operation's number precedes each part,
//! and a header with `done` ends the list.
//!
//! The reply header of a failed multi reports success; the failure is among the results ([`MultiResult::of_failure`]).

use crate::jute::{DecodeError, Reader, Wire, Writer};
use crate::records::Stat;
use crate::request::{CreateRequest, CreateTtlRequest, PathVersion, PathWatch, SetDataRequest};
use crate::{ErrorCode, OpCode};
use bytes::Bytes;

record! {
    /// The header of a part.
    #[derive(Copy)]
    MultiHeader {
        /// The number of the part's operation.
        opcode: i32,
        /// Ends the list.
        done: bool,
        /// The error of a result; −1 for an operation.
        error: i32,
    }
}

/// A part of a list.
pub(crate) trait Part: Sized {
    /// The number in its header.
    fn opcode(&self) -> OpCode;
    /// The error in its header.
    fn header_error(&self) -> i32;
    fn read(opcode: i32, reader: &mut Reader) -> Result<Self, DecodeError>;
    fn write(&self, writer: &mut Writer<'_>);
}

/// The list is bounded by the message, since each part takes at least the nine bytes of its header.
pub(crate) fn read_parts<P: Part>(reader: &mut Reader) -> Result<Vec<P>, DecodeError> {
    let mut parts = Vec::new();
    loop {
        let header = MultiHeader::read(reader, "MultiHeader")?;
        if header.done {
            return Ok(parts);
        }
        parts.push(P::read(header.opcode, reader)?);
    }
}

pub(crate) fn write_parts<P: Part>(parts: &[P], writer: &mut Writer<'_>) {
    for part in parts {
        MultiHeader { opcode: part.opcode().number(), done: false, error: part.header_error() }.write(writer);
        part.write(writer);
    }
    MultiHeader { opcode: -1, done: true, error: -1 }.write(writer);
}

/// One write of a multi.
///
/// For the four creates ZooKeeper goes by the flags and ignores the opcode: flags of a container or a TTL node give a
/// [`MultiResult::Create2`], all others a [`MultiResult::Create`]. A decoded value has both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiOp {
    /// A node.
    Create(CreateRequest),
    /// A node; ZooKeeper's own clients never send this opcode in a multi.
    Create2(CreateRequest),
    /// A container.
    CreateContainer(CreateRequest),
    /// A TTL node.
    CreateTtl(CreateTtlRequest),
    /// Answered by [`MultiResult::Delete`].
    Delete(PathVersion),
    /// Answered by [`MultiResult::SetData`].
    SetData(SetDataRequest),
    /// Answered by [`MultiResult::Check`].
    Check(PathVersion),
}

impl Part for MultiOp {
    fn opcode(&self) -> OpCode {
        match self {
            Self::Create(_) => OpCode::Create,
            Self::Create2(_) => OpCode::Create2,
            Self::CreateContainer(_) => OpCode::CreateContainer,
            Self::CreateTtl(_) => OpCode::CreateTtl,
            Self::Delete(_) => OpCode::Delete,
            Self::SetData(_) => OpCode::SetData,
            Self::Check(_) => OpCode::Check,
        }
    }

    fn header_error(&self) -> i32 {
        -1
    }

    fn read(opcode: i32, reader: &mut Reader) -> Result<Self, DecodeError> {
        const FIELD: &str = "Multi.op";
        Ok(match OpCode::from_number(opcode) {
            Some(OpCode::Create) => Self::Create(Wire::read(reader, FIELD)?),
            Some(OpCode::Create2) => Self::Create2(Wire::read(reader, FIELD)?),
            Some(OpCode::CreateContainer) => Self::CreateContainer(Wire::read(reader, FIELD)?),
            Some(OpCode::CreateTtl) => Self::CreateTtl(Wire::read(reader, FIELD)?),
            Some(OpCode::Delete) => Self::Delete(Wire::read(reader, FIELD)?),
            Some(OpCode::SetData) => Self::SetData(Wire::read(reader, FIELD)?),
            Some(OpCode::Check) => Self::Check(Wire::read(reader, FIELD)?),
            _ => return Err(DecodeError::Misplaced { field: FIELD, opcode }),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create(op) | Self::Create2(op) | Self::CreateContainer(op) => op.write(writer),
            Self::CreateTtl(op) => op.write(writer),
            Self::Delete(op) | Self::Check(op) => op.write(writer),
            Self::SetData(op) => op.write(writer),
        }
    }
}

/// One read of a multiRead. ZooKeeper ignores its wish for a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiReadOp {
    /// Answered by [`MultiResult::GetChildren`].
    GetChildren(PathWatch),
    /// Answered by [`MultiResult::GetData`].
    GetData(PathWatch),
}

impl Part for MultiReadOp {
    fn opcode(&self) -> OpCode {
        match self {
            Self::GetChildren(_) => OpCode::GetChildren,
            Self::GetData(_) => OpCode::GetData,
        }
    }

    fn header_error(&self) -> i32 {
        -1
    }

    fn read(opcode: i32, reader: &mut Reader) -> Result<Self, DecodeError> {
        const FIELD: &str = "MultiRead.op";
        Ok(match OpCode::from_number(opcode) {
            Some(OpCode::GetChildren) => Self::GetChildren(Wire::read(reader, FIELD)?),
            Some(OpCode::GetData) => Self::GetData(Wire::read(reader, FIELD)?),
            _ => return Err(DecodeError::Misplaced { field: FIELD, opcode }),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::GetChildren(op) | Self::GetData(op) => op.write(writer),
        }
    }
}

/// The result of one part of a multi or multiRead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiResult {
    /// The path created.
    Create(String),
    /// The path created, and the node's stat.
    Create2 {
        /// With its sequence, if it has one.
        path: String,
        /// Of the new node.
        stat: Stat,
    },
    /// Deleted.
    Delete,
    /// The node's stat after the change.
    SetData(Stat),
    /// The version was right.
    Check,
    /// The names of the children.
    GetChildren(Vec<String>),
    /// The data.
    GetData {
        /// As it was set.
        data: Option<Bytes>,
        /// Of the node.
        stat: Stat,
    },
    /// The number of an [`ErrorCode`]. In a failed multi *every* result is one; those before the failure are 0.
    Error(i32),
}

impl MultiResult {
    /// An error result.
    #[must_use]
    pub const fn error(code: ErrorCode) -> Self {
        Self::Error(code.number())
    }

    /// The results of a multi of `count` operations whose operation at `failed` failed: 0 before it, then `code`, then
    /// [`ErrorCode::RuntimeInconsistency`] after it.
    #[must_use]
    pub fn of_failure(count: usize, failed: usize, code: ErrorCode) -> Vec<Self> {
        let result = |index: usize| match index.cmp(&failed) {
            std::cmp::Ordering::Less => ErrorCode::Ok,
            std::cmp::Ordering::Equal => code,
            std::cmp::Ordering::Greater => ErrorCode::RuntimeInconsistency,
        };
        (0..count).map(|index| Self::error(result(index))).collect()
    }
}

impl Part for MultiResult {
    fn opcode(&self) -> OpCode {
        match self {
            Self::Create(_) => OpCode::Create,
            Self::Create2 { .. } => OpCode::Create2,
            Self::Delete => OpCode::Delete,
            Self::SetData(_) => OpCode::SetData,
            Self::Check => OpCode::Check,
            Self::GetChildren(_) => OpCode::GetChildren,
            Self::GetData { .. } => OpCode::GetData,
            Self::Error(_) => OpCode::Error,
        }
    }

    fn header_error(&self) -> i32 {
        if let Self::Error(number) = self { *number } else { 0 }
    }

    fn read(opcode: i32, reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match OpCode::from_number(opcode) {
            Some(OpCode::Create) => Self::Create(Wire::read(reader, "Multi.create.path")?),
            Some(OpCode::Create2) => Self::Create2 {
                path: Wire::read(reader, "Multi.create2.path")?,
                stat: Wire::read(reader, "Multi.create2.stat")?,
            },
            Some(OpCode::Delete) => Self::Delete,
            Some(OpCode::SetData) => Self::SetData(Wire::read(reader, "Multi.set_data.stat")?),
            Some(OpCode::Check) => Self::Check,
            Some(OpCode::GetChildren) => Self::GetChildren(Wire::read(reader, "Multi.get_children.children")?),
            Some(OpCode::GetData) => Self::GetData {
                data: Wire::read(reader, "Multi.get_data.data")?,
                stat: Wire::read(reader, "Multi.get_data.stat")?,
            },
            Some(OpCode::Error) => Self::Error(reader.int("Multi.error")?),
            _ => return Err(DecodeError::Misplaced { field: "Multi.result", opcode }),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Create(path) => path.write(writer),
            Self::Create2 { path, stat } => {
                path.write(writer);
                stat.write(writer);
            }
            Self::Delete | Self::Check => {}
            Self::SetData(stat) => stat.write(writer),
            Self::GetChildren(children) => children.write(writer),
            Self::GetData { data, stat } => {
                data.write(writer);
                stat.write(writer);
            }
            Self::Error(number) => writer.int(*number),
        }
    }
}
