//! The namespaces with limits, and what each uses. The tree keeps the counts up to date with each change; where no
//! namespace has limits, that costs nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use lockkeeper_mutants::{invariant, mutant};

use super::State;
use super::access::Access;
use super::arguments::bad;
use super::session::Session;
use super::size;
use super::transaction::Transaction;
use super::tree::{Node, Tree};
use crate::access::{Need, Resource, Rights};
use crate::acl::{Identity, Principals};
use crate::command::Op;
use crate::gate::GATES_ROOT;
use crate::ids::{SessionId, Zxid};
use crate::limits::{MAX_NAMESPACES, MAX_PART_BYTES};
use crate::lock::{LOCKS_ROOT, LockName, parse_request};
use crate::namespace::{Namespace, NamespaceBound, NamespaceLimits, NamespaceUsage, first_part, namespace_of};
use crate::path::NodePath;
use crate::rate::RATES_ROOT;
use crate::reply::{Refusal, Reply};

/// The namespaces with limits by name. `Clone` is O(1).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Namespaces {
    limited: OrdMap<Arc<str>, Counted>,
}

/// A namespace and what it uses.
#[derive(Clone, Debug, PartialEq)]
struct Counted {
    namespace: Arc<Namespace>,
    lock_requests: u64,
    nodes: u64,
    bytes: u64,
    /// How many nodes each session owns here, and one more for a session of the owner.
    sessions: OrdMap<SessionId, u64>,
    /// The counts have only what comes up to here in the order of counting; `None` once they have everything. Limits
    /// that need the counts are never set before.
    counted_to: Option<Position>,
}

/// A position in the order of counting: the nodes below each root, and then the sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    /// A node, with the index of its root in [`ROOTS`].
    Node(usize, NodePath),
    Session(SessionId),
}

/// Where names begin.
const ROOTS: [&str; 4] = ["", LOCKS_ROOT, GATES_ROOT, RATES_ROOT];

/// How many nodes and sessions one command counts: a millisecond or two.
pub(crate) const COUNTED_AT_ONCE: usize = 10_000;

/// What may count.
enum Candidate<'a> {
    Node(usize, &'a NodePath, &'a Node),
    /// A session, and whether it is of the owner.
    Session(SessionId, bool),
}

impl Candidate<'_> {
    fn position(&self) -> Position {
        match self {
            Self::Node(root, path, _) => Position::Node(*root, (*path).clone()),
            Self::Session(session, _) => Position::Session(*session),
        }
    }
}

/// To whom a session belongs.
#[derive(Clone, Debug)]
pub(crate) struct SessionOwner {
    pub(crate) identity: Identity,
    /// The namespace in which it counts.
    pub(crate) namespace: Option<Arc<str>>,
}

/// What an operation is about to add to a namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Added {
    pub(crate) session: Option<SessionId>,
    pub(crate) opens_session: bool,
    /// The session whose node is replaced.
    pub(crate) replaces: Option<SessionId>,
    pub(crate) lock_requests: u64,
    pub(crate) nodes: u64,
    pub(crate) bytes: u64,
}

impl Added {
    /// A session of the owner.
    pub(crate) fn session() -> Self {
        Self { opens_session: true, ..Self::default() }
    }

    /// A new node.
    pub(crate) fn node(path: &NodePath, node: &Node) -> Self {
        Self {
            session: node.owner,
            lock_requests: u64::from(is_request(path, node)),
            nodes: 1,
            bytes: size::of_node(path, node),
            ..Self::default()
        }
    }

