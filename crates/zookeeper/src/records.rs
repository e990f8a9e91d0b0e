//! The records that messages are made of: stat, identities, access control lists.

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
        /// How often its data changed.
        version: i32,
        /// How often its children changed.
        cversion: i32,
        /// How often its access control list changed.
        aversion: i32,
        /// The session that it goes with; 0 for a persistent node, and marks of their own for containers and TTL nodes.
        ephemeral_owner: i64,
        /// How many bytes of data it has.
        data_length: i32,
        /// How many children it has.
        num_children: i32,
        /// The transaction that last changed its children.
        pzxid: i64,
    }
}

record! {
    /// Who somebody is, in the terms of a scheme.
    #[derive(Hash, PartialOrd, Ord)]
    Id {
        /// `world`, `auth`, `digest`, `ip`, `x509`, `super`, …
        scheme: String,
        /// What the scheme says it is: `anyone`, `user:hash`, an address, …
        id: String,
    }
}

record! {
    /// One line of an access control list.
    #[derive(Hash)]
    Acl {
        /// What is allowed.
        permissions: Permissions,
        /// To whom.
        id: Id,
    }
}

impl Acl {
    /// Everything to everybody: what most clients create nodes with.
    #[must_use]
    pub fn open() -> Self {
        let id = Id { scheme: "world".to_owned(), id: "anyone".to_owned() };
        Self { permissions: Permissions::ALL, id }
    }
}

record! {
    /// One identity of a connection, as whoAmI reports it.
    #[derive(Hash)]
    ClientInfo {
        /// The scheme that it was proven by.
        auth_scheme: String,
        /// The name, without its secret.
        user: String,
    }
}

/// A set of permissions. Bits that mean nothing are kept as they came.
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
