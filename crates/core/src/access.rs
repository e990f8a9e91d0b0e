//! Access control: what rules say, and the operations that change them (promise P14).
//!
//! Access control lists (`acl`) belong to single nodes, as in ZooKeeper. Access control is the layer above: *roles*
//! with rules on names, granted to *principals*. Frontends verify credentials and state them with each command
//! ([`Principals`]). The state decides where the command stands in the log: which principal a
//! credential proves, and what that principal may do.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::Principals;
use crate::gate::GATES_ROOT;
use crate::ids::Zxid;
use crate::limits::{MAX_ACCESS_NAME_BYTES, NamespaceLimits};
use crate::lock::LOCKS_ROOT;
use crate::path::NodePath;

/// Scheme of the identity of a caller with a bearer token; the id is the hexadecimal SHA-256 of the token.
pub const TOKEN: &str = "token";
/// Scheme of the identity of a caller with a client certificate; the id is the name that the certificate gives it.
pub const CERTIFICATE: &str = "cert";
/// Scheme of the identity of a caller with a user and a password, as in ZooKeeper; the id is `user:hash`.
pub const DIGEST: &str = "digest";
/// Scheme of the identity of a caller with a JWT of a trusted issuer; the id is the principal.
pub const JWT: &str = "jwt";
/// The principal that every caller is, known or not.
pub const ANYONE: &str = "anyone";
/// Digits of a token's id: the first ones of its hash.
pub const TOKEN_ID_DIGITS: usize = 16;
/// How exactly the last use of a token is recorded, in milliseconds: to the hour.
pub const TOKEN_USE_MS: u64 = 3_600_000;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Resource {
    /// Locks, by name.
    Locks,
    /// Nodes outside of the trees of locks and gates, by path.
    Nodes,
    /// Gates, by key.
    Gates,
    /// Sessions of other callers, without names.
    Sessions,
    /// The cluster with its members and its access control, without names.
    Cluster,
    /// Rate limits, by name.
    Rates,
}

impl Resource {
    /// The resource that a node is a part of, and its name there.
    pub fn of_node(path: &NodePath) -> (Self, &str) {
        Self::of_path(path.as_str())
    }

    /// The same of a path as text; that of the root may be empty.
    fn of_path(path: &str) -> (Self, &str) {
        let below = |root| {
            let rest = path.strip_prefix(root)?;
            if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
        };
        if let Some(name) = below(LOCKS_ROOT) {
            (Self::Locks, name)
        } else if let Some(key) = below(GATES_ROOT) {
            (Self::Gates, key)
        } else {
            (Self::Nodes, if path.is_empty() { "/" } else { path })
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locks => "locks",
            Self::Nodes => "nodes",
            Self::Gates => "gates",
            Self::Sessions => "sessions",
            Self::Cluster => "cluster",
            Self::Rates => "rates",
        })
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rights(pub u8);

impl Rights {
    /// To read, list, verify and watch.
    pub const READ: Self = Self(1);
    /// To acquire locks, to begin and finish gates, and to take permits of rate limits.
    pub const ACQUIRE: Self = Self(2);
    /// To create, set and delete nodes.
    pub const WRITE: Self = Self(4);
    /// To take from other sessions what belongs to them.
    pub const FORCE: Self = Self(8);
    /// To change members and access control.
    pub const ADMIN: Self = Self(16);
    /// To take a backup.
    pub const BACKUP: Self = Self(32);
    /// Each of them is enough to take a backup.
    pub const TO_BACK_UP: Self = Self::ADMIN.and(Self::BACKUP);
    /// Every right of the first administrator: what there was before [`BACKUP`](Self::BACKUP), at every level.
    pub const ALL: Self = Self(31);
    /// Every right that there is.
    pub const KNOWN: Self = Self::ALL.and(Self::BACKUP);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any of these is among them.
    pub fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Rights, &str); 6] = [
            (Rights::READ, "read"),
            (Rights::ACQUIRE, "acquire"),
            (Rights::WRITE, "write"),
            (Rights::FORCE, "force"),
            (Rights::ADMIN, "admin"),
            (Rights::BACKUP, "backup"),
        ];
        let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| self.has_any(*bit)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(" or "))
    }
}

/// What a role allows on a kind of resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// On what.
    pub resource: Resource,
    /// The first parts of the name; empty for every name.
    pub prefix: Arc<str>,
    /// Which rights; at least one.
    pub rights: Rights,
}

impl Rule {
    /// Whether it allows what is needed.
    pub fn allows(&self, need: &Need<'_>) -> bool {
        self.resource == need.resource
            && self.rights.has_any(need.rights)
            && (covers(&self.prefix, need.name) || need.leads_there && leads_to(need.name, &self.prefix))
    }
}

/// Whether a name is a prefix's, part by part: `a` covers `a` and `a/b`, but not `ab`.
fn covers(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|rest| prefix.is_empty() || prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
}

