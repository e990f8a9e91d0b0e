//! What a row of the table of calls (`calls.rs`) says.

use crate::access::{Resource, Right};

/// A row.
#[derive(Debug)]
pub struct Row {
    /// The name of the call in the JSON of a session stream.
    pub name: &'static str,
    /// The group.
    pub group: &'static str,
    /// Its sentences, a line each.
    pub text: &'static str,
    /// The method over HTTP.
    pub method: &'static str,
    /// The route over HTTP, as `/openapi.json` has it.
    pub route: &'static str,
    /// The parts of the route that differ from request to request.
    pub parts: &'static [PathPart],
    /// The status of the answer.
    pub status: u16,
    /// What the answer says.
    pub done: &'static str,
    /// The rules.
    pub rules: Rules,
}

/// A part of a route.
#[derive(Debug)]
pub struct PathPart {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: &'static str,
    /// What it names.
    pub about: &'static str,
}

impl PathPart {
    /// Whether it is a number. Otherwise it is a name.
    pub fn is_number(&self) -> bool {
        self.kind == "u64"
    }
}

impl Row {
    /// The resource on which the call needs its right. Where the path has a name, it is one of that resource.
    pub fn resource(&self) -> Resource {
        match self.group {
            "sessions" => Resource::Sessions,
            "locks" => Resource::Locks,
            "gates" => Resource::Gates,
            "nodes" => Resource::Nodes,
            "rates" => Resource::Rates,
            "cluster" | "access" => Resource::Cluster,
            other => unreachable!("the calls of {other} are about no resource"),
        }
    }

    /// What stands before the first part in the route, and after it; the whole route where it has no part.
    pub fn around_part(&self) -> (&'static str, &'static str) {
        let (before, after) = self.route.split_once('{').unwrap_or((self.route, ""));
        (before, after.split_once('}').map_or("", |(_, after)| after))
    }

    /// Whether a path has the form of the route. A name may have slashes.
    pub fn matches(&self, path: &str) -> bool {
        let (before, after) = self.around_part();
        let part = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        match (part, self.parts.first()) {
            (Some(part), Some(first)) => !part.is_empty() && (!first.is_number() || !part.contains('/')),
            (part, None) => part == Some(""),
            (None, Some(_)) => false,
        }
    }

    /// The path with a value for each part, encoded as a URL has it.
    pub fn path(&self, value: impl Fn(&PathPart) -> String) -> String {
        let with = |path: String, part: &PathPart| match part.name {
            // It begins with the slash that the route has.
            "path" => path.replace("/{path}", &value(part)),
            name => path.replace(&format!("{{{name}}}"), &value(part)),
        };
        self.parts.iter().fold(self.route.to_owned(), with)
    }
}

/// The rules of a call.
#[derive(Debug)]
pub struct Rules {
    /// The right that a caller needs where access control is enforced. The state decides; this is what tests expect.
    pub needs: Needs,
    /// The headers that say on whose behalf it is made.
    pub headers: Headers,
    /// Whether a client that has a session makes it in that session.
    pub as_session: bool,
    /// Whether a client may send it again.
    pub retry: Retry,
    /// Whether it keeps or gives back something: then no load of others may have it refused (promise P13).
    pub own_lane: bool,
    /// Whose requests a second it counts in.
    pub charged: Charged,
    /// Whether each use is in the audit log: then it is carried out to its end even if its client goes away.
    pub audited: bool,
    /// What a problem of 4xx says.
    pub refused: &'static str,
    /// What a problem of 5xx says.
    pub failed: &'static str,
    /// Another status that `/openapi.json` names, and what it says.
    pub otherwise: Option<(u16, &'static str)>,
    /// A body, or for GET a query, that is good enough to be refused for want of a right alone; for tests.
    pub example: &'static str,
}

/// What a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    NoRight,
    /// A role, whatever that allows.
    AnyRole,
    /// The session that it is about. To give back needs no right.
    OwnSession,
    /// One of these rights on the [`resource`](Row::resource). Callers may do without for what is their own: show a
    /// session, open a gate again that their session has begun, list a namespace.
    OneOf(&'static [Right]),
}

/// The headers that say on whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// No session is needed. One that is named is alive.
    None,
    /// A session may be named, and must be the caller's then, but there is no reason to.
    Undocumented,
    /// A session.
    Session,
    /// A session, and a request id that makes a retry safe.
    SessionAndRequestId,
}

/// Whether a client may send a call again while the outcome of an earlier attempt is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Always: it changes nothing, or a second time changes nothing more.
    Always,
    /// Yes: its body identifies it, so that the cluster carries it out once.
    Idempotent,
    /// With a session, under the same request id; without a session never.
    ByRequestId,
    /// Never.
    Never,
}

/// The namespaces in whose requests a second a call counts. What it says in its body or query goes before this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// That of the name in its path.
    Name,
    /// Those of its caller.
    Caller,
    /// None: it gives back, or administers.
    Nothing,
}

pub(crate) const READ: &[Right] = &[Right::Read];
/// To acquire a lock is to see who stands in line.
pub(crate) const READ_OR_ACQUIRE: &[Right] = &[Right::Read, Right::Acquire];
pub(crate) const ACQUIRE: &[Right] = &[Right::Acquire];
const WRITE: &[Right] = &[Right::Write];
const FORCE: &[Right] = &[Right::Force];
const READ_OR_ADMIN: &[Right] = &[Right::Read, Right::Admin];
const ADMIN: &[Right] = &[Right::Admin];

/// Reads what its path names.
pub(crate) const READS: Rules = Rules {
    needs: Needs::OneOf(READ_OR_ACQUIRE),
    headers: Headers::None,
    as_session: true,
    retry: Retry::Always,
    own_lane: false,
    charged: Charged::Name,
    audited: false,
    refused: "Refused",
    failed: "Try again",
    otherwise: None,
    example: "",
};

/// Lists names.
pub(crate) const LISTS: Rules = Rules { charged: Charged::Caller, ..READS };

/// Reads what is of the cluster.
pub(crate) const READS_CLUSTER: Rules =
    Rules { needs: Needs::OneOf(READ_OR_ADMIN), as_session: false, charged: Charged::Nothing, ..READS };

/// Reads what everybody may know.
pub(crate) const READS_OPENLY: Rules = Rules { needs: Needs::NoRight, ..READS_CLUSTER };

/// Changes what its path names.
pub(crate) const CHANGES: Rules = Rules {
    needs: Needs::OneOf(WRITE),
    headers: Headers::SessionAndRequestId,
    retry: Retry::ByRequestId,
    refused: "Refused; nothing changed",
    failed: "Try again, or unknown (504)",
    ..READS
};

/// Keeps or gives back what is the session's.
pub(crate) const GIVES_BACK: Rules =
    Rules { needs: Needs::OwnSession, own_lane: true, charged: Charged::Nothing, ..CHANGES };

/// Takes from others what is theirs. The cluster remembers no request id: a second attempt could not tell its own
/// success from another's.
pub(crate) const BY_FORCE: Rules = Rules {
    needs: Needs::OneOf(FORCE),
    headers: Headers::Session,
    retry: Retry::Never,
    charged: Charged::Nothing,
    audited: true,
    ..CHANGES
};

/// Administers the cluster.
pub(crate) const ADMINISTERS: Rules = Rules { needs: Needs::OneOf(ADMIN), headers: Headers::None, ..BY_FORCE };
