//! What several engines promise together.

use std::sync::LazyLock;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
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
        everywhere && across(capability, engines.len(), options.agreement.is_some(), options.if_unreachable)
    };
    let bits = Capability::ALL.into_iter().enumerate().filter(|(_, capability)| holds(*capability));
    let place = bits.fold(0, |bits, (place, _)| bits | 1 << place);
    let minimum_lease = all.iter().map(|capabilities| capabilities.minimum_lease).max().unwrap_or_default();
    Capabilities { promises: &SETS[place], minimum_lease }
}

/// Whether a switch between so many engines, or a grant without them, leaves that promise as it is.
fn across(capability: Capability, engines: usize, agreed: bool, if_unreachable: IfUnreachable) -> bool {
    let refuses = if_unreachable == IfUnreachable::Refuse;
    match capability {
        // Processes that do not agree on a generation would give tokens that cannot be compared.
        Capability::FencingToken => refuses && agreed,
        // Waiters queue anew at the new engine.
        Capability::Fair => engines == 1,
        // Processes that are switched at different times can hold a lock together.
        Capability::TellsLoss | Capability::SurvivesFailover => refuses && (engines == 1 || agreed),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_against_two_holders_need_refusal_and_one_engine_or_an_agreement() {
        for capability in [Capability::TellsLoss, Capability::SurvivesFailover] {
            let holds = |engines, agreed, otherwise| across(capability, engines, agreed, otherwise);
            assert!(holds(1, false, IfUnreachable::Refuse), "{capability}");
            assert!(holds(2, true, IfUnreachable::Refuse), "{capability}");
            assert!(!holds(2, false, IfUnreachable::Refuse), "{capability}");
            for otherwise in [IfUnreachable::RunAnyway, IfUnreachable::LocalOnly] {
                assert!(!holds(1, true, otherwise) && !holds(2, true, otherwise), "{capability}");
            }
        }
    }

    #[test]
    fn tokens_need_refusal_and_an_agreement() {
        let holds = |agreed, otherwise| across(Capability::FencingToken, 2, agreed, otherwise);
        assert!(holds(true, IfUnreachable::Refuse));
        assert!(!holds(false, IfUnreachable::Refuse) && !holds(true, IfUnreachable::LocalOnly));
    }
}
