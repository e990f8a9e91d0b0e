//! What has a place on the wire.

use super::{DecodeError, Reader, Writer};
use bytes::Bytes;

/// A value with one wire form, in both directions.
pub trait Wire: Sized {
    /// The fewest bytes that a value takes: what makes an element count plausible before the elements are read.
    const MIN_BYTES: usize;

    /// Reads one. `field` names it in errors; a record names its own fields instead.
    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError>;

    /// Appends it.
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

/// A null string reads as the empty one: as a path both are refused, and as a prefix both mean everything.
impl Wire for String {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(reader.string(field)?.unwrap_or_default())
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.string(self);
    }
}

/// Where null and empty are the same: passwords, credentials, tokens.
impl Wire for Bytes {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(reader.buffer(field)?.unwrap_or_default())
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.buffer(self);
    }
}

/// Where null is something of its own: the data of a node.
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

/// A null vector reads as the empty one: as an ACL both are refused, and as a list of watches both name none.
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
