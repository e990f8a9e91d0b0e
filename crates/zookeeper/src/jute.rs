//! Jute, the encoding under ZooKeeper's protocol: big-endian numbers, and strings, buffers and vectors behind a 32-bit
//! length in which −1 means null.
//!
//! Each length is compared with the rest of the message before memory is allocated for it. That is at least as strict
//! as ZooKeeper's `jute.maxbuffer`, because the frame around the message has passed that limit already
//! ([`crate::frame`]).
//!
//! The macros `record!`, `numbered!` and `tagged!` define a message's struct or enumeration together with both
//! directions of its encoding, so that these cannot disagree.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// A struct that is encoded as its fields in order.
macro_rules! record {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::jute::Wire for $name {
            const MIN_BYTES: usize = 0 $(+ <$type as $crate::jute::Wire>::MIN_BYTES)*;

            fn read(reader: &mut $crate::jute::Reader, _: &'static str) -> Result<Self, $crate::jute::DecodeError> {
                Ok(Self {
                    $($field: $crate::jute::Wire::read(reader, concat!(stringify!($name), ".", stringify!($field)))?,)*
                })
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                $($crate::jute::Wire::write(&self.$field, writer);)*
            }
        }
    };
}

/// An enumeration that is encoded as a number.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        $name:ident ($what:literal) {
            $($(#[$variant_meta:meta])* $variant:ident = $number:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// All values, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The value with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl From<$name> for i32 {
            fn from(value: $name) -> i32 {
                value.number()
            }
        }

        impl TryFrom<i32> for $name {
            type Error = $crate::jute::UnknownNumber;

            fn try_from(number: i32) -> Result<Self, $crate::jute::UnknownNumber> {
                Self::from_number(number).ok_or($crate::jute::UnknownNumber { what: $what, number })
            }
        }

        impl $crate::jute::Wire for $name {
            const MIN_BYTES: usize = 4;

            fn read(reader: &mut $crate::jute::Reader, field: &'static str) -> Result<Self, $crate::jute::DecodeError> {
                let number = reader.int(field)?;
                Self::try_from(number).map_err(|unknown| $crate::jute::DecodeError::Unknown { field, unknown })
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                writer.int(self.number());
            }
        }
    };
}

