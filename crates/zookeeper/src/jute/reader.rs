//! Reads jute from one message. Never panics, never allocates before it has compared a length with what is left.

use super::{DecodeError, Wire};
use bytes::{Buf, Bytes};

/// A place in a message, moving forward.
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

    /// How many bytes have not been read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// What has not been read.
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

    /// A buffer, `None` for null. It shares the message's memory.
    pub fn buffer(&mut self, field: &'static str) -> Result<Option<Bytes>, DecodeError> {
        let Some(length) = self.length(field)? else { return Ok(None) };
        self.need(field, length)?;
        Ok(Some(self.rest.split_to(length)))
    }

    /// A vector, `None` for null. A count that cannot fit into what is left is refused before anything is allocated.
    pub fn vector<T: Wire>(&mut self, field: &'static str) -> Result<Option<Vec<T>>, DecodeError> {
        const { assert!(T::MIN_BYTES > 0, "an element without bytes would make any count plausible") };
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
