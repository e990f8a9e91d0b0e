//! Records shared by messages: stat, identities, access control lists.

use crate::jute::{DecodeError, Reader, Wire, Writer};
use std::ops::BitOr;

record! {
    /// A node's history and size, 68 bytes.
    #[derive(Default, Copy)]
    Stat {
        /// The transaction that created the node.
        czxid: i64,
        /// The transaction that last changed its data.
        mzxid: i64,
        /// When it was created, in ms since 1970.
        ctime_ms: i64,
        /// When its data last changed, in ms since 1970.
        mtime_ms: i64,
        /// Number of changes of its data.
        version: i32,
        /// Number of changes of its children.
        cversion: i32,
        /// Number of changes of its access control list.
        aversion: i32,
        /// The owning session; 0 for a persistent node, and special values for containers and TTL nodes.
        ephemeral_owner: i64,
        /// Length of its data in bytes.
        data_length: i32,
        /// Number of its children.
        num_children: i32,
        /// The transaction that last changed its children.
        pzxid: i64,
    }
}

record! {
    /// An identity under a scheme.
    #[derive(Hash, PartialOrd, Ord)]
    Id {
        /// `world`, `auth`, `digest`, `ip`, `x509`, `super`, …
        scheme: String,
        /// The identity in the scheme's form: `anyone`, `user:hash`, an address, …
        id: String,
    }
}

record! {
    /// One entry of an access control list.
    #[derive(Hash)]
    Acl {
        /// The permissions granted.
        permissions: Permissions,
        /// The identity they are granted to.
        id: Id,
    }
}

impl Acl {
    /// All permissions for everybody, which most clients create nodes with.
    #[must_use]
    pub fn open() -> Self {
        let id = Id { scheme: "world".to_owned(), id: "anyone".to_owned() };
        Self { permissions: Permissions::ALL, id }
    }
}

record! {
    /// An identity of a connection, as reported by whoAmI.
    #[derive(Hash)]
    ClientInfo {
        /// The scheme of its authentication.
        auth_scheme: String,
        /// The name without the secret.
        user: String,
    }
}

/// A set of permissions. Unknown bits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Permissions(pub i32);

impl Permissions {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Read data and children.
    pub const READ: Self = Self(1);
    /// Change data.
    pub const WRITE: Self = Self(1 << 1);
    /// Create children.
    pub const CREATE: Self = Self(1 << 2);
    /// Delete children.
    pub const DELETE: Self = Self(1 << 3);
    /// Change the access control list.
    pub const ADMIN: Self = Self(1 << 4);
    /// All of these.
    pub const ALL: Self = Self(0x1f);

    /// Whether every permission of `wanted` is in this set.
    #[must_use]
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Wire for Permissions {
    const MIN_BYTES: usize = 4;

    fn read(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        reader.int(field).map(Self)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.int(self.0);
    }
}
