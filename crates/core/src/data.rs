//! Data of nodes: a byte string, or null. ZooKeeper's clients tell the two apart, so the state does as well.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::blob;

/// A node's data, cheap to clone. Null takes no memory, and reads as an empty byte string where bytes are required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeData(Option<Arc<[u8]>>);

impl NodeData {
    /// No data at all. The default.
    pub const NULL: Self = Self(None);

    /// The bytes; `None` if the data is null.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }

    /// Whether there is no data at all; empty data is not null.
    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for NodeData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<&[u8]> for NodeData {
    fn from(bytes: &[u8]) -> Self {
        Self(Some(Arc::from(bytes)))
    }
}

impl<const N: usize> From<[u8; N]> for NodeData {
    fn from(bytes: [u8; N]) -> Self {
        Self(Some(Arc::from(bytes)))
    }
}

impl From<Vec<u8>> for NodeData {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Some(Arc::from(bytes)))
    }
}

impl From<Arc<[u8]>> for NodeData {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(Some(bytes))
    }
}

impl From<Option<&[u8]>> for NodeData {
    fn from(bytes: Option<&[u8]>) -> Self {
        Self(bytes.map(Arc::from))
    }
}

impl Serialize for NodeData {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().map(Blob).serialize(to)
    }
}

impl<'de> Deserialize<'de> for NodeData {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_option(Optional)
    }
}

/// A byte string, encoded as [`blob`] does.
struct Blob<'a>(&'a Arc<[u8]>);

impl Serialize for Blob<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        blob::serialize(self.0, to)
    }
}

struct Optional;

impl<'de> Visitor<'de> for Optional {
    type Value = NodeData;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes or null")
    }

    fn visit_none<E>(self) -> Result<NodeData, E> {
        Ok(NodeData::NULL)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<NodeData, D::Error> {
        blob::deserialize(from).map(NodeData::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_are_two_things_and_come_back_as_they_were() {
        for (data, bytes) in
            [(NodeData::NULL, &b"\0"[..]), (NodeData::from([]), b"\x01\0"), (NodeData::from(*b"ab"), b"\x01\x02ab")]
        {
            assert_eq!(postcard::to_extend(&data, Vec::new()).unwrap(), bytes);
            assert_eq!(postcard::from_bytes::<NodeData>(bytes).unwrap(), data);
        }
        assert_ne!(NodeData::NULL, NodeData::from([]));
        assert_eq!(
            (NodeData::NULL.len(), NodeData::NULL.bytes(), NodeData::from([]).bytes()),
            (0, None, Some(&[][..]))
        );
    }

    /// Each byte counts a million times in a large tree.
    #[test]
    fn null_costs_no_memory() {
        assert_eq!(size_of::<NodeData>(), size_of::<Arc<[u8]>>());
    }
}
