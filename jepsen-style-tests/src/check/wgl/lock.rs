//! An exclusive lock that knows its owner and hands out rising tokens.

use super::tokens::Tokens;
use super::{Model, OperationOf};

/// What is asked of a lock, or happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAsk {
    /// To hold it.
    Acquire {
        /// For whom: a session, or a client.
        owner: u64,
    },
    /// To give it back.
    Release {
        /// Who.
        owner: u64,
        /// Under which token.
        token: u64,
    },
    /// Whether it is held under this token.
    Verify {
        /// The token.
        token: u64,
    },
    /// The owner's session ends and with it all it holds; it is granted nothing any more. Put one into the history for
    /// each session that was not closed by a release: invoked at its last sign of life, done when it was seen to be
    /// gone, open if that was never seen. And close that owner's requests of unknown outcome at the same moment
    /// ([`super::Operation::closed_at`]), or the search explodes.
    SessionEnds {
        /// Whose.
        owner: u64,
    },
}

impl LockAsk {
    pub(super) fn who_acquires(&self) -> Option<u64> {
        match *self {
            LockAsk::Acquire { owner } => Some(owner),
            LockAsk::Release { .. } | LockAsk::Verify { .. } | LockAsk::SessionEnds { .. } => None,
        }
    }
}

/// What a lock answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// It is yours.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// Somebody else held it (for a request that only tried).
    Busy,
    /// It was given back; or the session is over.
    Done,
    /// It was not held under that token by that owner.
    NotHeld,
    /// The answer to `Verify`.
    Held(bool),
}

/// An exclusive lock: one owner at a time, each grant under a larger token.
#[derive(Clone, Debug, Default)]
pub struct Mutex {
    tokens: Tokens,
}

/// Who holds, and what was granted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// Owner, and token where the owner was told.
    pub holder: Option<(u64, Option<u64>)>,
    /// The largest token that was told.
    pub largest: u64,
    /// The owners whose session is over.
    pub ended: EndedOwners,
}

/// The owners whose session is over, in order: certainly, or because that freed something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndedOwners(Vec<u64>);

impl EndedOwners {
    pub(super) fn contains(&self, owner: u64) -> bool {
        self.0.binary_search(&owner).is_ok()
    }

    pub(super) fn insert(&mut self, owner: u64) {
        if let Err(at) = self.0.binary_search(&owner) {
            self.0.insert(at, owner);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

/// The state after a session's end, which freed something (`freed`) or not. If the end is not certain and freed
/// nothing, it is as if it had not happened here.
pub(super) fn after_end<S: Clone>(
    state: &S,
    freed: Option<S>,
    answer: Option<&LockAnswer>,
    owner: u64,
    ended: impl FnOnce(&mut S) -> &mut EndedOwners,
) -> S {
    let is_over = answer.is_some() || freed.is_some();
    let mut next = freed.unwrap_or_else(|| state.clone());
    if is_over {
        ended(&mut next).insert(owner);
    }
    next
}

impl Model for Mutex {
    type State = Held;
    type Input = LockAsk;
    type Output = LockAnswer;

    fn init(&self) -> Held {
        Held::default()
    }

    fn step(&self, state: &Held, input: &LockAsk, output: Option<&LockAnswer>) -> Option<Held> {
        let Held { holder, largest, ended } = state;
        let (holder, largest) = (*holder, *largest);
        let held_by = |holder, largest| Held { holder, largest, ended: ended.clone() };
        let may_hold = |owner| holder.is_none() && !ended.contains(owner);
        match (*input, output.copied()) {
            (LockAsk::Acquire { owner }, Some(LockAnswer::Granted { token })) => {
                let next = may_hold(owner) && self.tokens.comes_next(largest, token);
                next.then(|| held_by(Some((owner, Some(token))), token))
            }
            (LockAsk::Acquire { owner }, None) => may_hold(owner).then(|| held_by(Some((owner, None)), largest)),
            (LockAsk::Acquire { .. }, Some(LockAnswer::Busy)) => holder.is_some().then(|| state.clone()),
            (LockAsk::Release { owner, token }, Some(LockAnswer::Done) | None) => {
                is(holder, owner, token).then(|| held_by(None, largest))
            }
            (LockAsk::Release { owner, token }, Some(LockAnswer::NotHeld)) => {
                // Of a grant that nobody was told of the token is not known, so this may be true of it.
                (holder != Some((owner, Some(token)))).then(|| state.clone())
            }
            (LockAsk::Verify { .. }, None) => Some(state.clone()),
            (LockAsk::Verify { token }, Some(LockAnswer::Held(held))) => match holder {
                Some((_, Some(now))) => (held == (now == token)).then(|| state.clone()),
                Some((_, None)) => Some(state.clone()),
                None => (!held).then(|| state.clone()),
            },
            (LockAsk::SessionEnds { owner }, _) => {
                let freed = holder.is_some_and(|(by, _)| by == owner).then(|| held_by(None, largest));
                let next = || after_end(state, freed, output, owner, |next| &mut next.ended);
                self.tokens.may_end(largest, owner).then(next)
            }
            _ => None,
        }
    }

    fn only_looks(&self, input: &LockAsk) -> bool {
        matches!(input, LockAsk::Verify { .. })
    }

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        Some(Self { tokens: Tokens::of::<Self>(operations, LockAsk::who_acquires)? })
    }

    fn weight(&self, state: &Held) -> usize {
        size_of_val(state) + state.ended.bytes()
    }
}

fn is(holder: Option<(u64, Option<u64>)>, owner: u64, token: u64) -> bool {
    holder.is_some_and(|(by, under)| by == owner && under.is_none_or(|under| under == token))
}
