//! Access control: roles, the principals that have them, and tokens.
//!
//! A *principal* is the name under which a caller is known: that of its token (`Authorization: Bearer lk_…`), that of
//! its client certificate, or `digest:USER:HASH` for credentials of ZooKeeper's digest scheme. A *role* is a list of
//! rules; a principal may do whatever a rule of one of its roles allows. Anything else is refused once access control
//! is enabled.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::level::Level;

/// A kind of resource that rules speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Locks, by name.
    Locks,
    /// Nodes, by path.
    Nodes,
    /// Gates, by key.
    Gates,
    /// Sessions of other callers; they have no names.
    Sessions,
    /// The cluster, its members and its access control; it has no name.
    Cluster,
    /// Rate limits, by name.
    Rates,
}

/// A right on a resource. None includes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// To read, list, verify and watch.
    Read,
    /// To acquire locks, to begin and finish gates, and to take permits of rate limits.
    Acquire,
    /// To create, set and delete nodes.
    Write,
    /// To take from other sessions what belongs to them.
    Force,
    /// To change members and access control, and to take a backup.
    Admin,
    /// To take a backup, which has everything that the cluster has.
    Backup,
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// On what.
    pub resource: Resource,
    /// The first parts of a name: `orders` stands for `orders` and everything below it, but not for `orders2`; empty
    /// for every name. Paths of nodes begin with a slash.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The rights; at least one.
    pub rights: Vec<Right>,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessRole {
    /// Its name.
    pub name: String,
    /// Its rules.
    pub rules: Vec<Rule>,
    /// The zxid of its last change, for changes that must not overwrite another's.
    pub version: u64,
}

/// The roles of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The principal; `anyone` for every caller, known or not.
    pub principal: String,
    /// The names of its roles.
    pub roles: Vec<String>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenInfo {
    /// Its id: the first 16 hexadecimal digits of the SHA-256 of the token.
    pub id: String,
    /// The principal that it proves.
    pub principal: String,
    /// When it was made, in milliseconds since 1970 by the replicated clock.
    pub created_ms: u64,
    /// When it stops to count; absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The beginning of the hour in which it was last used, by the replicated clock; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_ms: Option<u64>,
}

/// `GET /v1/access`: all of access control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Access {
    /// Whether it is enforced.
    pub enabled: bool,
    /// The roles by name.
    pub roles: Vec<AccessRole>,
    /// The grants by principal.
    pub grants: Vec<Grant>,
    /// The tokens by id.
    pub tokens: Vec<TokenInfo>,
    /// How many sessions belong to no principal with a role. Once access control is enforced, they end if they own
    /// anything, or belong to a principal.
    pub anonymous_sessions: u64,
}

/// `POST /v1/access`: a change of access control, such as `{"grant": {"principal": "billing", "role": "locks"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AccessChange {
    /// Enforces access control. Where no principal could administer it, makes the role `admin` with every right, grants
    /// it to the principal `admin`, and makes a token for that principal.
    Enable {
        /// As that of `create_token`, for the token of the principal `admin`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_hash: Option<String>,
    },
    /// Stops to enforce it. Roles, grants and tokens stay.
    Disable {},
    /// Makes or replaces a role.
    PutRole {
        /// Its name.
        name: String,
        /// All its rules.
        rules: Vec<Rule>,
        /// The version that is replaced, 0 for none; absent for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    },
    /// Deletes a role and its grants.
    DeleteRole {
        /// Its name.
        name: String,
    },
    /// Gives a principal a role.
    Grant {
        /// The principal; `anyone` for every caller, known or not.
        principal: String,
        /// The role.
        role: String,
    },
    /// Takes a role from a principal.
    Revoke {
        /// The principal.
        principal: String,
        /// The role.
        role: String,
    },
    /// Makes a token.
    CreateToken {
        /// The principal that it proves.
        principal: String,
        /// How long it counts, in seconds; absent for ever.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_s: Option<u64>,
        /// The SHA-256 of a token that the caller has drawn, as 64 hexadecimal digits in lower case: `lk_` and 32
        /// random bytes in base64url without padding. The same call may be repeated, and makes one token. Where it is
        /// absent, the node draws the token, and the answer has it, once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_hash: Option<String>,
    },
    /// Sets the owner and all limits of a namespace.
    PutNamespace {
        /// The first part of its names.
        name: String,
        /// The principal whose sessions, and whose requests without a name, count in it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// Its limits; what is absent has none.
        #[serde(default)]
        limits: NamespaceLimits,
        /// The version that is replaced, 0 for none; absent for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    },
    /// Takes owner and limits from a namespace. What is in it stays.
    DeleteNamespace {
        /// Its name.
        name: String,
    },
    /// Withdraws a token: nothing that is asked with it from then on is done, and its sessions end.
    RevokeToken {
        /// Its id.
        id: String,
    },
}

/// The answer to an [`AccessChange`].
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessChanged {
    /// The token that was made, if the node drew it. It cannot be shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The id of the token that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
}

impl fmt::Debug for AccessChanged {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessChanged").field("token_id", &self.token_id).finish_non_exhaustive()
    }
}

