//! Locks that know their owners and give out rising tokens: exclusive locks, locks with readers, and semaphores.

use super::tokens::Tokens;
use super::{Model, OperationOf};

/// What is asked of a lock, or happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAsk {
    /// To hold it.
    Acquire {
        /// For whom: a session, or a client.
        owner: u64,
        /// Together with other readers.
        shared: bool,
    },
    /// To give it back.
    Release {
        /// Who.
        owner: u64,
        /// Under which token.
        token: u64,
    },
    /// To go on as a reader under the same token.
    Downgrade {
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

/// A lock: any number of readers, or so many others; each grant under a larger token.
#[derive(Clone, Debug)]
pub struct LockModel {
    pub(super) permits: usize,
    tokens: Tokens,
}

impl Default for LockModel {
    /// With one holder at a time, but for readers.
    fn default() -> Self {
        Self::of(1)
    }
}

impl LockModel {
    /// So many may hold at a time.
    pub fn of(permits: usize) -> Self {
        Self { permits, tokens: Tokens::default() }
    }

    fn granted(&self, state: &LockState, grant: LockGrant) -> Option<LockState> {
        let has_room = match grant.shared {
            true => state.holders.iter().all(|holder| holder.shared),
            false => state.holders.len() < self.permits,
        };
        let in_turn = grant.token.is_none_or(|token| self.tokens.comes_next(state.largest, token));
        if !has_room || !in_turn || state.ended.contains(grant.owner) {
            return None;
        }
        let mut next = LockState { largest: grant.token.unwrap_or(state.largest), ..state.clone() };
        next.insert(grant);
        Some(next)
    }
}

/// A grant that was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockGrant {
    /// Whose.
    pub owner: u64,
    /// Under which token, where the owner was told.
    pub token: Option<u64>,
    /// Whether readers may hold beside it.
    pub shared: bool,
}

impl LockGrant {
    fn is(&self, owner: u64, token: u64) -> bool {
        self.owner == owner && self.token.is_none_or(|under| under == token)
    }
}

/// Who holds, and what was granted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockState {
    /// The holders, in order.
    pub holders: Vec<LockGrant>,
    /// The largest token that was told.
    pub largest: u64,
    /// The owners whose session is over.
    pub ended: EndedOwners,
}

impl LockState {
    fn insert(&mut self, grant: LockGrant) {
        let at = self.holders.partition_point(|holder| *holder < grant);
        self.holders.insert(at, grant);
    }

    /// Whether the owner certainly holds under this token.
    fn holds(&self, owner: u64, token: u64) -> bool {
        self.holders.iter().any(|holder| holder.owner == owner && holder.token == Some(token))
    }

    /// Without one grant of the owner, if it has one. One of which the token is known goes before one of which it is
    /// not.
    fn without(&self, owner: u64, token: u64) -> Option<(LockGrant, Self)> {
        let exactly = |holder: &LockGrant| holder.owner == owner && holder.token == Some(token);
        let maybe = || self.holders.iter().position(|holder| holder.is(owner, token));
        let at = self.holders.iter().position(exactly).or_else(maybe)?;
        let mut next = self.clone();
        let gone = next.holders.remove(at);
        Some((gone, next))
    }

    /// The owner's session is over, certainly or perhaps. An end that is not certain and frees nothing is as if it had
    /// not happened here.
    fn after_end(&self, owner: u64, is_certain: bool) -> Self {
        let mut next = self.clone();
        next.holders.retain(|holder| holder.owner != owner);
        if is_certain || next.holders.len() < self.holders.len() {
            next.ended.insert(owner);
        }
        next
    }
}

/// The owners whose session is over, in order: certainly, or because that freed something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndedOwners(Vec<u64>);

impl EndedOwners {
    pub(super) fn contains(&self, owner: u64) -> bool {
        self.0.binary_search(&owner).is_ok()
    }

    fn insert(&mut self, owner: u64) {
        if let Err(at) = self.0.binary_search(&owner) {
            self.0.insert(at, owner);
        }
    }
}

impl Model for LockModel {
    type State = LockState;
    type Input = LockAsk;
    type Output = LockAnswer;

    fn init(&self) -> LockState {
        LockState::default()
    }

    fn step(&self, state: &LockState, input: &LockAsk, output: Option<&LockAnswer>) -> Option<LockState> {
        let as_it_was = |is_so: bool| is_so.then(|| state.clone());
        match (*input, output.copied()) {
            (LockAsk::Acquire { owner, shared }, Some(LockAnswer::Granted { token })) => {
                self.granted(state, LockGrant { owner, token: Some(token), shared })
            }
            (LockAsk::Acquire { owner, shared }, None) => self.granted(state, LockGrant { owner, token: None, shared }),
            (LockAsk::Acquire { shared, .. }, Some(LockAnswer::Busy)) => {
                // A reader may also have found a writer waiting before it, which holds nothing.
                as_it_was(shared || state.holders.len() >= self.permits)
            }
            (LockAsk::Release { owner, token }, Some(LockAnswer::Done) | None) => {
                state.without(owner, token).map(|(_, next)| next)
            }
            (LockAsk::Release { owner, token } | LockAsk::Downgrade { owner, token }, Some(LockAnswer::NotHeld)) => {
                // Of a grant that nobody was told of the token is not known, so this may be true of it.
                as_it_was(!state.holds(owner, token))
            }
            (LockAsk::Downgrade { owner, token }, Some(LockAnswer::Done) | None) => {
                let (writer, mut next) = state.without(owner, token).filter(|(writer, _)| !writer.shared)?;
                next.insert(LockGrant { shared: true, ..writer });
                Some(next)
            }
            (LockAsk::Verify { .. }, None) => as_it_was(true),
            (LockAsk::Verify { token }, Some(LockAnswer::Held(held))) => {
                let has = |told: Option<u64>| state.holders.iter().any(|holder| holder.token == told);
                as_it_was(if has(Some(token)) { held } else { !held || has(None) })
            }
            (LockAsk::SessionEnds { owner }, answer) => {
                let may_end = self.tokens.may_end(state.largest, owner);
                may_end.then(|| state.after_end(owner, answer.is_some()))
            }
            _ => None,
        }
    }

    fn only_looks(&self, input: &LockAsk) -> bool {
        matches!(input, LockAsk::Verify { .. })
    }

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        let certain = operations.iter().filter(|operation| operation.must_take_place());
        let grants = certain.filter_map(|operation| match (operation.input, operation.output) {
            (LockAsk::Acquire { owner, .. }, Some(LockAnswer::Granted { token })) => Some((owner, token)),
            _ => None,
        });
        Some(Self { tokens: Tokens::of(grants)?, ..self.clone() })
    }

    fn weight(&self, state: &LockState) -> usize {
        size_of_val(state) + size_of_val(state.holders.as_slice()) + size_of_val(state.ended.0.as_slice())
    }
}
