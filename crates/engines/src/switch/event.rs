//! What happens in a group, as seen by this process: events for the program, metrics and log lines for operators.

use std::time::Duration;

use tokio::sync::broadcast;
use uuid::Uuid;

use super::state::SwitchPhase;
use crate::engine::Protection;

/// A subscriber that is further behind gets an error that says how many events it has missed.
const MOST_WAITING: usize = 256;

/// A step of a switch, or what leads to one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwitchEvent {
    /// This process is a member, and may grant.
    Joined {
        /// The epoch that it found.
        epoch: u64,
    },
    /// This process is no member any more: it grants and renews nothing until it has joined again.
    AgreementLost {
        /// The reason.
        because: String,
    },
    /// The phase has changed.
    Phase {
        /// The new phase.
        phase: SwitchPhase,
        /// Its epoch.
        epoch: u64,
        /// The high bits of tokens.
        generation: u16,
        /// Whether another engine has come to serve by it.
        switched: bool,
    },
    /// This process has confirmed that all its leases include the engine that is to serve.
    Confirmed {
        /// The epoch.
        epoch: u64,
    },
    /// A member has gone without leaving. The switch waits until its leases are over.
    MemberAbsent {
        /// The member.
        member: Uuid,
        /// How long it is waited for.
        wait: Duration,
    },
    /// Its leases are over.
    MemberRemoved {
        /// The member.
        member: Uuid,
    },
    /// Too many calls to the engine have failed.
    EngineFailing {
        /// The engine.
        engine: String,
    },
    /// It does not count as failing any more: calls succeed again, or probes have succeeded for the hold-off.
    EngineWell {
        /// The engine.
        engine: String,
    },
    /// A switch at once took this lease away. Another process may hold the locks already.
    Revoked {
        /// The locks.
        locks: Vec<String>,
    },
    /// A lock was granted without its engine, as `IfUnreachable` says.
    Unprotected {
        /// The locks.
        locks: Vec<String>,
        /// What still protects them.
        protection: Protection,
        /// The failure.
        because: String,
    },
}

impl SwitchEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Joined { .. } => "joined",
            Self::AgreementLost { .. } => "agreement_lost",
            Self::Phase { .. } => "phase",
            Self::Confirmed { .. } => "confirmed",
            Self::MemberAbsent { .. } => "member_absent",
            Self::MemberRemoved { .. } => "member_removed",
            Self::EngineFailing { .. } => "engine_failing",
            Self::EngineWell { .. } => "engine_well",
            Self::Revoked { .. } => "revoked",
            Self::Unprotected { .. } => "unprotected",
        }
    }

    fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::AgreementLost { .. }
                | Self::MemberAbsent { .. }
                | Self::EngineFailing { .. }
                | Self::Revoked { .. }
                | Self::Unprotected { .. }
        )
    }
}

/// Where events go.
#[derive(Debug)]
pub(super) struct Events {
    sender: broadcast::Sender<SwitchEvent>,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { sender: broadcast::Sender::new(MOST_WAITING) }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<SwitchEvent> {
        self.sender.subscribe()
    }

    pub(super) fn emit(&self, event: SwitchEvent) {
        let name = event.name();
        if event.is_warning() {
            tracing::warn!(?event, "lock engines: {name}");
        } else {
            tracing::info!(?event, "lock engines: {name}");
        }
        metrics::counter!("lockkeeper_engines_events_total", "event" => name).increment(1);
        if let SwitchEvent::Phase { epoch, generation, .. } = &event {
            metrics::gauge!("lockkeeper_engines_epoch").set(*epoch as f64);
            metrics::gauge!("lockkeeper_engines_generation").set(f64::from(*generation));
        }
        // Without a subscriber it is only counted and logged.
        let _ = self.sender.send(event);
    }
}

/// Counts a call to an engine.
pub(super) fn count_call(engine: &str, call: &'static str, outcome: &'static str) {
    let engine = engine.to_owned();
    metrics::counter!("lockkeeper_engines_calls_total", "engine" => engine, "call" => call, "outcome" => outcome)
        .increment(1);
}

/// Notes how long a switch has taken, as seen by this process.
pub(super) fn note_switch(mode: &'static str, took: Duration) {
    metrics::histogram!("lockkeeper_engines_switch_seconds", "mode" => mode).record(took.as_secs_f64());
}