/// Whether the node of this name is a directory above those that a prefix covers.
fn leads_to(name: &str, prefix: &str) -> bool {
    prefix.strip_prefix(name).is_some_and(|rest| name.is_empty() || name == "/" || rest.starts_with('/'))
}

/// A right that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need<'a> {
    /// On what.
    pub resource: Resource,
    /// Under which name.
    pub name: &'a str,
    /// One of these rights.
    pub rights: Rights,
    /// Whether the right on names below will do, because the operation only leads there.
    pub leads_there: bool,
}

impl<'a> Need<'a> {
    /// One of these rights on a resource.
    pub fn of(resource: Resource, name: &'a str, rights: Rights) -> Self {
        Self { resource, name, rights, leads_there: false }
    }

    /// One of these rights on a node.
    pub fn at(path: &'a NodePath, rights: Rights) -> Self {
        let (resource, name) = Resource::of_node(path);
        Self::of(resource, name, rights)
    }

    /// One of these rights on the directory of a node: for a node whose whole name is not known yet.
    pub fn in_directory_of(path: &'a NodePath, rights: Rights) -> Self {
        let (resource, name) = Resource::of_path(path.directory());
        Self::of(resource, name, rights)
    }

    /// The right to read a node. To acquire a lock, or to begin a gate, is to see who stands in line.
    pub fn to_read(path: &'a NodePath) -> Self {
        let need = Self::at(path, Rights::READ);
        match need.resource {
            Resource::Locks | Resource::Gates => Self { rights: Rights::READ.and(Rights::ACQUIRE), ..need },
            _ => need,
        }
    }

    /// The same, also for who has it on names below.
    #[must_use]
    pub fn or_below(self) -> Self {
        Self { leads_there: true, ..self }
    }
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the right to {} on {}", self.rights, self.resource)?;
        match (self.resource, self.name) {
            (Resource::Sessions | Resource::Cluster, _) => Ok(()),
            (_, "") => f.write_str(" of every name"),
            (_, name) => write!(f, " '{name}'"),
        }
    }
}

/// Whether a role can be granted to a principal of this name: 1 to [`MAX_ACCESS_NAME_BYTES`] letters,
/// digits and `. _ - @ / : = +`.
pub fn is_name(text: &str) -> bool {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@/:=+".contains(&byte);
    (1..=MAX_ACCESS_NAME_BYTES).contains(&text.len()) && text.bytes().all(may_stand)
}

/// Whether the name belongs to principals that no name in a certificate proves: everybody, the super user, and those of
/// the schemes `digest` and `jwt`.
pub fn is_reserved(principal: &str) -> bool {
    let is_of = |scheme| principal.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':'));
    [ANYONE, Principals::SUPER].contains(&principal) || is_of(DIGEST) || is_of(JWT)
}

/// The name of a principal without the hash of its password, for people and logs.
pub fn without_hash(principal: &str) -> &str {
    match principal.strip_prefix(DIGEST).and_then(|rest| rest.strip_prefix(':')) {
        Some(rest) => &principal[..principal.len() - rest.len() + rest.find(':').unwrap_or(rest.len())],
        None => principal,
    }
}

