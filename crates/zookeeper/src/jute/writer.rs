//! Writes jute at the end of a buffer.

use bytes::{BufMut, BytesMut};

/// Appends to a buffer. Values are trusted: they are our own, and their sizes are bounded by whoever made them.
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

    /// How many elements of a vector follow, or bytes of a buffer.
    ///
    /// # Panics
    /// Above 2³¹−1, which the protocol cannot express.
    pub fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).expect("a length in the protocol is below 2 GiB"));
    }

    /// A vector of strings, straight from where they live: a directory may have 100,000 children.
    pub fn strings<'s>(&mut self, values: impl ExactSizeIterator<Item = &'s str>) {
        self.length(values.len());
        for value in values {
            self.string(value);
        }
    }
}
