//! Access control lists as ZooKeeper has them: each node has its own, nothing is inherited, and anything that a list
//! does not allow is refused (reference: ZooKeeper's programmer's guide, "ZooKeeper access control using ACLs").
//!
//! Frontends identify the caller and state it with each command ([`Principals`]). The state decides when the command
//! is applied.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// ZooKeeper's permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Permissions(pub u32);

impl Permissions {
    /// To read data and to list children.
    pub const READ: Self = Self(1);
    /// To set data.
    pub const WRITE: Self = Self(2);
    /// To create a child.
    pub const CREATE: Self = Self(4);
    /// To delete a child.
    pub const DELETE: Self = Self(8);
    /// To set the list itself.
    pub const ADMIN: Self = Self(16);
    /// Every permission.
    pub const ALL: Self = Self(31);

    /// Whether any of these is among them.
    pub fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Permissions, &str); 5] = [
            (Permissions::READ, "read"),
            (Permissions::WRITE, "write"),
            (Permissions::CREATE, "create"),
            (Permissions::DELETE, "delete"),
            (Permissions::ADMIN, "admin"),
        ];
        let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| self.has_any(*bit)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(" or "))
    }
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
    /// Whether it is [`open`](Self::open).
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.permissions, &self.scheme, &self.id)
    }

    /// `world:anyone` with every permission, the default of a new node.
    pub fn open() -> Self {
        Self { permissions: Permissions::ALL, scheme: "world".into(), id: "anyone".into() }
    }
}

fn is_open(permissions: Permissions, scheme: &str, id: &str) -> bool {
    permissions == Permissions::ALL && scheme == "world" && id == "anyone"
}

/// The access control list that nearly all nodes share.
pub(crate) fn open_list() -> Arc<[AclEntry]> {
    static OPEN: LazyLock<Arc<[AclEntry]>> = LazyLock::new(|| Arc::from([AclEntry::open()]));
    OPEN.clone()
}

/// Decodes a list; the one that nearly all nodes share is found without an allocation.
pub(crate) fn shared<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[AclEntry]>, D::Error> {
    from.deserialize_seq(Entries)
}

/// As [`AclEntry`] is encoded.
#[derive(Deserialize)]
struct BorrowedEntry<'a> {
    permissions: Permissions,
    scheme: &'a str,
    id: &'a str,
}

impl BorrowedEntry<'_> {
    fn is_open(&self) -> bool {
        is_open(self.permissions, self.scheme, self.id)
    }
}

impl From<BorrowedEntry<'_>> for AclEntry {
    fn from(entry: BorrowedEntry<'_>) -> Self {
        Self { permissions: entry.permissions, scheme: entry.scheme.into(), id: entry.id.into() }
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Arc<[AclEntry]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an access control list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Arc<[AclEntry]>, A::Error> {
        let Some(first) = entries.next_element::<BorrowedEntry<'_>>()? else { return Ok(Arc::from([])) };
        let Some(second) = entries.next_element::<BorrowedEntry<'_>>()? else {
            return Ok(if first.is_open() { open_list() } else { Arc::from([first.into()]) });
        };
        let mut all = vec![first.into(), second.into()];
        while let Some(entry) = entries.next_element::<BorrowedEntry<'_>>()? {
            all.push(entry.into());
        }
        Ok(Arc::from(all))
    }
}

/// An identity in a scheme, such as `digest` and `user:hash`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The scheme that verified it.
    pub scheme: Arc<str>,
    /// The identity within the scheme.
    pub id: Arc<str>,
}

/// The caller, as the frontend identified it. Every caller is `world:anyone` as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principals {
    /// The caller's address, which `ip` entries are compared with.
    pub address: Option<IpAddr>,
    /// The identities that the caller has proved; at most [`MAX_IDENTITIES`](crate::limits::MAX_IDENTITIES).
    pub identities: Vec<Identity>,
}

