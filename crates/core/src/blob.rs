//! Encodes node data as one byte string instead of a sequence of numbers. In postcard both give the same bytes; this
//! is faster.

use std::fmt;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(data: &Arc<[u8]>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(data)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u8]>, D::Error> {
    from.deserialize_bytes(Bytes)
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Arc<[u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Arc<[u8]>, E> {
        Ok(Arc::from(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Arc<[u8]>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element()? {
            bytes.push(byte);
        }
        Ok(Arc::from(bytes))
    }
}
