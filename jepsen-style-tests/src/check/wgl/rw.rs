//! A lock that readers share and a writer has alone.

use super::lock::{EndedOwners, LockAnswer, after_end};
use super::semaphore::{GrantEnd, PermitGrant, end, verify};
use super::tokens::Tokens;
use super::{Model, OperationOf};

/// What is asked of a reader-writer lock, or happens to it. As [`LockAsk`](super::LockAsk), with modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RwAsk {
    /// To hold it.
    Acquire {
        /// For whom.
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
    /// The owner's session ends and with it all it holds.
    SessionEnds {
        /// Whose.
        owner: u64,
    },
}

/// A reader-writer lock: any number of readers, or one writer; each grant under a larger token.
#[derive(Clone, Debug, Default)]
pub struct RwLock {
    tokens: Tokens,
}

/// Who holds, and what was granted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RwHeld {
    /// The writer.
    pub writer: Option<PermitGrant>,
    /// The readers, in order.
    pub readers: Vec<PermitGrant>,
    /// The largest token that was told.
    pub largest: u64,
    /// The owners whose session is over.
    pub ended: EndedOwners,
}

impl RwHeld {
    fn granted(&self, owner: u64, shared: bool, token: Option<u64>) -> Option<Self> {
        if self.writer.is_some() || (!shared && !self.readers.is_empty()) || self.ended.contains(owner) {
            return None;
        }
        let mut next = Self { largest: token.unwrap_or(self.largest), ..self.clone() };
        let grant = PermitGrant { owner, token };
        if shared {
            let at = next.readers.partition_point(|reader| *reader < grant);
            next.readers.insert(at, grant);
        } else {
            next.writer = Some(grant);
        }
        Some(next)
    }

    fn without(&self, which: GrantEnd) -> Option<Self> {
        let mut writers: Vec<PermitGrant> = self.writer.into_iter().collect();
        let mut next = self.clone();
        let gone = end(&mut writers, which) | end(&mut next.readers, which);
        next.writer = writers.pop();
        gone.then_some(next)
    }

    fn all(&self) -> Vec<PermitGrant> {
        self.readers.iter().copied().chain(self.writer).collect()
    }
}

impl Model for RwLock {
    type State = RwHeld;
    type Input = RwAsk;
    type Output = LockAnswer;

    fn init(&self) -> RwHeld {
        RwHeld::default()
    }

    fn step(&self, state: &RwHeld, input: &RwAsk, output: Option<&LockAnswer>) -> Option<RwHeld> {
        match (*input, output.copied()) {
            (RwAsk::Acquire { owner, shared }, Some(LockAnswer::Granted { token })) => {
                let next = self.tokens.comes_next(state.largest, token);
                next.then(|| state.granted(owner, shared, Some(token))).flatten()
            }
            (RwAsk::Acquire { owner, shared }, None) => state.granted(owner, shared, None),
            (RwAsk::Acquire { shared, .. }, Some(LockAnswer::Busy)) => {
                // A reader may also have found a writer waiting before it, which holds nothing.
                (shared || !state.all().is_empty()).then(|| state.clone())
            }
            (RwAsk::Release { owner, token }, Some(LockAnswer::Done) | None) => {
                state.without(GrantEnd::Of { owner, token })
            }
            (RwAsk::Release { owner, token } | RwAsk::Downgrade { owner, token }, Some(LockAnswer::NotHeld)) => {
                (!state.all().contains(&PermitGrant { owner, token: Some(token) })).then(|| state.clone())
            }
            (RwAsk::Downgrade { owner, token }, Some(LockAnswer::Done) | None) => {
                let writer = state.writer.filter(|writer| writer.is(owner, token))?;
                let mut next = RwHeld { writer: None, ..state.clone() };
                let at = next.readers.partition_point(|reader| *reader < writer);
                next.readers.insert(at, writer);
                Some(next)
            }
            (RwAsk::Verify { .. }, None) => Some(state.clone()),
            (RwAsk::Verify { token }, Some(LockAnswer::Held(held))) => {
                verify(&state.all(), token, held).then(|| state.clone())
            }
            (RwAsk::SessionEnds { owner }, _) => {
                let next =
                    || after_end(state, state.without(GrantEnd::All { owner }), output, owner, |next| &mut next.ended);
                self.tokens.may_end(state.largest, owner).then(next)
            }
            _ => None,
        }
    }

    fn only_looks(&self, input: &RwAsk) -> bool {
        matches!(input, RwAsk::Verify { .. })
    }

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        let who_acquires = |input: &RwAsk| match *input {
            RwAsk::Acquire { owner, .. } => Some(owner),
            _ => None,
        };
        Some(Self { tokens: Tokens::of::<Self>(operations, who_acquires)? })
    }

    fn weight(&self, state: &RwHeld) -> usize {
        size_of_val(state) + size_of_val(state.readers.as_slice()) + state.ended.bytes()
    }
}
