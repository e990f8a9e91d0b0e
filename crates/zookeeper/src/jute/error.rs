//! Why bytes are not the message that they claim to be.

use thiserror::Error;

/// A number that names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{number} is no {what}")]
pub struct UnknownNumber {
    /// What was looked for, such as `event type`.
    pub what: &'static str,
    /// The number that is none.
    pub number: i32,
}

/// A message that cannot be read. Each variant names the field at which reading stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The message ends before the field does.
    #[error("{field} needs {needed} bytes and {left} are left: the message is cut short or its length field is wrong")]
    Truncated {
        /// The field being read.
        field: &'static str,
        /// How many bytes it needs.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A length below −1.
    #[error("{field} has length {length}: only -1 (null), 0 and more are lengths")]
    NegativeLength {
        /// The field being read.
        field: &'static str,
        /// Its length.
        length: i32,
    },
    /// A string that is not UTF-8.
    #[error("{field} is not UTF-8 from its byte {valid_up_to} on")]
    NotUtf8 {
        /// The field being read.
        field: &'static str,
        /// How many bytes from its start are valid.
        valid_up_to: usize,
    },
    /// A number outside a closed set.
    #[error("{field}: {unknown}")]
    Unknown {
        /// The field being read.
        field: &'static str,
        /// What it should have been.
        unknown: UnknownNumber,
    },
    /// An operation that may not stand in a multi, or a result that has no request.
    #[error("{field}: operation {opcode} may not stand here")]
    Misplaced {
        /// The field being read.
        field: &'static str,
        /// The number of the operation.
        opcode: i32,
    },
}