/// `GET /v1/access/me`: who the caller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmI {
    /// Whether access control is enforced.
    pub enabled: bool,
    /// The principals that the caller has proved to be; empty for an unknown caller.
    pub principals: Vec<String>,
    /// Their roles, those of `anyone` included.
    pub roles: Vec<String>,
}

/// The query of `GET /v1/access/check`: may the caller do this?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct AccessQuestion {
    /// On what.
    pub resource: Resource,
    /// The name; empty for all names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Which right.
    pub right: Right,
    /// About which principal; the caller itself where it is left out. To ask about another needs the right to read
    /// the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// `linearizable` (default) or `stale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// The answer to an [`AccessQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessAnswer {
    /// Whether it may. Always true while access control is not enforced.
    pub allowed: bool,
    /// The role whose rule allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
}

/// Limits of a namespace; what is absent has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NamespaceLimits {
    /// Most sessions: those of the owner, and others that own something in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// Most lock requests in its queues, holders included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_requests: Option<u64>,
    /// Most nodes, directories of locks included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Most memory of its nodes, in bytes: the data and about 600 bytes for each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Most requests a second at each node of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u64>,
}

/// What a namespace uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NamespaceUsage {
    /// Sessions.
    pub sessions: u64,
    /// Lock requests.
    pub lock_requests: u64,
    /// Nodes.
    pub nodes: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A namespace with limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Namespace {
    /// The first part of its names.
    pub name: String,
    /// The principal whose sessions count in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its limits.
    pub limits: NamespaceLimits,
    /// What it uses.
    pub usage: NamespaceUsage,
    /// The zxid of the last change of its limits.
    pub version: u64,
}

/// `GET /v1/namespaces`: the namespaces that have limits, in order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Namespaces {
    /// Those that the caller may see: all with the right to read the cluster, and else its own.
    pub namespaces: Vec<Namespace>,
}

/// The word of an enum in JSON, which is also how people write it.
macro_rules! words {
    ($type:ty, $what:literal, $($variant:ident => $word:literal),+ $(,)?) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!(concat!($what, " is one of ", $($word, " "),+, "and not '{}'"), text)),
                }
            }
        }
    };
}

words!(Resource, "a resource", Locks => "locks", Nodes => "nodes", Gates => "gates", Sessions => "sessions",
    Cluster => "cluster", Rates => "rates");
words!(Right, "a right", Read => "read", Acquire => "acquire", Write => "write", Force => "force", Admin => "admin",
    Backup => "backup");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        use Resource::{Cluster, Gates, Locks, Nodes, Rates, Sessions};
        for resource in [Locks, Nodes, Gates, Sessions, Cluster, Rates] {
            assert_eq!(serde_json::to_string(&resource).unwrap(), format!("\"{resource}\""));
            assert_eq!(resource.to_string().parse(), Ok(resource));
        }
        for right in [Right::Read, Right::Acquire, Right::Write, Right::Force, Right::Admin, Right::Backup] {
            assert_eq!(serde_json::to_string(&right).unwrap(), format!("\"{right}\""));
            assert_eq!(right.to_string().parse(), Ok(right));
        }
        assert!("lock".parse::<Resource>().unwrap_err().contains("locks nodes gates"));
    }

    #[test]
    fn a_new_token_is_not_in_debug_output() {
        let made = AccessChanged { token: Some("lk_secret".into()), token_id: Some("00ff".into()) };
        assert!(!format!("{made:?}").contains("secret"));
    }

    #[test]
    fn changes_are_one_word_with_its_fields() {
        let json =
            r#"{"put_role":{"name":"r","rules":[{"resource":"locks","prefix":"p","rights":["acquire","read"]}]}}"#;
        let change: AccessChange = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&change).unwrap(), json);
        assert!(serde_json::from_str::<AccessChange>(r#"{"enable":{"force":true}}"#).is_err());
    }
}