impl Principals {
    /// The scheme whose identities may do everything.
    pub const SUPER: &str = "super";

    /// Whether a list allows any of these permissions.
    pub fn may(&self, wanted: Permissions, acl: &[AclEntry]) -> bool {
        self.is_super() || acl.iter().any(|entry| entry.permissions.has_any(wanted) && self.are(entry))
    }

    /// Whether this is the super user, to whom nothing is refused.
    pub fn is_super(&self) -> bool {
        self.identities.iter().any(|identity| &*identity.scheme == Self::SUPER)
    }

    /// Whether an entry matches.
    fn are(&self, entry: &AclEntry) -> bool {
        match entry.scheme.as_str() {
            "world" => entry.id == "anyone",
            "ip" => self.address.is_some_and(|address| Network::parse(&entry.id).is_some_and(|net| net.holds(address))),
            scheme => self.identities.iter().any(|known| *known.scheme == *scheme && *known.id == *entry.id),
        }
    }
}

/// An address, or a prefix of addresses, in an `ip` entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Parses `10.0.0.0/8`, `10.1.2.3`, `fd00::/8`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self { address, bits })
    }

    /// Whether it contains an address. An IPv4 address that came over an IPv6 socket counts as IPv4.
    pub fn holds(self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u32::from(own) ^ u32::from(other)).checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (u128::from(own) ^ u128::from(other)).checked_shr(128 - bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(permissions: Permissions, scheme: &str, id: &str) -> AclEntry {
        AclEntry { permissions, scheme: scheme.into(), id: id.into() }
    }

    fn user(scheme: &str, id: &str) -> Principals {
        Principals { address: None, identities: vec![Identity { scheme: scheme.into(), id: id.into() }] }
    }

    #[test]
    fn a_list_allows_what_it_names_and_nothing_else() {
        let acl = [entry(Permissions::READ, "world", "anyone"), entry(Permissions::ALL, "digest", "bob:x")];
        let nobody = Principals::default();
        assert!(nobody.may(Permissions::READ, &acl) && !nobody.may(Permissions::WRITE, &acl));
        assert!(user("digest", "bob:x").may(Permissions::ADMIN, &acl));
        assert!(!user("digest", "bob:y").may(Permissions::WRITE, &acl));
        assert!(!user("ip", "bob:x").may(Permissions::WRITE, &acl), "another scheme's bob");
        assert!(user("super", "").may(Permissions::DELETE, &acl));
        assert!(!nobody.may(Permissions::READ, &[]));
        let either = Permissions(Permissions::READ.0 | Permissions::ADMIN.0);
        assert!(nobody.may(either, &acl), "one of them will do");
    }

    #[test]
    fn networks_are_compared_by_their_leading_bits() {
        let at = |address: &str| Principals { address: address.parse().ok(), identities: Vec::new() };
        let allows =
            |id: &str, address: &str| at(address).may(Permissions::READ, &[entry(Permissions::READ, "ip", id)]);
        assert!(allows("10.1.2.3", "10.1.2.3") && !allows("10.1.2.3", "10.1.2.4"));
        assert!(allows("10.1.0.0/16", "10.1.9.9") && !allows("10.1.0.0/16", "10.2.0.0"));
        assert!(allows("0.0.0.0/0", "1.2.3.4") && !allows("0.0.0.0/0", "::1"));
        assert!(allows("fd00::/8", "fd12::1") && !allows("fd00::/8", "fe00::1"));
        assert!(allows("10.1.2.3", "::ffff:10.1.2.3"), "an IPv4 caller on an IPv6 socket");
        for wrong in ["", "10.1.2", "10.1.2.3/33", "::/129", "10.0.0.0/x", "10.0.0.0/-1", "somewhere"] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
            assert!(!allows(wrong, "10.1.2.3"));
        }
        assert!(!Principals::default().may(Permissions::READ, &[entry(Permissions::READ, "ip", "0.0.0.0/0")]));
    }
}
