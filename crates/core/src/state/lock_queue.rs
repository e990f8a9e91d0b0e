//! The index of one directory's lock queue, which decides who holds: a request without a blocker. It finds the blocker
//! of a request in O(log n) among 100,000 requests.
//!
//! It knows names and tokens, not sessions, and is never scanned to answer for one request.

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use lockkeeper_mutants::{invariant, mutant};

use crate::ids::FencingToken;
use crate::limits::MAX_PERMITS;
use crate::lock::{LockMode, LockName, NameFamily, family_of, parse_request};
use crate::path::NodePath;
use crate::reply::Refusal;

/// A place in the queue: the sequence, then the path of the node, because hand-made nodes may share a sequence.
pub(crate) type Place = (u64, NodePath);

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocker<'a> {
    /// This request or kept place.
    Request(&'a Place),
    /// All permits are taken: the next holder of a permit that goes.
    AnyHolder,
}

/// A client that wants to enter a queue, by the names that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newcomer {
    /// A request of the lock API: the service sees all names that it gives itself.
    Native,
    /// A client that creates its own node, and sees names of this family.
    Named(NameFamily),
}

impl Newcomer {
    fn sees(self, other: NameFamily) -> bool {
        match self {
            Self::Native => matches!(other, NameFamily::Lock | NameFamily::ReadWrite | NameFamily::Permit),
            Self::Named(own) => own == other,
        }
    }
}

impl fmt::Display for Newcomer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("a request of the lock API"),
            Self::Named(family) => write!(f, "a client with {family}"),
        }
    }
}

/// The requests among a directory's children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    requests: Requests,
    /// How many nodes have names of each family. Of nodes that are no requests, only ephemeral ones count.
    families: [u32; NameFamily::COUNT],
}

/// Most queues have one holder and no waiters. Without maps, such a queue takes an eighth of the memory and is
/// created and dropped without an allocation.
#[derive(Clone, Debug)]
enum Requests {
    One(Option<QueuedRequest>),
    /// A queue that has had more than one request keeps its maps until it is empty.
    Many(Arc<Index>),
}

#[derive(Clone, Debug, PartialEq)]
struct QueuedRequest {
    place: Place,
    mode: LockMode,
    token: FencingToken,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Index {
    /// Every request, in queue order.
    places: OrdMap<Place, LockMode>,
    /// The requests that are not shared: the possible blockers of a shared one.
    barriers: OrdSet<Place>,
    /// The number of requests of each kind: 0 for locks, else the permits of the semaphore.
    kinds: OrdMap<u16, usize>,
    /// By token. A multi can create two requests under one zxid, so a token may name two.
    tokens: OrdSet<(FencingToken, Place)>,
}

impl Index {
    fn insert(&mut self, request: QueuedRequest) {
        let QueuedRequest { place, mode, token } = request;
        if mode != LockMode::Shared {
            self.barriers.insert(place.clone());
        }
        *self.kinds.entry(kind_of(mode)).or_insert(0) += 1;
        self.tokens.insert((token, place.clone()));
        self.places.insert(place, mode);
    }

    fn remove(&mut self, request: QueuedRequest) {
        let QueuedRequest { place, mode, token } = request;
        if mode != LockMode::Shared {
            self.barriers.remove(&place);
        }
        if let Some(count) = self.kinds.get_mut(&kind_of(mode)) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&kind_of(mode));
            }
        }
        let is_known = [self.places.remove(&place).is_some(), self.tokens.remove(&(token, place)).is_some()];
        invariant!(
            is_known == [true; 2],
            "a request leaves the queue with the place and the token with which it entered"
        );
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::One(None)
    }
}

impl Requests {
    fn index(&self) -> Cow<'_, Index> {
        match self {
            Self::Many(index) => Cow::Borrowed(index),
            Self::One(request) => {
                let mut index = Index::default();
                request.iter().cloned().for_each(|request| index.insert(request));
                Cow::Owned(index)
            }
        }
    }
}

/// Compares the requests, not their representation.
impl PartialEq for Requests {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(own), Self::One(others)) => own == others,
            _ => self.index() == other.index(),
        }
    }
}

impl Queue {
    /// A queue without requests.
    pub(crate) const EMPTY: Self = Self { requests: Requests::One(None), families: [0; NameFamily::COUNT] };

