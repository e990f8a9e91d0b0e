//! The calls of the API, whichever way they travel: over HTTP, or as a message of the session stream.
//!
//! On the stream a [`Call`] is its JSON. Over HTTP it is a method, a path, a query and a body, which this module gives;
//! the server's routes read the same parts and make the same [`Call`] of them. What a call means is decided in one
//! place of the server.

use std::fmt::{self, Display, Write};
use std::marker::PhantomData;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::access::{Access, AccessAnswer, AccessChange, AccessChanged, AccessQuestion, Namespaces, WhoAmI};
use crate::cluster::{AddMember, ClusterClock, ClusterQuery, MemberQuery, Membership, Status, Transfer, Transferred};
use crate::gates::{Begin, Fail, Finish, GateReset, GateView, Gates, GatesQuery, ResetQuery, Settled};
use crate::level::Level;
use crate::locks::{Acquire, Acquired, Downgraded, Lock, Locks, LocksQuery, Release, Released, Token, Verified};
use crate::nodes::{Add, Added, Changed, Create, Deleted, Node, NodeQuery, SetData, Txn, TxnDone, VersionQuery};
use crate::rates::{PermitsTaken, RateView, Rates, RatesQuery, TakePermits};
use crate::sessions::{Closed, KeptAlive, OpenSession, Session, SessionOpened, Sessions, SessionsQuery};