    /// The same where it takes the place of another.
    pub(crate) fn in_place_of(self, path: &NodePath, old: Option<&Node>) -> Self {
        let Some(old) = old else { return self };
        let lock_requests = self.lock_requests.saturating_sub(u64::from(is_request(path, old)));
        let bytes = self.bytes.saturating_sub(size::of_node(path, old));
        Self { lock_requests, nodes: 0, bytes, replaces: old.owner, ..self }
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            session: self.session.or(other.session),
            opens_session: self.opens_session || other.opens_session,
            replaces: self.replaces.or(other.replaces),
            lock_requests: self.lock_requests + other.lock_requests,
            nodes: self.nodes + other.nodes,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Whether a node counts as a lock request. Clients of ZooKeeper's recipes queue wherever they like.
fn is_request(path: &NodePath, node: &Node) -> bool {
    node.is_ephemeral() && parse_request(path.name()).is_some()
}

impl Counted {
    /// Nothing is counted yet.
    fn new(namespace: Arc<Namespace>) -> Self {
        let counted_to = Some(Position::Node(0, NodePath::root()));
        Self { namespace, lock_requests: 0, nodes: 0, bytes: 0, sessions: OrdMap::new(), counted_to }
    }

    /// Whether what is at this position is in the counts.
    fn covers(&self, position: impl FnOnce() -> Position) -> bool {
        self.counted_to.as_ref().is_none_or(|to| position() <= *to)
    }

    fn count(&mut self, candidate: &Candidate<'_>) {
        match candidate {
            Candidate::Node(_, path, node) => self.add(path, node),
            Candidate::Session(session, true) => self.add_session(*session),
            Candidate::Session(_, false) => {}
        }
    }

    /// Counts so many more nodes and sessions.
    fn advance(&mut self, name: &str, tree: &Tree, sessions: &OrdMap<SessionId, Arc<Session>>, most: usize) {
        let Some(from) = self.counted_to.clone() else { return };
        let (mut count, mut last) = (0, None);
        for candidate in candidates(name, tree, sessions, &from).take(most) {
            self.count(&candidate);
            count += 1;
            last = Some(candidate);
        }
        self.counted_to = last.filter(|_| count == most).map(|last| last.position());
    }

    fn add(&mut self, path: &NodePath, node: &Node) {
        self.nodes += 1;
        self.bytes += size::of_node(path, node);
        self.lock_requests += u64::from(is_request(path, node));
        node.owner.into_iter().for_each(|owner| self.add_session(owner));
    }

    fn remove(&mut self, path: &NodePath, node: &Node) {
        let bytes = size::of_node(path, node);
        invariant!(self.nodes > 0 && bytes <= self.bytes, "the counts of a namespace include each of its nodes");
        self.nodes -= 1;
        self.bytes -= bytes;
        self.lock_requests -= u64::from(is_request(path, node));
        node.owner.into_iter().for_each(|owner| self.remove_session(owner));
    }

    fn add_session(&mut self, session: SessionId) {
        *self.sessions.entry(session).or_insert(0) += 1;
    }

    fn remove_session(&mut self, session: SessionId) {
        if let Some(count) = self.sessions.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&session);
            }
        }
    }

    fn usage(&self) -> NamespaceUsage {
        NamespaceUsage {
            sessions: self.sessions.len() as u64,
            lock_requests: self.lock_requests,
            nodes: self.nodes,
            bytes: self.bytes,
        }
    }

    /// The first limit that this would exceed, with what is used and the limit.
    fn exceeded(&self, added: &Added) -> Option<(NamespaceBound, u64, u64)> {
        let (limits, used) = (&self.namespace.limits, self.usage());
        let is_new = |session| !self.sessions.contains_key(&session);
        let is_last = |session| self.sessions.get(&session) == Some(&1);
        let new_session =
            added.opens_session || added.session.is_some_and(is_new) && !added.replaces.is_some_and(is_last);
        let bounds = [
            (NamespaceBound::Sessions, used.sessions, u64::from(new_session), limits.sessions),
            (NamespaceBound::LockRequests, used.lock_requests, added.lock_requests, limits.lock_requests),
            (NamespaceBound::Nodes, used.nodes, added.nodes, limits.nodes),
            (NamespaceBound::Bytes, used.bytes, added.bytes, limits.bytes),
        ];
        bounds.into_iter().find_map(|(bound, used, more, limit)| {
            let limit = limit.filter(|limit| more > 0 && used.saturating_add(more) > *limit)?;
            Some((bound, used, limit))
        })
    }
}

impl Namespaces {
    /// The counts of a namespace, if it has limits.
    fn counted(&mut self, name: Option<&str>) -> Option<&mut Counted> {
        if self.limited.is_empty() { None } else { self.limited.get_mut(name?) }
    }

    /// The same of a node's namespace. Where no namespace has limits, the path is not looked at.
    fn counted_of(&mut self, path: &NodePath) -> Option<&mut Counted> {
        if self.limited.is_empty() {
            return None;
        }
        let name = self.of_path(path)?;
        self.limited.get_mut(name).filter(|counted| counted.covers(|| Self::position(path)))
    }

