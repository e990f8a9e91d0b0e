//! The leader raises the cluster's feature level ([`lockkeeper_core::FeatureLevel`]) once every member supports a
//! higher one, and gives the cluster its uid.
//!
//! It must never raise the level beyond what each member's present program can read: such a member would be out of the
//! cluster until it is upgraded.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{ClusterUid, Command, FeatureLevel, Zxid};

use crate::log::proposer::Proposer;
use crate::replica::Replica;
use crate::replication::Replication;

/// How often the leader compares the levels.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How long all members must be synced and support a level before it is raised: a node that was upgraded a moment ago
/// and fails can still go back to its old program.
const WAIT: Duration = Duration::from_secs(5);
/// How often the leader compares the levels of a cluster in which nothing was ever stored, and of one that has no uid
/// yet. It does not wait: the way back is to begin again, and a new cluster has everything from the start.
const COMPARE_NEW_EVERY: Duration = Duration::from_millis(50);

/// Starts the task. It does nothing while another node leads. `uid` is drawn at random, for a cluster that has none.
pub(crate) fn start(replica: Arc<Replica>, replication: Arc<dyn Replication>, proposer: Proposer, uid: ClusterUid) {
    let tasks = replica.tasks.clone();
    tasks.spawn_vital("raising of the feature level", async move {
        let clock = replica.clock.clone();
        let mut supported = Supported::default();
        loop {
            let pause = if is_new(&replica) || lacks_uid(&replica) { COMPARE_NEW_EVERY } else { COMPARE_EVERY };
            clock.sleep_until(clock.now() + pause).await;
            let present = replica.feature_level();
            let common = match present < replica.supported_level {
                true => replication.common_feature_level().map(FeatureLevel),
                // No member of this version can support more.
                false => None,
            };
            let common = common.filter(|level| *level > present);
            let due = supported.note(common, clock.now());
            // If an outcome is unknown, the next comparison finds the level or the uid, or proposes it again.
            if let Some(level) = due.or(common.filter(|_| is_new(&replica)))
                && proposer.propose(Command::RaiseFeatureLevel { level }).await.is_ok()
            {
                tracing::info!(from = present.0, to = level.0, "the cluster's feature level is raised");
            }
            if lacks_uid(&replica) && replication.leadership().borrow().leading {
                // The first uid counts, whoever proposed it.
                let _ = proposer.propose(Command::SetClusterUid { uid }).await;
            }
        }
    });
}

/// Whether nothing was ever stored in this cluster, and its level is still the one at which each begins.
fn is_new(replica: &Replica) -> bool {
    let state = replica.state();
    state.feature_level() == FeatureLevel::FIRST && state.zxid() == Zxid(0)
}

/// Whether the cluster has no uid: it is new, or began from another one.
fn lacks_uid(replica: &Replica) -> bool {
    replica.cluster_uid().is_none()
}

/// The level beyond the present one that all members support, and since when.
#[derive(Default)]
struct Supported(Option<(FeatureLevel, Duration)>);

impl Supported {
    /// Notes the level that all members support at this time. Returns it once they have supported it for long enough.
    fn note(&mut self, level: Option<FeatureLevel>, now: Duration) -> Option<FeatureLevel> {
        let since = self.0.filter(|(known, _)| Some(*known) == level).map_or(now, |(_, since)| since);
        self.0 = level.map(|level| (level, since));
        level.filter(|_| now >= since + WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_due_when_all_have_supported_it_without_a_break() {
        let (second, third) = (Some(FeatureLevel(2)), Some(FeatureLevel(3)));
        let mut supported = Supported::default();
        let mut at = |seconds, level| supported.note(level, Duration::from_secs(seconds));
        assert_eq!(at(0, second), None);
        assert_eq!(at(4, second), None);
        assert_eq!(at(5, None), None, "a member is missing");
        assert_eq!(at(6, second), None);
        assert_eq!(at(10, second), None);
        assert_eq!(at(11, second), second);
        assert_eq!(at(12, second), second, "until it is raised");
        assert_eq!(at(13, third), None, "another level begins anew");
        assert_eq!(at(18, third), third);
    }
}
