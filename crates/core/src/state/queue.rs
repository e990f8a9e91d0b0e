//! The index of one directory's lock queue: who stands where, and who stands in whose way, in O(log n) among 100,000 requests.
//!
//! It knows names and tokens, never sessions, and is never scanned to answer for one request.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use lockkeeper_planted::{Bug, planted};

use crate::ids::FencingToken;
use crate::limits::MAX_PERMITS;
use crate::lock::{LockMode, NameFamily, family_of, parse_request};

/// A place in the queue: the sequence, then the name for hand-made nodes that share one.
pub(crate) type Place = (u64, Arc<str>);

/// Who stands in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocker<'a> {
    /// This one, and nobody is to be looked at before it goes.
    Request(&'a Place),
    /// All permits are taken: whoever of their holders goes first.
    AnyHolder,
}

/// Who wants to enter a queue, by what it sees there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newcomer {
    /// One whom the service keeps in line: it goes by all names that it gives itself.
    Native,
    /// A client that makes its node itself, and looks for names of this family.
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
    /// Every request, in queue order.
    places: OrdMap<Place, LockMode>,
    /// Those that are not shared: what a shared request looks back for.
    barriers: OrdSet<Place>,
    /// How many requests there are of each kind: locks (0), and semaphores by their permits.
    kinds: OrdMap<u16, usize>,
    /// How many nodes there are with names of each family, of others than requests only the ephemeral ones.
    families: [u32; NameFamily::COUNT],
    /// By token. A multi can make two requests under one zxid, so a token alone does not always name one.
    tokens: OrdSet<(FencingToken, Place)>,
}

impl Queue {
    /// Takes in a child, if its name is a request's.
    pub(crate) fn insert(&mut self, name: &Arc<str>, token: FencingToken, ephemeral: bool) {
        if let Some(count) = self.family_count(name, ephemeral) {
            *count = count.saturating_add(1);
        }
        let Some((place, mode)) = place_of(name) else { return };
        if mode != LockMode::Shared {
            self.barriers.insert(place.clone());
        }
        *self.kinds.entry(kind_of(mode)).or_insert(0) += 1;
        self.tokens.insert((token, place.clone()));
        self.places.insert(place, mode);
    }

    /// Lets go of a child; says nothing if it was no request.
    pub(crate) fn remove(&mut self, name: &str, token: FencingToken, ephemeral: bool) {
        if let Some(count) = self.family_count(name, ephemeral) {
            *count = count.saturating_sub(1);
        }
        let Some((sequence, mode)) = parse_request(name) else { return };
        let place = (sequence, Arc::from(name));
        if mode != LockMode::Shared {
            self.barriers.remove(&place);
        }
        if let Some(count) = self.kinds.get_mut(&kind_of(mode)) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&kind_of(mode));
            }
        }
        self.places.remove(&place);
        self.tokens.remove(&(token, place));
    }

    fn family_count(&mut self, name: &str, ephemeral: bool) -> Option<&mut u32> {
        let family = family_of(name)?;
        (ephemeral || family != NameFamily::Other).then(|| &mut self.families[family as usize])
    }

    /// Names that stand here and that a newcomer would overlook.
    pub(crate) fn unseen_by(&self, newcomer: Newcomer) -> Option<NameFamily> {
        NameFamily::ALL.into_iter().find(|family| self.families[*family as usize] > 0 && !newcomer.sees(*family))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// All places in queue order, with their modes.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Place, LockMode)> {
        self.places.iter().map(|(place, mode)| (place, *mode))
    }

    pub(crate) fn contains(&self, place: &Place) -> bool {
        self.places.contains_key(place)
    }

    /// Who stands in the way of a request: its nearest predecessor; for a shared one its nearest predecessor that is not shared;
    /// for a permit as many predecessors as there are permits. None means that it holds.
    pub(crate) fn blocker(&self, place: &Place, mode: LockMode) -> Option<Blocker<'_>> {
        let before = (Bound::Unbounded, Bound::Excluded(place));
        match mode {
            LockMode::Exclusive | LockMode::Write => {
                let overlooked = usize::from(planted(Bug::TwoHolders));
                self.places.range::<_, Place>(before).rev().nth(overlooked).map(|(place, _)| Blocker::Request(place))
            }
            LockMode::Shared => self.barriers.range::<_, Place>(before).next_back().map(Blocker::Request),
            LockMode::Permit(permits) => {
                if self.kinds.contains_key(&LOCK_KIND) {
                    // Only hand-made requests outside of lock directories mix.
                    let mut predecessors = self.places.range::<_, Place>(before).rev();
                    if let Some((foreign, _)) = predecessors.find(|(_, mode)| mode.permits().is_none()) {
                        return Some(Blocker::Request(foreign));
                    }
                }
                let ahead = self.places.range::<_, Place>(before).take(permits.into()).count();
                (ahead >= permits.into()).then_some(Blocker::AnyHolder)
            }
        }
    }

    /// Why a request of this mode cannot stand here: a semaphore's queue is one of permits of the same number, and of nothing else.
    pub(crate) fn mismatch(&self, mode: LockMode) -> Option<String> {
        let kind = kind_of(mode);
        let other = self.kinds.keys().copied().find(|other| *other != kind)?;
        let say = |kind| match kind {
            LOCK_KIND => "a lock".to_owned(),
            permits => format!("a semaphore of size {permits}"),
        };
        Some(format!("its queue is that of {}, and this asks for {}", say(other), say(kind)))
    }

    /// The requests that carry this token; hardly ever more than one.
    pub(crate) fn with_token(&self, token: FencingToken) -> impl Iterator<Item = (&Place, LockMode)> {
        let from: (FencingToken, Place) = (token, (0, Arc::from("")));
        self.tokens
            .range::<_, (FencingToken, Place)>((Bound::Included(&from), Bound::Unbounded))
            .take_while(move |(other, _)| *other == token)
            .filter_map(|(_, place)| Some((place, *self.places.get(place)?)))
    }

    /// How many hold now: the run at the front that holds together.
    pub(crate) fn holders(&self) -> usize {
        match self.places.get_min() {
            None => 0,
            Some((_, LockMode::Exclusive | LockMode::Write)) => 1,
            Some((_, LockMode::Shared)) => match self.barriers.get_min() {
                None => self.places.len(),
                Some(first) => self.places.range::<_, Place>((Bound::Unbounded, Bound::Excluded(first))).count(),
            },
            Some((_, LockMode::Permit(_))) => {
                let front = self.places.values().take(MAX_PERMITS.into()).map_while(|mode| mode.permits());
                front.zip(0..).filter(|(permits, place)| place < permits).count()
            }
        }
    }

    /// The last of the readers that hold together.
    pub(crate) fn last_reader_holding(&self) -> Option<&Place> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let run = match self.barriers.get_min() {
            None => all,
            Some(first) => (Bound::Unbounded, Bound::Excluded(first)),
        };
        self.places.range::<_, Place>(run).next_back().map(|(place, _)| place)
    }
}

/// What a queue's kind is called for modes other than permits.
const LOCK_KIND: u16 = 0;

fn kind_of(mode: LockMode) -> u16 {
    mode.permits().unwrap_or(LOCK_KIND)
}

/// The place that a name takes, if it is a request's.
pub(crate) fn place_of(name: &Arc<str>) -> Option<(Place, LockMode)> {
    let (sequence, mode) = parse_request(name)?;
    Some(((sequence, name.clone()), mode))
}