    /// The namespace of a node.
    fn of_path<'a>(&self, path: &'a NodePath) -> Option<&'a str> {
        match path.as_str().strip_prefix(RATES_ROOT) {
            Some("") => None,
            Some(name) if name.starts_with('/') => first_part(name),
            _ => namespace_of(path),
        }
    }

    /// The position of a node.
    fn position(path: &NodePath) -> Position {
        let roots = ROOTS.iter().enumerate().skip(1);
        let below = |root: &str| path.as_str().strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
        let root = roots.filter(|(_, root)| below(root)).map(|(index, _)| index).next();
        Position::Node(root.unwrap_or(0), path.clone())
    }

    pub(crate) fn add(&mut self, path: &NodePath, node: &Node) {
        if let Some(counted) = self.counted_of(path) {
            counted.add(path, node);
        }
    }

    pub(crate) fn remove(&mut self, path: &NodePath, node: &Node) {
        if let Some(counted) = self.counted_of(path) {
            counted.remove(path, node);
        }
    }

    /// A node's size has changed.
    pub(crate) fn resize(&mut self, path: &NodePath, before: u64, after: u64) {
        if before != after
            && let Some(counted) = self.counted_of(path)
        {
            counted.bytes = counted.bytes + after - before;
        }
    }

    /// Counts a session of the owner.
    pub(crate) fn add_session(&mut self, name: Option<&str>, session: SessionId) {
        if let Some(counted) = self.counted(name).filter(|counted| counted.covers(|| Position::Session(session))) {
            counted.add_session(session);
        }
    }

    /// Such a session has ended.
    pub(crate) fn remove_session(&mut self, name: Option<&str>, session: SessionId) {
        if let Some(counted) = self.counted(name).filter(|counted| counted.covers(|| Position::Session(session))) {
            counted.remove_session(session);
        }
    }

    /// Checks that a namespace has room.
    pub(crate) fn check(&self, name: Option<&str>, added: &Added) -> Result<(), Refusal> {
        let Some((name, counted)) =
            name.filter(|_| !self.limited.is_empty()).and_then(|name| self.limited.get_key_value(name))
        else {
            return Ok(());
        };
        match counted.exceeded(added) {
            Some((bound, used, limit)) if !mutant!(NoNamespaceBound) => {
                Err(Refusal::NamespaceFull { namespace: name.clone(), bound, used, limit })
            }
            _ => Ok(()),
        }
    }

    /// To whom a caller's session belongs, and in which namespace it counts; `None` for nobody's.
    pub(crate) fn owner_of_session(&self, access: &Access, who: &Principals, clock_ms: u64) -> Option<SessionOwner> {
        let identity = access.identity_of(who, clock_ms)?;
        Some(SessionOwner { identity, namespace: self.owned_by(access, who, clock_ms) })
    }

    /// The first namespace that a caller owns.
    fn owned_by(&self, access: &Access, who: &Principals, clock_ms: u64) -> Option<Arc<str>> {
        if self.limited.is_empty() {
            return None;
        }
        let principals: Vec<_> = access.principals_of(who, clock_ms).collect();
        self.iter().find_map(|(name, counted)| {
            let owner = counted.namespace.owner.as_deref()?;
            principals.iter().any(|principal| principal == owner).then(|| name.clone())
        })
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Counted)> {
        self.limited.iter()
    }
}

/// What may count in a namespace and comes after a position, in order.
fn candidates<'a>(
    name: &'a str,
    tree: &'a Tree,
    sessions: &'a OrdMap<SessionId, Arc<Session>>,
    after: &'a Position,
) -> impl Iterator<Item = Candidate<'a>> {
    let (root, path, session) = match after {
        Position::Node(root, path) => (*root, path.as_str(), None),
        Position::Session(session) => (ROOTS.len(), "", Some(*session)),
    };
    let nodes = ROOTS.into_iter().enumerate().skip(root).flat_map(move |(index, prefix)| {
        let after = if index == root { path } else { "" };
        nodes_of(name, tree, prefix, after).map(move |(path, node)| Candidate::Node(index, path, node))
    });
    let later = (session.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    let is_own = move |session: &Session| session.namespace.as_deref() == Some(name);
    nodes.chain(sessions.range(later).map(move |(id, session)| Candidate::Session(*id, is_own(session))))
}

