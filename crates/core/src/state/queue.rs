//! The index of one directory's lock queue: who stands where, and who stands in whose way, in O(log n) among 100,000 requests.
//!
//! It knows names and tokens, never sessions, and is never scanned to answer for one request.

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::ids::FencingToken;
use crate::lock::{LockMode, parse_request};

/// A place in the queue: the sequence, then the name for hand-made nodes that share one.
pub(crate) type Place = (u64, Arc<str>);

/// The requests among a directory's children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    /// Every request, in queue order.
    places: OrdMap<Place, LockMode>,
    /// Those that exclude everyone else: what a shared request looks back for.
    exclusives: OrdSet<Place>,
    /// By token. A multi can make two requests under one zxid, so a token alone does not always name one.
    tokens: OrdSet<(FencingToken, Place)>,
}

impl Queue {
    /// Takes in a child, if its name is a request's.
    pub(crate) fn insert(&mut self, name: &Arc<str>, token: FencingToken) {
        let Some((place, mode)) = place_of(name) else { return };
        if mode.is_exclusive() {
            self.exclusives.insert(place.clone());
        }
        self.tokens.insert((token, place.clone()));
        self.places.insert(place, mode);
    }

    /// Lets go of a child; says nothing if it was no request.
    pub(crate) fn remove(&mut self, name: &Arc<str>, token: FencingToken) {
        let Some((place, _)) = place_of(name) else { return };
        self.exclusives.remove(&place);
        self.places.remove(&place);
        self.tokens.remove(&(token, place));
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

    /// Who stands in the way of a request: its nearest predecessor, or for a shared one its nearest exclusive predecessor.
    /// None means that it holds.
    pub(crate) fn blocker(&self, place: &Place, mode: LockMode) -> Option<&Place> {
        let before = (Bound::Unbounded, Bound::Excluded(place));
        if mode.is_exclusive() {
            self.places.range::<_, Place>(before).next_back().map(|(place, _)| place)
        } else {
            self.exclusives.range::<_, Place>(before).next_back()
        }
    }

    /// The requests that carry this token; hardly ever more than one.
    pub(crate) fn with_token(&self, token: FencingToken) -> impl Iterator<Item = (&Place, LockMode)> {
        let from: (FencingToken, Place) = (token, (0, Arc::from("")));
        self.tokens
            .range::<_, (FencingToken, Place)>((Bound::Included(&from), Bound::Unbounded))
            .take_while(move |(other, _)| *other == token)
            .filter_map(|(_, place)| Some((place, *self.places.get(place)?)))
    }

    /// How many hold now.
    pub(crate) fn holders(&self) -> usize {
        match self.exclusives.get_min() {
            None => self.places.len(),
            Some(first) => self.places.range::<_, Place>((Bound::Unbounded, Bound::Excluded(first))).count().max(1),
        }
    }
}

/// The place that a name takes, if it is a request's.
pub(crate) fn place_of(name: &Arc<str>) -> Option<(Place, LockMode)> {
    let (sequence, mode) = parse_request(name)?;
    Some(((sequence, name.clone()), mode))
}
