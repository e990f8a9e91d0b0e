//! What several engines promise together.

use std::sync::LazyLock;

use crate::capabilities::{Capabilities, Capability};
use crate::engine::LockEngine;

use super::options::{EnginesOptions, IfUnreachable};
use std::sync::Arc;

/// All sets of capabilities, each at the place that its bits give, so that a set made at run time lives long enough.
static SETS: LazyLock<Vec<Vec<Capability>>> = LazyLock::new(|| {
    let of = |bits: usize| Capability::ALL.into_iter().enumerate().filter(move |(place, _)| bits >> place & 1 == 1);
    (0..1 << Capability::ALL.len()).map(|bits| of(bits).map(|(_, capability)| capability).collect()).collect()
});

/// What holds with any of these engines, and across switches between them: a promise that the next switch would break
/// is none.
pub(super) fn together(engines: &[Arc<dyn LockEngine>], options: &EnginesOptions) -> Capabilities {
    let all: Vec<Capabilities> = engines.iter().map(|engine| engine.capabilities()).collect();
    let holds = |capability: Capability| {
        let everywhere = all.iter().all(|capabilities| capabilities.has(capability));
        let across = match capability {
            // Processes that do not agree on a generation would give tokens that cannot be compared.
            Capability::FencingToken => options.agreement.is_some() && options.if_unreachable == IfUnreachable::Refuse,
            // Waiters queue anew at the new engine.
            Capability::Fair => engines.len() == 1,
            Capability::TellsLoss | Capability::SurvivesFailover => options.if_unreachable == IfUnreachable::Refuse,
            _ => true,
        };
        everywhere && across
    };
    let bits = Capability::ALL.into_iter().enumerate().filter(|(_, capability)| holds(*capability));
    let place = bits.fold(0, |bits, (place, _)| bits | 1 << place);
    let minimum_lease = all.iter().map(|capabilities| capabilities.minimum_lease).max().unwrap_or_default();
    Capabilities { promises: &SETS[place], minimum_lease }
}