/// The query of a reading without more to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// Everything that can be asked for and has one answer. Named after the operations of `/openapi.json`; the fields are
/// their parameters, with those of the query in `query` and the body in `body`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the parameters of the operation, described with their types")]
pub enum Call {
    /// Opens a session.
    OpenSession {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        body: OpenSession,
    },
    /// Lists sessions.
    ListSessions {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: SessionsQuery,
    },
    /// Shows a session.
    GetSession {
        id: u64,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Closes the caller's session.
    CloseSession { id: u64 },
    /// Keeps the caller's session alive.
    KeepSessionAlive { id: u64 },
    /// Lists locks.
    ListLocks {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: LocksQuery,
    },
    /// Shows a lock.
    GetLock {
        name: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Acquires a lock.
    AcquireLock {
        name: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        body: Acquire,
    },
    /// Releases a lock.
    ReleaseLock {
        name: String,
        #[serde(deserialize_with = "object")]
        body: Release,
    },
    /// Makes the holder of a `write` a reader.
    DowngradeLock {
        name: String,
        #[serde(deserialize_with = "object")]
        body: Token,
    },
    /// Says whether a token holds.
    VerifyLock {
        name: String,
        #[serde(deserialize_with = "object")]
        body: Token,
    },
    /// Takes a lock from its holder.
    BreakLock { name: String, token: u64 },
    /// Lists gates.
    ListGates {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: GatesQuery,
    },
    /// Shows a gate.
    GetGate {
        key: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Begins the operation of a gate.
    BeginGate {
        key: String,
        #[serde(deserialize_with = "object")]
        body: Begin,
    },
    /// Stores the result of the operation.
    FinishGate {
        key: String,
        #[serde(deserialize_with = "object")]
        body: Finish,
    },
    /// Opens the gate again.
    FailGate {
        key: String,
        #[serde(deserialize_with = "object")]
        body: Fail,
    },
    /// Opens the gate by force.
    ResetGate {
        key: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ResetQuery,
    },
    /// Reads a node. The path begins with a slash, as in all calls of nodes.
    GetNode {
        path: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: NodeQuery,
    },
    /// Creates a node.
    CreateNode {
        path: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        body: Create,
    },
    /// Sets a node's data.
    SetNode {
        path: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: VersionQuery,
        #[serde(deserialize_with = "object")]
        body: SetData,
    },
    /// Deletes a node.
    DeleteNode {
        path: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: VersionQuery,
    },
    /// Adds to the number in a node.
    AddToCounter {
        path: String,
        #[serde(deserialize_with = "object")]
        body: Add,
    },
    /// Takes permits of a rate limit.
    TakePermits {
        name: String,
        #[serde(deserialize_with = "object")]
        body: TakePermits,
    },
    /// Shows a rate limit.
    GetRate {
        name: String,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Lists rate limits.
    ListRates {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: RatesQuery,
    },
    /// Runs a transaction.
    RunTransaction {
        #[serde(deserialize_with = "object")]
        body: Txn,
    },
    /// Shows the cluster.
    GetCluster {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ClusterQuery,
    },
    /// Reads the replicated clock.
    GetClock {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Adds a member.
    AddMember {
        #[serde(deserialize_with = "object")]
        body: AddMember,
    },
    /// Gives a member its vote.
    PromoteMember {
        id: u64,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: MemberQuery,
    },
    /// Removes a member.
    RemoveMember {
        id: u64,
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: MemberQuery,
    },
    /// Hands leadership over.
    TransferLeadership {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        body: Transfer,
    },
    /// Shows access control.
    GetAccess {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Changes access control.
    ChangeAccess {
        #[serde(deserialize_with = "object")]
        body: AccessChange,
    },
    /// Lists the namespaces with limits.
    ListNamespaces {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Tells the caller who it is.
    WhoAmI {
        #[serde(default, deserialize_with = "object", skip_serializing_if = "is_default")]
        query: ReadQuery,
    },
    /// Says whether a caller may do something.
    CheckAccess {
        #[serde(deserialize_with = "object")]
        query: AccessQuestion,
    },
}

/// The answer to a [`Call`]; as JSON it is what it holds, and the call tells which that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "described with the types that they hold")]
pub enum Answer {
    SessionOpened(SessionOpened),
    Sessions(Sessions),
    Session(Session),
    SessionClosed(Closed),
    KeptAlive(KeptAlive),
    Locks(Locks),
    Lock(Lock),
    Acquired(Box<Acquired>),
    Released(Released),
    Downgraded(Downgraded),
    Verified(Verified),
    Gates(Gates),
    Gate(GateView),
    GateSettled(Settled),
    GateReset(GateReset),
    Node(Box<Node>),
    Changed(Box<Changed>),
    Deleted(Deleted),
    Added(Added),
    PermitsTaken(PermitsTaken),
    Rate(RateView),
    Rates(Rates),
    TxnDone(TxnDone),
    Cluster(Box<Status>),
    Clock(ClusterClock),
    Membership(Membership),
    Transferred(Transferred),
    Access(Box<Access>),
    AccessChanged(AccessChanged),
    Namespaces(Namespaces),
    WhoAmI(WhoAmI),
    AccessAnswer(AccessAnswer),
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads an object and nothing else: serde would fill a struct from an array as well, by position.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    from.deserialize_map(Object(PhantomData))
}

impl Call {
    /// The method and the route of the call over HTTP, the route as `/openapi.json` has it.
    pub fn route(&self) -> (&'static str, &'static str) {
        match self {
            Self::OpenSession { .. } => ("POST", "/v1/sessions"),
            Self::ListSessions { .. } => ("GET", "/v1/sessions"),
            Self::GetSession { .. } => ("GET", "/v1/sessions/{id}"),
            Self::CloseSession { .. } => ("DELETE", "/v1/sessions/{id}"),
            Self::KeepSessionAlive { .. } => ("POST", "/v1/sessions/{id}/keepalive"),
            Self::ListLocks { .. } => ("GET", "/v1/locks"),
            Self::GetLock { .. } => ("GET", "/v1/locks/{name}"),
            Self::AcquireLock { .. } => ("POST", "/v1/locks/{name}/acquire"),
            Self::ReleaseLock { .. } => ("POST", "/v1/locks/{name}/release"),
            Self::DowngradeLock { .. } => ("POST", "/v1/locks/{name}/downgrade"),
            Self::VerifyLock { .. } => ("POST", "/v1/locks/{name}/verify"),
            Self::BreakLock { .. } => ("DELETE", "/v1/locks/{name}/holders/{token}"),
            Self::ListGates { .. } => ("GET", "/v1/gates"),
            Self::GetGate { .. } => ("GET", "/v1/gates/{key}"),
            Self::BeginGate { .. } => ("POST", "/v1/gates/{key}/begin"),
            Self::FinishGate { .. } => ("POST", "/v1/gates/{key}/finish"),
            Self::FailGate { .. } => ("POST", "/v1/gates/{key}/fail"),
            Self::ResetGate { .. } => ("DELETE", "/v1/gates/{key}"),
            Self::GetNode { .. } => ("GET", "/v1/nodes/{path}"),
            Self::CreateNode { .. } => ("POST", "/v1/nodes/{path}"),
            Self::SetNode { .. } => ("PUT", "/v1/nodes/{path}"),
            Self::DeleteNode { .. } => ("DELETE", "/v1/nodes/{path}"),
            Self::AddToCounter { .. } => ("POST", "/v1/counters/{path}"),
            Self::TakePermits { .. } => ("POST", "/v1/rates/{name}/take"),
            Self::GetRate { .. } => ("GET", "/v1/rates/{name}"),
            Self::ListRates { .. } => ("GET", "/v1/rates"),
            Self::RunTransaction { .. } => ("POST", "/v1/txn"),
            Self::GetCluster { .. } => ("GET", "/v1/cluster"),
            Self::GetClock { .. } => ("GET", "/v1/clock"),
            Self::AddMember { .. } => ("POST", "/v1/cluster/members"),
            Self::PromoteMember { .. } => ("POST", "/v1/cluster/members/{id}/promote"),
            Self::RemoveMember { .. } => ("DELETE", "/v1/cluster/members/{id}"),
            Self::TransferLeadership { .. } => ("POST", "/v1/cluster/transfer"),
            Self::GetAccess { .. } => ("GET", "/v1/access"),
            Self::ChangeAccess { .. } => ("POST", "/v1/access"),
            Self::ListNamespaces { .. } => ("GET", "/v1/namespaces"),
            Self::WhoAmI { .. } => ("GET", "/v1/access/me"),
            Self::CheckAccess { .. } => ("GET", "/v1/access/check"),
        }
    }

    /// Path and query of the call over HTTP. URLs resolve `.` and `..` before they are sent, even when encoded: do not
    /// send a name that has such a part.
    pub fn target(&self) -> String {
        let (_, route) = self.route();
        let path = match self {
            Self::GetSession { id, .. }
            | Self::CloseSession { id }
            | Self::KeepSessionAlive { id }
            | Self::PromoteMember { id, .. }
            | Self::RemoveMember { id, .. } => route.replace("{id}", &id.to_string()),
            Self::GetLock { name, .. }
            | Self::AcquireLock { name, .. }
            | Self::ReleaseLock { name, .. }
            | Self::DowngradeLock { name, .. }
            | Self::VerifyLock { name, .. }
            | Self::TakePermits { name, .. }
            | Self::GetRate { name, .. } => route.replace("{name}", &encode(name)),
            Self::BreakLock { name, token } => format!("/v1/locks/{}/holders/{token}", encode(name)),
            Self::GetGate { key, .. }
            | Self::BeginGate { key, .. }
            | Self::FinishGate { key, .. }
            | Self::FailGate { key, .. }
            | Self::ResetGate { key, .. } => route.replace("{key}", &encode(key)),
            Self::GetNode { path, .. }
            | Self::CreateNode { path, .. }
            | Self::SetNode { path, .. }
            | Self::DeleteNode { path, .. } => format!("/v1/nodes{}", encode_parts(path)),
            Self::AddToCounter { path, .. } => format!("/v1/counters{}", encode_parts(path)),
            _ => route.to_owned(),
        };
        format!("{path}{}", self.query())
    }

    fn query(&self) -> String {
        let mut query = Query::default();
        match self {
            Self::ListSessions { query: SessionsQuery { after, limit, consistency } } => {
                query.add("after", *after).add("limit", *limit).level(*consistency);
            }
            Self::ListLocks { query: LocksQuery { prefix, after, limit, consistency } }
            | Self::ListRates { query: RatesQuery { prefix, after, limit, consistency } } => {
                query.add("prefix", prefix.as_ref()).add("after", after.as_ref()).add("limit", *limit);
                query.level(*consistency);
            }
            Self::ListGates { query: GatesQuery { prefix, after, limit, consistency } } => {
                query.add("prefix", prefix.as_ref()).add("after", after.as_ref()).add("limit", *limit);
                query.level(*consistency);
            }
            Self::GetSession { query: ReadQuery { consistency }, .. }
            | Self::GetLock { query: ReadQuery { consistency }, .. }
            | Self::GetGate { query: ReadQuery { consistency }, .. }
            | Self::GetRate { query: ReadQuery { consistency }, .. }
            | Self::GetClock { query: ReadQuery { consistency } }
            | Self::GetAccess { query: ReadQuery { consistency } }
            | Self::ListNamespaces { query: ReadQuery { consistency } }
            | Self::WhoAmI { query: ReadQuery { consistency } } => {
                query.level(*consistency);
            }
            Self::GetNode { query: asked, .. } => {
                query.add("children", asked.children).add("children_after", asked.children_after.as_ref());
                query.add("children_limit", asked.children_limit).level(asked.consistency);
            }
            Self::SetNode { query: VersionQuery { version }, .. }
            | Self::DeleteNode { query: VersionQuery { version }, .. } => {
                query.add("version", *version);
            }
            Self::ResetGate { query: ResetQuery { token }, .. } => {
                query.add("token", *token);
            }
            Self::GetCluster { query: ClusterQuery { checksum, checksum_from } } => {
                query.add("checksum", *checksum).add("checksum_from", *checksum_from);
            }
            Self::PromoteMember { query: MemberQuery { if_version }, .. }
            | Self::RemoveMember { query: MemberQuery { if_version }, .. } => {
                query.add("if_version", *if_version);
            }
            Self::CheckAccess { query: AccessQuestion { resource, name, right, principal, consistency } } => {
                query.add("resource", Some(resource)).add("name", Some(name)).add("right", Some(right));
                query.add("principal", principal.as_ref()).level(*consistency);
            }
            _ => {}
        }
        query.0
    }

    /// The body of the call over HTTP, for calls that have one.
    ///
    /// # Errors
    /// A body cannot be written as JSON.
    pub fn body(&self) -> serde_json::Result<Option<Vec<u8>>> {
        let written = match self {
            Self::OpenSession { body } => serde_json::to_vec(body),
            Self::AcquireLock { body, .. } => serde_json::to_vec(body),
            Self::ReleaseLock { body, .. } => serde_json::to_vec(body),
            Self::DowngradeLock { body, .. } | Self::VerifyLock { body, .. } => serde_json::to_vec(body),
            Self::BeginGate { body, .. } => serde_json::to_vec(body),
            Self::FinishGate { body, .. } => serde_json::to_vec(body),
            Self::FailGate { body, .. } => serde_json::to_vec(body),
            Self::CreateNode { body, .. } => serde_json::to_vec(body),
            Self::SetNode { body, .. } => serde_json::to_vec(body),
            Self::AddToCounter { body, .. } => serde_json::to_vec(body),
            Self::TakePermits { body, .. } => serde_json::to_vec(body),
            Self::RunTransaction { body } => serde_json::to_vec(body),
            Self::AddMember { body } => serde_json::to_vec(body),
            Self::TransferLeadership { body } => serde_json::to_vec(body),
            Self::ChangeAccess { body } => serde_json::to_vec(body),
            Self::ListSessions { .. }
            | Self::GetSession { .. }
            | Self::CloseSession { .. }
            | Self::KeepSessionAlive { .. }
            | Self::ListLocks { .. }
            | Self::GetLock { .. }
            | Self::BreakLock { .. }
            | Self::ListGates { .. }
            | Self::GetGate { .. }
            | Self::GetRate { .. }
            | Self::ListRates { .. }
            | Self::ResetGate { .. }
            | Self::GetNode { .. }
            | Self::DeleteNode { .. }
            | Self::GetCluster { .. }
            | Self::GetClock { .. }
            | Self::PromoteMember { .. }
            | Self::RemoveMember { .. }
            | Self::GetAccess { .. }
            | Self::ListNamespaces { .. }
            | Self::WhoAmI { .. }
            | Self::CheckAccess { .. } => return Ok(None),
        };
        written.map(Some)
    }
}

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

fn encode_parts(path: &str) -> String {
    let parts: Vec<String> = path.split('/').map(encode).collect();
    parts.join("/")
}

/// Text as one part of a URL.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Collects `key=value` pairs.
#[derive(Debug, Default)]
pub struct Query(String);

impl Query {
    /// Adds a pair, if there is a value.
    pub fn add(&mut self, key: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            let mark = if self.0.is_empty() { '?' } else { '&' };
            // Writing to a String cannot fail.
            let _ = write!(self.0, "{mark}{key}={}", encode(&value.to_string()));
        }
        self
    }

    fn level(&mut self, consistency: Option<Level>) -> &mut Self {
        let word = consistency.map(|level| match level {
            Level::Linearizable => "linearizable",
            Level::Stale => "stale",
        });
        self.add("consistency", word)
    }
}

/// With its question mark; nothing if there are no pairs.
impl Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_paths_and_queries_survive_the_url() {
        let lock = |name: &str| Call::GetLock { name: name.into(), query: ReadQuery::default() };
        assert_eq!(lock("orders/42 ü?#").target(), "/v1/locks/orders%2F42%20%C3%BC%3F%23");
        let node = |path: &str, version| Call::DeleteNode { path: path.into(), query: VersionQuery { version } };
        assert_eq!(node("/a b/ü%", Some(7)).target(), "/v1/nodes/a%20b/%C3%BC%25?version=7");
        assert_eq!(node("/", None).target(), "/v1/nodes/");
        let query = NodeQuery {
            children: Some(true),
            children_after: Some("a&b".into()),
            consistency: Some(Level::Stale),
            ..NodeQuery::default()
        };
        let call = Call::GetNode { path: "/x".into(), query };
        assert_eq!(call.target(), "/v1/nodes/x?children=true&children_after=a%26b&consistency=stale");
        let call = Call::BreakLock { name: "a/b".into(), token: 7 };
        assert_eq!((call.route().0, call.target()), ("DELETE", "/v1/locks/a%2Fb/holders/7".into()));
    }

    #[test]
    fn json_is_exact() {
        let call = Call::AcquireLock { name: "a".into(), body: Acquire { wait_ms: 5, ..Acquire::default() } };
        let json = serde_json::to_string(&call).unwrap();
        assert_eq!(json, r#"{"acquire_lock":{"name":"a","body":{"mode":"exclusive","wait_ms":5}}}"#);
        assert_eq!(serde_json::from_str::<Call>(&json).unwrap(), call);
        let short: Call = serde_json::from_str(r#"{"acquire_lock":{"name":"a"}}"#).unwrap();
        assert_eq!(short, Call::AcquireLock { name: "a".into(), body: Acquire::default() });
        assert_eq!(
            serde_json::to_string(&Call::GetCluster { query: ClusterQuery::default() }).unwrap(),
            r#"{"get_cluster":{}}"#
        );
        for bad in [
            r#"{"brew_coffee":{}}"#,
            r#"{"acquire_lock":{"name":"a","surprise":1}}"#,
            r#"{"acquire_lock":{"name":"a","body":{"surprise":1}}}"#,
            r#"{"acquire_lock":{"name":"a","body":[]}}"#,
            r#"{"acquire_lock":{"name":"a","body":null}}"#,
            r#"{"release_lock":{"name":"a"}}"#,
            r#"{"get_cluster":{},"get_node":{"path":"/"}}"#,
        ] {
            assert!(serde_json::from_str::<Call>(bad).is_err(), "{bad}");
        }
    }
}