/// An enumeration whose variants are encoded as their fields in order. Which of them follows is said elsewhere, by a
/// `$tag`, which has variants of the same names. If it has others too, `else` names the field that may not have them.
macro_rules! tagged {
    (
        $(#[$meta:meta])*
        $name:ident by $tag:ident $(else $place:path)? {
            $(
                $(#[$variant_meta:meta])*
                $variant:ident
                $(($only:ident: $only_type:ty))?
                $({ $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? })?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $(
                $(#[$variant_meta])*
                $variant $(($only_type))? $({ $($(#[$field_meta])* $field: $type,)* })?,
            )*
        }

        impl $crate::jute::Tagged for $name {
            type Tag = $tag;

            fn tag(&self) -> $tag {
                match self {
                    $(Self::$variant { .. } => $tag::$variant,)*
                }
            }

            fn read(tag: $tag, reader: &mut $crate::jute::Reader) -> Result<Self, $crate::jute::DecodeError> {
                Ok(match tag {
                    $($tag::$variant => Self::$variant
                        $(($crate::jute::Wire::read(
                            reader,
                            concat!(stringify!($name), ".", stringify!($variant), ".", stringify!($only)),
                        )?))?
                        $({ $($field: $crate::jute::Wire::read(
                            reader,
                            concat!(stringify!($name), ".", stringify!($variant), ".", stringify!($field)),
                        )?,)* })?,
                    )*
                    $(other => {
                        let opcode = other.number();
                        return Err($crate::jute::DecodeError::Misplaced { field: $place, opcode });
                    })?
                })
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                match self {
                    $(Self::$variant $(($only))? $({ $($field),* })? => {
                        $($crate::jute::Wire::write($only, writer);)?
                        $($($crate::jute::Wire::write($field, writer);)*)?
                    })*
                }
            }
        }
    };
}

/// A number outside a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{number} is not a known {what}")]
pub struct UnknownNumber {
    /// Name of the set, such as `event type`.
    pub what: &'static str,
    /// The unknown number.
    pub number: i32,
}

/// Why a message cannot be decoded. Each variant names the field at which decoding stopped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The message ends before the field does.
    #[error("{field} needs {needed} bytes but {left} are left: the message is truncated or its length field is wrong")]
    Truncated {
        /// The field being read.
        field: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A length below −1.
    #[error("{field} has length {length}: a length is -1 (null), 0 or more")]
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
        /// Number of valid bytes at its start.
        valid_up_to: usize,
    },
    /// A number outside a closed set.
    #[error("{field}: {unknown}")]
    Unknown {
        /// The field being read.
        field: &'static str,
        /// The set and the number.
        unknown: UnknownNumber,
    },
    /// An operation that is not allowed in a multi, or that has no reply.
    #[error("{field}: operation {opcode} is not allowed here")]
    Misplaced {
        /// The field being read.
        field: &'static str,
        /// The number of the operation.
        opcode: i32,
    },
}

/// Reads jute from one message. It never panics, and never allocates before it has compared a length with the rest of
/// the message.
#[derive(Debug, Clone)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// A reader at the start of `message`.
    #[must_use]
    pub fn new(message: Bytes) -> Self {
        Self { rest: message }
    }

    /// Number of unread bytes.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The unread bytes.
    #[must_use]
    pub fn into_rest(self) -> Bytes {
        self.rest
    }

    /// One byte; every value but 0 is true.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        self.need(field, 1)?;
        Ok(self.rest.get_u8() != 0)
    }

    /// A 32-bit number.
    pub fn int(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.need(field, 4)?;
        Ok(self.rest.get_i32())
    }

    /// A 64-bit number.
    pub fn long(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.need(field, 8)?;
        Ok(self.rest.get_i64())
    }

    /// A string, `None` for null.
    pub fn string(&mut self, field: &'static str) -> Result<Option<String>, DecodeError> {
        let Some(length) = self.length(field)? else { return Ok(None) };
        self.need(field, length)?;
        let text = std::str::from_utf8(&self.rest[..length])
            .map_err(|error| DecodeError::NotUtf8 { field, valid_up_to: error.valid_up_to() })?
            .to_owned();
        self.rest.advance(length);
        Ok(Some(text))
    }

    /// A buffer, `None` for null. It shares memory with the message.
    pub fn buffer(&mut self, field: &'static str) -> Result<Option<Bytes>, DecodeError> {
        let Some(length) = self.length(field)? else { return Ok(None) };
        self.need(field, length)?;
        Ok(Some(self.rest.split_to(length)))
    }

    /// A vector, `None` for null. A count that does not fit into the rest of the message is refused before memory is
    /// allocated.
    pub fn vector<T: Wire>(&mut self, field: &'static str) -> Result<Option<Vec<T>>, DecodeError> {
        const { assert!(T::MIN_BYTES > 0, "elements of no bytes would make any count plausible") };
        let Some(count) = self.length(field)? else { return Ok(None) };
        self.need(field, count.saturating_mul(T::MIN_BYTES))?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(self, field)?);
        }
        Ok(Some(elements))
    }

    fn length(&mut self, field: &'static str) -> Result<Option<usize>, DecodeError> {
        let length = self.int(field)?;
        if length == -1 {
            return Ok(None);
        }
        usize::try_from(length).map(Some).map_err(|_| DecodeError::NegativeLength { field, length })
    }

    fn need(&self, field: &'static str, needed: usize) -> Result<(), DecodeError> {
        let left = self.left();
        if left < needed { Err(DecodeError::Truncated { field, needed, left }) } else { Ok(()) }
    }
}

/// Appends jute to a buffer. Values are trusted: this process made them and bounded their sizes.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
}

impl<'a> Writer<'a> {
    /// A writer that appends to `out`.
    pub fn new(out: &'a mut BytesMut) -> Self {
        Self { out }
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self, value: bool) {
        self.out.put_u8(u8::from(value));
    }

    /// A 32-bit number.
    pub fn int(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    /// A 64-bit number.
    pub fn long(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    /// A string.
    pub fn string(&mut self, value: &str) {
        self.buffer(value.as_bytes());
    }

    /// A buffer.
    pub fn buffer(&mut self, value: &[u8]) {
        self.length(value.len());
        self.out.put_slice(value);
    }

    /// A null string, buffer or vector.
    pub fn null(&mut self) {
        self.int(-1);
    }

    /// The length of a buffer or vector whose bytes or elements follow.
    ///
    /// # Panics
    /// Above 2³¹−1, which the protocol cannot express.
    pub fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).expect("a length in the protocol is below 2 GiB"));
    }

    /// A vector of strings, without collecting them first: a directory may have 100,000 children.
    pub fn strings<'s>(&mut self, values: impl ExactSizeIterator<Item = &'s str>) {
        self.length(values.len());
        for value in values {
            self.string(value);
        }
    }
}

/// A value with one encoding, in both directions.
pub trait Wire: Sized {
    /// Fewest bytes of an encoded value. An element count is checked against it before the elements are read.
    const MIN_BYTES: usize;

    /// Decodes a value. `field` names it in errors; a record names its own fields instead.
    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError>;

    /// Encodes the value.
    fn write(&self, writer: &mut Writer<'_>);
}

/// What `tagged!` defines.
pub(crate) trait Tagged: Sized {
    /// Says which variant it is.
    type Tag;

    /// Which variant it is.
    fn tag(&self) -> Self::Tag;

    /// Decodes the variant with this tag.
    fn read(tag: Self::Tag, reader: &mut Reader) -> Result<Self, DecodeError>;

    /// Encodes the value without its tag.
    fn write(&self, writer: &mut Writer<'_>);
}

impl Wire for bool {
    const MIN_BYTES: usize = 1;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        reader.bool(field)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.bool(*self);
    }
}

impl Wire for i32 {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        reader.int(field)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.int(*self);
    }
}

impl Wire for i64 {
    const MIN_BYTES: usize = 8;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        reader.long(field)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.long(*self);
    }
}

/// Null decodes as the empty string: as a path both are refused, as a prefix both match everything.
impl Wire for String {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(reader.string(field)?.unwrap_or_default())
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.string(self);
    }
}

/// For passwords, credentials and tokens, where null and empty are the same.
impl Wire for Bytes {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(reader.buffer(field)?.unwrap_or_default())
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.buffer(self);
    }
}

/// For the data of a node, where null and empty differ.
impl Wire for Option<Bytes> {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        reader.buffer(field)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Some(buffer) => writer.buffer(buffer),
            None => writer.null(),
        }
    }
}

/// Null decodes as the empty vector: as an ACL both are refused, as a list of watches both are empty.
impl<T: Wire> Wire for Vec<T> {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(reader.vector(field)?.unwrap_or_default())
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.length(self.len());
        for element in self {
            element.write(writer);
        }
    }
}
