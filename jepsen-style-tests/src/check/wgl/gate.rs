//! An idempotency gate: one run at a time, and none after a result.

use super::Model;

/// What is asked of a gate, or happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAsk {
    /// To do the work, or to be told how it stands.
    Begin {
        /// For whom: a session.
        owner: u64,
    },
    /// To keep the result of a run.
    Finish {
        /// Under which token.
        token: u64,
    },
    /// To open it again, without a result.
    Fail {
        /// Under which token.
        token: u64,
    },
    /// The session ends, and with it the run that it had not finished. As with [`super::LockAsk::SessionEnds`].
    SessionEnds {
        /// Whose.
        owner: u64,
    },
}

/// What a gate answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAnswer {
    /// To the one who is to do the work.
    Proceed {
        /// Under this token, larger than those before.
        token: u64,
    },
    /// Somebody is at it.
    InProgress {
        /// Under this token.
        token: u64,
    },
    /// It was done.
    Finished {
        /// Under this token: the result is that of its run.
        token: u64,
    },
    /// It was settled; or the session is over.
    Settled,
}

/// A gate, open at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateModel;

/// How a gate stands, and the largest token that was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GateState {
    /// How.
    pub stands: GatePhase,
    /// The largest token.
    pub largest: u64,
}

/// How a gate stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GatePhase {
    /// Nobody is at it, and nobody was.
    #[default]
    Open,
    /// Somebody is at it.
    Pending {
        /// Whose session it is.
        owner: u64,
        /// The token, where somebody was told.
        token: Option<u64>,
    },
    /// It is done, under this token.
    Finished(u64),
}

impl GateState {
    fn with(&self, stands: GatePhase) -> Self {
        Self { stands, largest: self.largest }
    }

    /// A run under this token, if it can be the one that is pending.
    fn is_pending(&self, token: u64) -> bool {
        match self.stands {
            GatePhase::Pending { token: Some(now), .. } => now == token,
            GatePhase::Pending { token: None, .. } => token > self.largest,
            GatePhase::Open | GatePhase::Finished(_) => false,
        }
    }
}

impl Model for GateModel {
    type State = GateState;
    type Input = GateAsk;
    type Output = GateAnswer;

    fn init(&self) -> GateState {
        GateState::default()
    }

    fn step(&self, state: &GateState, input: &GateAsk, output: Option<&GateAnswer>) -> Option<GateState> {
        let open = state.with(GatePhase::Open);
        let is_open = state.stands == GatePhase::Open;
        let told = |stands, token: u64| GateState { stands, largest: state.largest.max(token) };
        match (*input, output.copied()) {
            (GateAsk::Begin { owner }, Some(GateAnswer::Proceed { token })) => (is_open && token > state.largest)
                .then(|| told(GatePhase::Pending { owner, token: Some(token) }, token)),
            (GateAsk::Begin { owner }, None) => is_open.then(|| state.with(GatePhase::Pending { owner, token: None })),
            (GateAsk::Begin { .. }, Some(GateAnswer::InProgress { token })) => match state.stands {
                GatePhase::Pending { owner, .. } if state.is_pending(token) => {
                    Some(told(GatePhase::Pending { owner, token: Some(token) }, token))
                }
                _ => None,
            },
            (GateAsk::Begin { .. }, Some(GateAnswer::Finished { token })) => {
                (state.stands == GatePhase::Finished(token)).then(|| state.clone())
            }
            (GateAsk::Finish { token }, Some(GateAnswer::Settled) | None) => match state.stands {
                // Asked for again.
                GatePhase::Finished(done) if done == token => Some(state.clone()),
                _ => state.is_pending(token).then(|| told(GatePhase::Finished(token), token)),
            },
            (GateAsk::Fail { token }, Some(GateAnswer::Settled) | None) => state.is_pending(token).then_some(open),
            (GateAsk::SessionEnds { owner: ended }, _) => Some(match state.stands {
                GatePhase::Pending { owner, .. } if owner == ended => open,
                _ => state.clone(),
            }),
            _ => None,
        }
    }
}