/// The nodes of a namespace below one root that come after a path.
fn nodes_of<'a>(
    name: &str,
    tree: &'a Tree,
    root: &str,
    after: &str,
) -> impl Iterator<Item = (&'a NodePath, &'a Node)> + use<'a> {
    let top = NodePath::parse(&format!("{root}/{name}")).ok();
    // The service's own directories have the names of others below them.
    let top = top.filter(|top| tree.namespaces.of_path(top) == Some(name));
    let own = top.as_ref().filter(|top| top.as_str() > after).and_then(|top| tree.nodes.get_key_value(top.as_str()));
    let below = top.map(|top| format!("{top}/"));
    let rest = below.map(|below| {
        let from = if after > below.as_str() { Bound::Excluded(after) } else { Bound::Included(below.as_str()) };
        let nodes = tree.nodes.range::<_, str>((from, Bound::Unbounded));
        nodes.take_while(move |(path, _)| path.as_str().starts_with(&below))
    });
    own.into_iter().chain(rest.into_iter().flatten()).map(|(path, node)| (path, &**node))
}

impl State {
    /// The namespaces with limits, in order of their names, and what each uses.
    pub fn namespaces(&self) -> impl ExactSizeIterator<Item = (&str, &Namespace, NamespaceUsage)> {
        self.tree.namespaces.iter().map(|(name, counted)| (&**name, &*counted.namespace, counted.usage()))
    }

    /// Whether any namespace has limits.
    pub fn has_namespaces(&self) -> bool {
        self.tree.namespaces.iter().len() > 0
    }

    /// Whether limits that need the counts of a namespace would have one command count more than it should. Setting
    /// none for it before, as often as this is true, counts in pieces.
    pub fn has_much_to_count(&self, name: &str) -> bool {
        let start = Position::Node(0, NodePath::root());
        let from = match self.tree.namespaces.limited.get(name) {
            Some(Counted { counted_to: None, .. }) => return false,
            Some(Counted { counted_to: Some(from), .. }) => from,
            None => &start,
        };
        candidates(name, &self.tree, &self.sessions, from).nth(COUNTED_AT_ONCE).is_some()
    }

    /// Whether an operation is on a namespace with limits. Every operation comes by here, and most clusters have none.
    pub(crate) fn is_limited(&self, op: &Op) -> bool {
        let is_limited = |name: &str| self.tree.namespaces.limited.contains_key(name);
        self.has_namespaces() && op.names().into_iter().filter_map(first_part).any(is_limited)
    }

    /// The limits of a namespace, if it has any.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.tree.namespaces.limited.get(name).map(|counted| &*counted.namespace)
    }

    /// The namespace in which a caller's sessions and nameless requests count: the first one that it owns.
    pub fn namespace_owned_by(&self, who: &Principals) -> Option<Arc<str>> {
        self.tree.namespaces.owned_by(&self.access, who, self.clock_ms)
    }

    /// Checks that a lock request of a new session would find room, before that session is opened for it. A caller who
    /// may not acquire the locks learns nothing here.
    ///
    /// # Errors
    /// A namespace of the locks has as much as it may.
    pub fn check_room_for_request(&self, who: &Principals, locks: &[LockName]) -> Result<(), Refusal> {
        let may =
            |lock: &LockName| self.check_right(who, &Need::of(Resource::Locks, lock.as_str(), Rights::ACQUIRE)).is_ok();
        if !self.has_namespaces() || !locks.iter().all(may) {
            return Ok(());
        }
        let added = Added { lock_requests: 1, nodes: 1, ..Added::session() };
        locks.iter().try_for_each(|lock| self.tree.namespaces.check(first_part(lock.as_str()), &added))
    }

    /// Checks that the namespace that a caller owns has room for a session.
    ///
    /// # Errors
    /// It has as many as it may.
    pub fn check_room_for_session(&self, who: &Principals) -> Result<(), Refusal> {
        let owner = self.tree.namespaces.owner_of_session(&self.access, who, self.clock_ms);
        let namespace = owner.and_then(|owner| owner.namespace);
        self.tree.namespaces.check(namespace.as_deref(), &Added::session())
    }

    /// Gives a namespace of a snapshot its limits; everything else has been restored.
    pub(crate) fn restore_namespace(&mut self, name: Arc<str>, namespace: Arc<Namespace>) {
        let mut counted = Counted::new(namespace);
        counted.advance(&name, &self.tree, &self.sessions, usize::MAX);
        self.tree.namespaces.limited.insert(name, counted);
    }

    /// Checks the counts against what is there.
    pub(crate) fn validate_namespaces(&self) -> Result<(), String> {
        for (name, kept) in self.tree.namespaces.iter() {
            let mut counted = Counted::new(kept.namespace.clone());
            let start = Position::Node(0, NodePath::root());
            candidates(name, &self.tree, &self.sessions, &start)
                .filter(|candidate| kept.covers(|| candidate.position()))
                .for_each(|candidate| counted.count(&candidate));
            counted.counted_to = kept.counted_to.clone();
            let is_enough = kept.counted_to.is_none() || !kept.namespace.limits.need_counts();
            if !is_enough || *kept != counted {
                return Err(format!("namespace {name} counts {kept:?}, but there is {counted:?}"));
            }
        }
        Ok(())
    }
}

