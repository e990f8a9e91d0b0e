//! Access control lists as ZooKeeper stores them with each node. They are kept and returned here; enforcing them is the
//! work of the front door that knows who calls.

use serde::{Deserialize, Serialize};

/// ZooKeeper's permission bits: READ 1, WRITE 2, CREATE 4, DELETE 8, ADMIN 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Permissions(pub u32);

impl Permissions {
    /// Every permission.
    pub const ALL: Self = Self(31);
}

/// One grant: who (`scheme:id`) may do what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclEntry {
    /// What is allowed.
    pub permissions: Permissions,
    /// `world`, `auth`, `digest`, `ip`, …
    pub scheme: String,
    /// The identity within the scheme.
    pub id: String,
}

impl AclEntry {
    /// `world:anyone` with every permission, the default of a new node.
    pub fn open() -> Self {
        Self { permissions: Permissions::ALL, scheme: "world".into(), id: "anyone".into() }
    }
}
