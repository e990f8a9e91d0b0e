//! Lists of operations in one request, and of their results. A header with the operation's number precedes each part,
//! and a header with `done` ends the list.
//!
//! The reply header of a failed multi reports success; the failure is among the results ([`MultiResult::of_failure`]).

use crate::ErrorCode;
use crate::jute::{DecodeError, Reader, Tagged, Wire, Writer};
use crate::opcode::OpCode;
use crate::records::Stat;
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
pub(crate) trait Part: Tagged<Tag = OpCode> {
    /// What an error calls the place of a part with another operation.
    const PLACE: &'static str;

    /// The error in its header.
    fn header_error(&self) -> i32 {
        -1
    }
}

/// Makes a list of these parts a value of the protocol.
macro_rules! list_of_parts {
    ($part:ident) => {
        impl $crate::jute::Wire for Vec<$part> {
            const MIN_BYTES: usize = $crate::multi::MultiHeader::MIN_BYTES;

            fn read(reader: &mut $crate::jute::Reader, _: &'static str) -> Result<Self, $crate::jute::DecodeError> {
                $crate::multi::read_parts(reader)
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                $crate::multi::write_parts(self, writer);
            }
        }
    };
}

/// The list is bounded by the message, since each part takes at least the nine bytes of its header.
pub(crate) fn read_parts<P: Part>(reader: &mut Reader) -> Result<Vec<P>, DecodeError> {
    let mut parts = Vec::new();
    loop {
        let MultiHeader { opcode, done, .. } = Wire::read(reader, "MultiHeader")?;
        if done {
            return Ok(parts);
        }
        let tag = OpCode::from_number(opcode).ok_or(DecodeError::Misplaced { field: P::PLACE, opcode })?;
        parts.push(P::read(tag, reader)?);
    }
}

pub(crate) fn write_parts<P: Part>(parts: &[P], writer: &mut Writer<'_>) {
    for part in parts {
        MultiHeader { opcode: part.tag().number(), done: false, error: part.header_error() }.write(writer);
        part.write(writer);
    }
    MultiHeader { opcode: -1, done: true, error: -1 }.write(writer);
}

tagged! {
    /// The result of one part of a multi or multiRead.
    MultiResult by OpCode else Self::PLACE {
        /// The path created.
        Create(path: String),
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
        SetData(stat: Stat),
        /// The version was right.
        Check,
        /// The names of the children.
        GetChildren(children: Vec<String>),
        /// The data.
        GetData {
            /// As it was set.
            data: Option<Bytes>,
            /// Of the node.
            stat: Stat,
        },
        /// The number of an [`ErrorCode`]. In a failed multi *every* result is one; those before the failure are 0.
        Error(number: i32),
    }
}

list_of_parts!(MultiResult);

impl Part for MultiResult {
    const PLACE: &'static str = "Multi.result";

    fn header_error(&self) -> i32 {
        if let Self::Error(number) = self { *number } else { 0 }
    }
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