/// A change of access control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AccessOp {
    /// Enforces it.
    Enable {
        /// The hash of a token for the principal `admin`, which gets the role `admin` with every right. Needed where no
        /// principal with a token could administer it. Repeated with the same hash, the operation changes nothing.
        first: Option<Arc<str>>,
    },
    /// Stops to enforce it. Roles, grants and tokens stay.
    Disable,
    /// Makes or replaces a role.
    PutRole {
        /// Its name.
        name: Arc<str>,
        /// Its rules; at most [`MAX_RULES`](crate::limits::MAX_RULES).
        rules: Vec<Rule>,
        /// The version that is replaced, 0 for none; `None` for any.
        version: Option<Zxid>,
    },
    /// Deletes a role and its grants.
    DeleteRole {
        /// Its name.
        name: Arc<str>,
    },
    /// Gives a principal a role.
    Grant {
        /// The principal.
        principal: Arc<str>,
        /// The role.
        role: Arc<str>,
    },
    /// Takes a role from a principal.
    Revoke {
        /// The principal.
        principal: Arc<str>,
        /// The role.
        role: Arc<str>,
    },
    /// Registers a token.
    CreateToken {
        /// The hexadecimal SHA-256 of the token. The token itself is never stored.
        hash: Arc<str>,
        /// The principal that it proves.
        principal: Arc<str>,
        /// How long it counts, in milliseconds of the replicated clock; `None` for ever.
        ttl_ms: Option<u64>,
    },
    /// Withdraws a token.
    RevokeToken {
        /// Its id: the first digits of its hash.
        id: Arc<str>,
    },
    /// Makes the session that of the caller's principal, if it is nobody's yet. For frontends whose clients prove who
    /// they are after they have opened a session.
    Identify,
    /// Sets the owner and the limits of a namespace. Counting what there is of it takes about a tenth of a second for a
    /// million nodes; other commands wait meanwhile.
    PutNamespace {
        /// The first part of its names.
        name: Arc<str>,
        /// The principal whose sessions count in it.
        owner: Option<Arc<str>>,
        /// All its limits.
        limits: NamespaceLimits,
        /// The version that is replaced, 0 for none; `None` for any.
        version: Option<Zxid>,
    },
    /// Takes owner and limits from a namespace. What it uses stays.
    DeleteNamespace {
        /// Its name.
        name: Arc<str>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_compared_part_by_part() {
        for (prefix, name, covered) in [
            ("", "", true),
            ("", "a", true),
            ("a", "a", true),
            ("a", "a/b", true),
            ("a", "ab", false),
            ("a/", "a/b", true),
            ("a/", "a", false),
            ("a/b", "a", false),
            ("/", "/a", true),
            ("/a", "/a/b", true),
            ("/a", "/ab", false),
        ] {
            assert_eq!(covers(prefix, name), covered, "'{prefix}' and '{name}'");
        }
    }

    #[test]
    fn directories_above_a_prefix_lead_to_it() {
        for (name, prefix, leads) in [
            ("", "a/b", true),
            ("/", "/a", true),
            ("a", "a/b", true),
            ("a", "ab/c", false),
            ("a/b", "a/b", false),
            ("b", "a/b", false),
            ("/a", "/a/b", true),
        ] {
            assert_eq!(leads_to(name, prefix), leads, "'{name}' and '{prefix}'");
        }
    }

    #[test]
    fn a_rule_allows_its_rights_on_its_names_of_its_resource() {
        let rule = Rule { resource: Resource::Locks, prefix: "a".into(), rights: Rights::READ.and(Rights::ACQUIRE) };
        let need = |resource, name, rights| Need::of(resource, name, rights);
        assert!(rule.allows(&need(Resource::Locks, "a/b", Rights::ACQUIRE)));
        assert!(rule.allows(&need(Resource::Locks, "a", Rights::ACQUIRE.and(Rights::FORCE))), "one of them will do");
        assert!(!rule.allows(&need(Resource::Locks, "a", Rights::FORCE)));
        assert!(!rule.allows(&need(Resource::Locks, "b", Rights::READ)));
        assert!(!rule.allows(&need(Resource::Gates, "a", Rights::READ)));
        assert!(!rule.allows(&need(Resource::Locks, "", Rights::READ)));
        assert!(rule.allows(&need(Resource::Locks, "", Rights::READ).or_below()));
    }

    #[test]
    fn nodes_of_the_services_trees_are_locks_and_gates() {
        let of = |path: &str| {
            let path = NodePath::parse(path).unwrap();
            let (resource, name) = Resource::of_node(&path);
            (resource, name.to_owned())
        };
        assert_eq!(of("/locks"), (Resource::Locks, String::new()));
        assert_eq!(of("/locks/a/b"), (Resource::Locks, "a/b".into()));
        assert_eq!(of("/locksmith"), (Resource::Nodes, "/locksmith".into()));
        assert_eq!(of("/gates/k"), (Resource::Gates, "k".into()));
        assert_eq!(of("/"), (Resource::Nodes, "/".into()));
    }

    #[test]
    fn names_of_other_schemes_are_reserved() {
        for reserved in ["anyone", "super", "digest:bob:x", "jwt:bob", "digest:"] {
            assert!(is_name(reserved) && is_reserved(reserved), "{reserved}");
        }
        for free in ["anyone2", "digest", "jwt", "digests:bob", "bob/jwt:x"] {
            assert!(!is_reserved(free), "{free}");
        }
        for wrong in ["", "a b", "CN=x,O=y", "*.example", "ü", &"x".repeat(MAX_ACCESS_NAME_BYTES + 1)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }

    #[test]
    fn hashes_are_left_out() {
        for (whole, shown) in [
            ("digest:bob:abc=", "digest:bob"),
            ("digest:bob", "digest:bob"),
            ("bob:abc", "bob:abc"),
            ("digest", "digest"),
            ("digestive:bob:x", "digestive:bob:x"),
        ] {
            assert_eq!(without_hash(whole), shown);
        }
    }

    #[test]
    fn a_need_reads_as_a_sentence_goes_on() {
        let path = NodePath::parse("/locks/orders").unwrap();
        let text = Need::at(&path, Rights::READ.and(Rights::ACQUIRE)).to_string();
        assert_eq!(text, "the right to read or acquire on locks 'orders'");
        assert_eq!(Need::of(Resource::Locks, "", Rights::READ).to_string(), "the right to read on locks of every name");
        assert_eq!(Need::of(Resource::Cluster, "", Rights::ADMIN).to_string(), "the right to admin on cluster");
    }
}