    /// Adds a child, if it is a request.
    pub(crate) fn insert(&mut self, child: &NodePath, token: FencingToken, ephemeral: bool) {
        if let Some(count) = self.family_count(child.name(), ephemeral) {
            *count = count.saturating_add(1);
        }
        let Some((place, mode)) = place_of(child) else { return };
        let request = QueuedRequest { place, mode, token };
        match &mut self.requests {
            Requests::One(slot @ None) => *slot = Some(request),
            Requests::One(Some(first)) => {
                let mut index = Index::default();
                index.insert(first.clone());
                index.insert(request);
                self.requests = Requests::Many(Arc::new(index));
            }
            Requests::Many(index) => Arc::make_mut(index).insert(request),
        }
    }

    /// Removes a child, if it is a request.
    pub(crate) fn remove(&mut self, child: &NodePath, token: FencingToken, ephemeral: bool) {
        if let Some(count) = self.family_count(child.name(), ephemeral) {
            *count = count.saturating_sub(1);
        }
        let Some((place, mode)) = place_of(child) else { return };
        let is_empty = match &mut self.requests {
            Requests::One(request) => {
                let is_it = request.as_ref().is_some_and(|one| one.place == place && one.token == token);
                invariant!(is_it, "a request leaves the queue with the place and the token with which it entered");
                is_it
            }
            Requests::Many(index) => {
                let index = Arc::make_mut(index);
                index.remove(QueuedRequest { place, mode, token });
                index.places.is_empty()
            }
        };
        if is_empty {
            self.requests = Requests::default();
        }
    }

    fn family_count(&mut self, name: &str, ephemeral: bool) -> Option<&mut u32> {
        let family = family_of(name)?;
        (ephemeral || family != NameFamily::Other).then(|| &mut self.families[family as usize])
    }

    /// A family of names in the queue that the newcomer does not see.
    pub(crate) fn unseen_by(&self, newcomer: Newcomer) -> Option<NameFamily> {
        NameFamily::ALL.into_iter().find(|family| self.families[*family as usize] > 0 && !newcomer.sees(*family))
    }

    fn one(&self) -> Option<&QueuedRequest> {
        match &self.requests {
            Requests::One(request) => request.as_ref(),
            Requests::Many(_) => None,
        }
    }

    fn many(&self) -> Option<&Index> {
        match &self.requests {
            Requests::One(_) => None,
            Requests::Many(index) => Some(index),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.many().map_or(usize::from(self.one().is_some()), |index| index.places.len())
    }

    /// How many requests of a queue of locks hold alone, or will. Each has a turn of its own. O(1).
    pub(crate) fn exclusive_requests(&self) -> usize {
        let one = self.one().filter(|one| one.mode != LockMode::Shared);
        self.many().map_or(usize::from(one.is_some()), |index| index.barriers.len())
    }

    /// All places in queue order, with their modes.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Place, LockMode)> {
        let one = self.one().map(|one| (&one.place, one.mode));
        let many = self.many().into_iter().flat_map(|index| index.places.iter().map(|(place, mode)| (place, *mode)));
        one.into_iter().chain(many)
    }

    /// The predecessors of a place, in queue order.
    fn before(&self, place: &Place) -> impl DoubleEndedIterator<Item = (&Place, LockMode)> {
        let one = self.one().filter(|one| one.place < *place).map(|one| (&one.place, one.mode));
        let until = (Bound::Unbounded, Bound::Excluded(place));
        let many = self.many().map(|index| index.places.range::<_, Place>(until));
        one.into_iter().chain(many.into_iter().flatten().map(|(place, mode)| (place, *mode)))
    }

    /// The nearest predecessor that is not shared.
    fn barrier_before(&self, place: &Place) -> Option<&Place> {
        let one = self.one().filter(|one| one.place < *place && one.mode != LockMode::Shared).map(|one| &one.place);
        let until = (Bound::Unbounded, Bound::Excluded(place));
        one.or_else(|| self.many()?.barriers.range::<_, Place>(until).next_back())
    }

    /// The first request that is not shared.
    fn first_barrier(&self) -> Option<&Place> {
        let one = self.one().filter(|one| one.mode != LockMode::Shared).map(|one| &one.place);
        one.or_else(|| self.many()?.barriers.get_min())
    }

    /// The kinds of the requests in the queue.
    fn kinds(&self) -> impl Iterator<Item = u16> {
        let many = self.many().into_iter().flat_map(|index| index.kinds.keys().copied());
        self.one().map(|one| kind_of(one.mode)).into_iter().chain(many)
    }

    /// Whether this request stands behind all others and has the largest token. O(log n).
    pub(crate) fn is_last(&self, path: &NodePath, token: FencingToken) -> bool {
        let largest = self.many().map_or(self.one().map(|one| one.token), |index| Some(index.tokens.get_max()?.0));
        self.iter().next_back().is_some_and(|((_, last), _)| last == path) && largest == Some(token)
    }

