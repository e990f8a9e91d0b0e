//! An idempotency gate: one run at a time, and none after a result.
//!
//! ```
//! use lockkeeper_checkers::gate::{Gate, GateAnswer, GateAsk};
//! let proceed = |token| Some(GateAnswer::Proceed { token });
//! let begun = Gate::default().step(GateAsk::Begin { owner: 1 }, proceed(5)).unwrap();
//! assert_eq!(begun.step(GateAsk::Begin { owner: 2 }, proceed(6)), None, "beside another");
//! let ended = begun.step(GateAsk::SessionEnds { owner: 1 }, None).unwrap();
//! assert_eq!(ended.step(GateAsk::Begin { owner: 2 }, proceed(5)), None, "the token does not rise");
//! assert!(ended.step(GateAsk::Begin { owner: 2 }, proceed(6)).is_some());
//! ```

/// What is asked of a gate, or happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAsk {
    /// To do the work, or to be told how it stands.
    Begin {
        /// For whom: a session; 0 for a caller that has none.
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
    /// To open it by force.
    Reset {
        /// What it stood for had this token.
        token: u64,
        /// Whether that was a result.
        was_done: bool,
    },
    /// The session ends, and with it the run that it had not finished.
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

/// How a gate stands, open at first, and the largest token that was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gate {
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

impl Gate {
    /// How it stands when it is open.
    #[must_use]
    pub fn opened(&self) -> Self {
        self.with(GatePhase::Open)
    }

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

    /// As it stands after that was asked and answered so; none if it would not have been answered so. Without an
    /// answer, because nobody got it: as it stands after that took effect.
    pub fn step(&self, ask: GateAsk, answer: Option<GateAnswer>) -> Option<Self> {
        let told = |stands, token: u64| Self { stands, largest: self.largest.max(token) };
        let is_open = self.stands == GatePhase::Open;
        match (ask, answer) {
            (GateAsk::Begin { owner }, Some(GateAnswer::Proceed { token })) => {
                (is_open && token > self.largest).then(|| told(GatePhase::Pending { owner, token: Some(token) }, token))
            }
            (GateAsk::Begin { owner }, None) => is_open.then(|| self.with(GatePhase::Pending { owner, token: None })),
            (GateAsk::Begin { .. }, Some(GateAnswer::InProgress { token })) => match self.stands {
                GatePhase::Pending { owner, .. } if self.is_pending(token) => {
                    Some(told(GatePhase::Pending { owner, token: Some(token) }, token))
                }
                _ => None,
            },
            (GateAsk::Begin { .. }, Some(GateAnswer::Finished { token })) => {
                (self.stands == GatePhase::Finished(token)).then(|| self.clone())
            }
            (GateAsk::Finish { token }, Some(GateAnswer::Settled) | None) => match self.stands {
                // Asked for again.
                GatePhase::Finished(done) if done == token => Some(self.clone()),
                _ => self.is_pending(token).then(|| told(GatePhase::Finished(token), token)),
            },
            (GateAsk::Fail { token } | GateAsk::Reset { token, was_done: false }, Some(GateAnswer::Settled) | None) => {
                self.is_pending(token).then(|| self.opened())
            }
            (GateAsk::Reset { token, was_done: true }, Some(GateAnswer::Settled) | None) => {
                (self.stands == GatePhase::Finished(token)).then(|| self.opened())
            }
            (GateAsk::SessionEnds { owner: ended }, _) => Some(match self.stands {
                GatePhase::Pending { owner, .. } if owner == ended => self.opened(),
                _ => self.clone(),
            }),
            _ => None,
        }
    }
}
