//! A semaphore: so many may hold at a time.

use super::lock::{EndedOwners, LockAnswer, LockAsk, after_end};
use super::tokens::Tokens;
use super::{Model, OperationOf};

/// A grant that was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitGrant {
    /// Whose.
    pub owner: u64,
    /// Under which token, where the owner was told.
    pub token: Option<u64>,
}

impl PermitGrant {
    pub(super) fn is(&self, owner: u64, token: u64) -> bool {
        self.owner == owner && self.token.is_none_or(|under| under == token)
    }
}

/// What ends.
#[derive(Clone, Copy)]
pub(super) enum GrantEnd {
    /// One grant.
    Of { owner: u64, token: u64 },
    /// All of an owner.
    All { owner: u64 },
}

/// Takes out what ends; whether there was something.
pub(super) fn end(grants: &mut Vec<PermitGrant>, which: GrantEnd) -> bool {
    let count = grants.len();
    match which {
        GrantEnd::Of { owner, token } => {
            // One of which the token is known goes before one of which it is not.
            let exactly = grants.iter().position(|grant| *grant == PermitGrant { owner, token: Some(token) });
            if let Some(at) = exactly.or_else(|| grants.iter().position(|grant| grant.is(owner, token))) {
                grants.remove(at);
            }
        }
        GrantEnd::All { owner } => grants.retain(|grant| grant.owner != owner),
    }
    grants.len() < count
}

/// Whether that answer to `Verify` may be true.
pub(super) fn verify(grants: &[PermitGrant], token: u64, held: bool) -> bool {
    if grants.iter().any(|grant| grant.token == Some(token)) {
        return held;
    }
    !held || grants.iter().any(|grant| grant.token.is_none())
}

/// A semaphore with so many permits; each grant under a larger token. Asked as a [`Mutex`](super::Mutex).
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(super) permits: usize,
    tokens: Tokens,
}

/// Who holds, and what was granted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SemaphoreState {
    /// The holders, in order.
    pub holders: Vec<PermitGrant>,
    /// The largest token that was told.
    pub largest: u64,
    /// The owners whose session is over.
    pub ended: EndedOwners,
}

impl Semaphore {
    /// So many may hold at a time.
    pub fn of(permits: usize) -> Self {
        Self { permits, tokens: Tokens::default() }
    }

    fn granted(&self, state: &SemaphoreState, owner: u64, token: Option<u64>) -> Option<SemaphoreState> {
        let in_turn = token.is_none_or(|token| self.tokens.comes_next(state.largest, token));
        if state.holders.len() >= self.permits || state.ended.contains(owner) || !in_turn {
            return None;
        }
        let mut next = SemaphoreState { largest: token.unwrap_or(state.largest), ..state.clone() };
        let grant = PermitGrant { owner, token };
        let at = next.holders.partition_point(|holder| *holder < grant);
        next.holders.insert(at, grant);
        Some(next)
    }
}

impl Model for Semaphore {
    type State = SemaphoreState;
    type Input = LockAsk;
    type Output = LockAnswer;

    fn init(&self) -> SemaphoreState {
        SemaphoreState::default()
    }

    fn step(&self, state: &SemaphoreState, input: &LockAsk, output: Option<&LockAnswer>) -> Option<SemaphoreState> {
        let without = |which| {
            let mut next = state.clone();
            end(&mut next.holders, which).then_some(next)
        };
        match (*input, output.copied()) {
            (LockAsk::Acquire { owner }, Some(LockAnswer::Granted { token })) => {
                self.granted(state, owner, Some(token))
            }
            (LockAsk::Acquire { owner }, None) => self.granted(state, owner, None),
            (LockAsk::Acquire { .. }, Some(LockAnswer::Busy)) => {
                (state.holders.len() >= self.permits).then(|| state.clone())
            }
            (LockAsk::Release { owner, token }, Some(LockAnswer::Done) | None) => {
                without(GrantEnd::Of { owner, token })
            }
            (LockAsk::Release { owner, token }, Some(LockAnswer::NotHeld)) => {
                (!state.holders.contains(&PermitGrant { owner, token: Some(token) })).then(|| state.clone())
            }
            (LockAsk::Verify { .. }, None) => Some(state.clone()),
            (LockAsk::Verify { token }, Some(LockAnswer::Held(held))) => {
                verify(&state.holders, token, held).then(|| state.clone())
            }
            (LockAsk::SessionEnds { owner }, _) => {
                let next = || after_end(state, without(GrantEnd::All { owner }), output, owner, |next| &mut next.ended);
                self.tokens.may_end(state.largest, owner).then(next)
            }
            _ => None,
        }
    }

    fn only_looks(&self, input: &LockAsk) -> bool {
        matches!(input, LockAsk::Verify { .. })
    }

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        Some(Self { tokens: Tokens::of::<Self>(operations, LockAsk::who_acquires)?, ..self.clone() })
    }

    fn weight(&self, state: &SemaphoreState) -> usize {
        size_of_val(state) + size_of_val(state.holders.as_slice()) + state.ended.bytes()
    }
}