impl Transaction<'_> {
    /// Checks that the namespace of a new node has room.
    pub(crate) fn check_namespace(&self, path: &NodePath, added: &Added) -> Result<(), Refusal> {
        self.tree.namespaces.check(self.tree.namespaces.of_path(path), added)
    }

    /// The same for several nodes, which may be in different namespaces.
    pub(crate) fn check_namespaces(&self, added: impl IntoIterator<Item = (NodePath, Added)>) -> Result<(), Refusal> {
        if self.tree.namespaces.limited.is_empty() {
            return Ok(());
        }
        let mut sums: BTreeMap<String, Added> = BTreeMap::new();
        for (path, added) in added {
            let Some(name) = self.tree.namespaces.of_path(&path) else { continue };
            let sum = sums.entry(name.to_owned()).or_default();
            *sum = sum.and(added);
        }
        sums.iter().try_for_each(|(name, added)| self.tree.namespaces.check(Some(name), added))
    }

    /// Sets the limits of a namespace. The right to it has been checked.
    pub(crate) fn put_namespace(
        &mut self,
        name: &Arc<str>,
        owner: Option<&Arc<str>>,
        limits: &NamespaceLimits,
        expected: Option<Zxid>,
    ) -> Result<Reply, Refusal> {
        check_namespace_name(name)?;
        let known = self.tree.namespaces.limited.get(name);
        let actual = known.map_or(Zxid(0), |known| known.namespace.version);
        if let Some(expected) = expected.filter(|expected| *expected != actual) {
            return Err(Refusal::NamespaceChanged { namespace: name.clone(), expected, actual });
        }
        let namespace = Arc::new(Namespace { owner: owner.cloned(), limits: *limits, version: self.zxid });
        let mut counted = match known {
            Some(known) => Counted { namespace, ..known.clone() },
            None if self.tree.namespaces.limited.len() >= MAX_NAMESPACES => {
                return Err(bad(format!("at most {MAX_NAMESPACES} namespaces have limits")));
            }
            None => Counted::new(namespace),
        };
        let most = if limits.need_counts() { usize::MAX } else { COUNTED_AT_ONCE };
        counted.advance(name, self.tree, self.sessions, most);
        self.tree.namespaces.limited.insert(name.clone(), counted);
        self.changed = true;
        Ok(Reply::AccessChanged)
    }

    /// Takes the limits from a namespace.
    pub(crate) fn delete_namespace(&mut self, name: &Arc<str>) -> Result<Reply, Refusal> {
        if self.tree.namespaces.limited.remove(name).is_none() {
            return Err(Refusal::NotThere(format!("namespace '{name}' has no limits").into()));
        }
        self.changed = true;
        Ok(Reply::AccessChanged)
    }
}

fn check_namespace_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty()
        || name.contains('/')
        || name.len() > MAX_PART_BYTES
        || NodePath::parse(&format!("/{name}")).is_err()
    {
        return Err(bad(format!(
            "a namespace is the first part of a name: 1 to {MAX_PART_BYTES} bytes without a slash, as in a path"
        )));
    }
    Ok(())
}