    pub(crate) fn contains(&self, place: &Place) -> bool {
        self.one().is_some_and(|one| one.place == *place)
            || self.many().is_some_and(|index| index.places.contains_key(place))
    }

    /// The blocker of a request: its nearest predecessor; for a shared one its nearest predecessor that is not
    /// shared; for a permit any holder, if it has as many predecessors as there are permits. `None` means that the
    /// request holds.
    pub(crate) fn blocker(&self, place: &Place, mode: LockMode) -> Option<Blocker<'_>> {
        match mode {
            LockMode::Exclusive | LockMode::Write => {
                let overlooked = usize::from(mutant!(TwoHolders));
                self.before(place).rev().nth(overlooked).map(|(place, _)| Blocker::Request(place))
            }
            LockMode::Shared => self.barrier_before(place).map(Blocker::Request),
            LockMode::Permit(permits) => {
                if self.kinds().any(|kind| kind == LOCK_KIND) {
                    // Only hand-made requests outside of lock directories mix.
                    let mut predecessors = self.before(place).rev();
                    if let Some((foreign, _)) = predecessors.find(|(_, mode)| mode.permits().is_none()) {
                        return Some(Blocker::Request(foreign));
                    }
                }
                let ahead = self.before(place).take(permits.into()).count();
                (ahead >= permits.into()).then_some(Blocker::AnyHolder)
            }
        }
    }

    /// Why a request of this mode does not fit the queue: a semaphore's queue has only permits of one number.
    pub(crate) fn mismatch(&self, mode: LockMode) -> Option<String> {
        let kind = kind_of(mode);
        let other = self.kinds().find(|other| *other != kind)?;
        let say = |kind| match kind {
            LOCK_KIND => "a lock".to_owned(),
            permits => format!("a semaphore of size {permits}"),
        };
        Some(format!("its queue is that of {}, and this asks for {}", say(other), say(kind)))
    }

    /// The requests with this token; hardly ever more than one.
    pub(crate) fn with_token(&self, token: FencingToken) -> impl Iterator<Item = (&Place, LockMode)> {
        let one = self.one().filter(|one| one.token == token).map(|one| (&one.place, one.mode));
        one.into_iter().chain(self.many().into_iter().flat_map(move |index| {
            let from: (FencingToken, Place) = (token, (0, NodePath::root()));
            let with = index.tokens.range::<_, (FencingToken, Place)>((Bound::Included(&from), Bound::Unbounded));
            with.take_while(move |(other, _)| *other == token)
                .filter_map(|(_, place)| Some((place, *index.places.get(place)?)))
        }))
    }

    /// How many requests hold: those at the front that hold together.
    pub(crate) fn holders(&self) -> usize {
        match self.iter().next() {
            None => 0,
            Some((_, LockMode::Exclusive | LockMode::Write)) => 1,
            Some((_, LockMode::Shared)) => {
                self.first_barrier().map_or_else(|| self.len(), |first| self.before(first).count())
            }
            Some((_, LockMode::Permit(_))) => {
                let front = self.iter().take(MAX_PERMITS.into()).map_while(|(_, mode)| mode.permits());
                front.zip(0..).filter(|(permits, place)| place < permits).count()
            }
        }
    }

    /// The first request that waits: in a queue of locks and semaphores the one that has waited longest.
    pub(crate) fn first_waiter(&self) -> Option<&Place> {
        match self.iter().next()? {
            // Readers behind the first request that excludes them wait for it.
            (_, LockMode::Shared) => self.first_barrier(),
            _ => self.iter().nth(self.holders()).map(|(place, _)| place),
        }
    }

    /// The last reader that holds.
    pub(crate) fn last_reader_holding(&self) -> Option<&Place> {
        let last = match self.first_barrier() {
            None => self.iter().next_back(),
            Some(first) => self.before(first).next_back(),
        };
        last.map(|(place, _)| place)
    }
}

/// A queue is that of a lock, or of a semaphore with one number of permits.
pub(crate) fn check_kind(lock: &LockName, queue: &Queue, mode: LockMode) -> Result<(), Refusal> {
    match queue.mismatch(mode) {
        None => Ok(()),
        Some(detail) => Err(Refusal::LockMismatch { lock: lock.clone().into(), detail: detail.into() }),
    }
}

/// The kind of all modes but permits.
const LOCK_KIND: u16 = 0;

fn kind_of(mode: LockMode) -> u16 {
    mode.permits().unwrap_or(LOCK_KIND)
}

/// The place of a request, by the name of its node.
pub(crate) fn place_of(path: &NodePath) -> Option<(Place, LockMode)> {
    let (sequence, mode) = parse_request(path.name())?;
    Some(((sequence, path.clone()), mode))
}
