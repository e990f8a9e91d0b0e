//! Notices that no majority of the voters answers this one, and says so: once, rarely after that, and when it is over.
//!
//! openraft goes on to call a leader a leader until it meets a higher term, and a follower of a dead leader its
//! follower, so neither role says that anything can be changed. A leader counts the voters that have answered within
//! the longest election timeout. Another voter that knows no leader, or none that answers, keeps asking the others for
//! their votes; it counts those whose latest call did not fail. What is noticed here is for people and for health
//! checks: nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::raft::node::Obstacle;
use crate::status::Members;
use crate::transport::TransportError;

/// Between two log lines that say the same.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A look that comes later than this after the one before it shows that the process was stopped meanwhile.
const SLOW_LOOK: Duration = Duration::from_secs(1);

/// The other voters as this node sees them now.
pub(crate) struct VoterView {
    pub(crate) members: Members,
    pub(crate) leader: Option<u64>,
    pub(crate) leading: bool,
    /// On the leader: how long ago each sent the latest request that it answered.
    pub(crate) silent_for: BTreeMap<u64, Duration>,
    /// Why the latest call to each of those that did not answer it got no answer.
    pub(crate) failures: BTreeMap<u64, TransportError>,
}

/// What is new.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Lost(String),
    Back { after: Duration },
}

/// See the module's text.
pub(crate) struct MajorityWatch {
    node: u64,
    /// Longest election timeout: a loss that is over before then is an election, or the pause of this process.
    grace: Duration,
    obstacle: Obstacle,
    looked: Option<Instant>,
    lost_since: Option<Instant>,
    logged: Option<Instant>,
}

impl MajorityWatch {
    pub(crate) fn new(config: &Config, obstacle: Obstacle) -> MajorityWatch {
        let grace = Duration::from_millis(config.election_timeout_max_ms);
        MajorityWatch { node: config.node, grace, obstacle, looked: None, lost_since: None, logged: None }
    }

    /// Looks at the voters, often. Whether this node leads and is not known to be without a majority.
    pub(crate) fn look(&mut self, view: &VoterView, now: Instant) -> bool {
        match self.judge(view, now) {
            Some(News::Lost(why)) => tracing::warn!("{why}; refusing changes"),
            Some(News::Back { after }) => {
                tracing::info!(after_ms = after.as_millis() as u64, "a majority of the voters answers again");
            }
            None => {}
        }
        view.leading && self.obstacle.get().is_none()
    }

    fn judge(&mut self, view: &VoterView, now: Instant) -> Option<News> {
        let has_paused = self.looked.replace(now).is_some_and(|before| now - before > SLOW_LOOK);
        let Some(why) = self.lost(view) else {
            self.obstacle.set(None);
            let since = self.lost_since.take();
            return self.logged.take().zip(since).map(|(_, since)| News::Back { after: now - since });
        };
        if has_paused && self.logged.is_none() {
            // Nobody could answer a process that did not run.
            self.lost_since = None;
        }
        let since = *self.lost_since.get_or_insert(now);
        if now - since < self.grace {
            return None;
        }
        self.obstacle.set(Some(why.clone()));
        if self.logged.is_some_and(|at| now - at < LOG_EVERY) {
            return None;
        }
        self.logged = Some(now);
        Some(News::Lost(why))
    }

    /// The voters that do not answer, if the others are no majority.
    fn lost(&self, view: &VoterView) -> Option<String> {
        let answers = |voter: u64| match view.leading {
            _ if voter == self.node => true,
            true => view.silent_for.get(&voter).is_some_and(|silent| *silent < self.grace),
            false => !view.failures.contains_key(&voter),
        };
        let is_led = !view.leading && view.leader.is_some_and(answers);
        if is_led || !view.members.voters.contains_key(&self.node) {
            return None;
        }
        let has_majority =
            |voters: &BTreeSet<u64>| voters.iter().filter(|voter| answers(**voter)).count() > voters.len() / 2;
        if view.members.quorums().iter().all(has_majority) {
            return None;
        }
        let mut by_cause: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for voter in view.members.voters.keys().filter(|voter| !answers(**voter)) {
            let cause = view.failures.get(voter).map_or_else(|| "no answer".into(), ToString::to_string);
            by_cause.entry(cause).or_default().push(voter.to_string());
        }
        let silent = by_cause.into_iter().map(|(cause, nodes)| match &nodes[..] {
            [node] => format!("node {node} does not answer ({cause})"),
            nodes => format!("nodes {} do not answer ({cause})", nodes.join(", ")),
        });
        Some(format!("no majority: {}", silent.collect::<Vec<_>>().join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::MemberAddresses;

    const GRACE: Duration = Duration::from_millis(600);
    const TICK: Duration = Duration::from_millis(250);

    fn watch(node: u64) -> MajorityWatch {
        let config = Config::new("c", node, BTreeMap::new());
        assert_eq!(Duration::from_millis(config.election_timeout_max_ms), GRACE);
        MajorityWatch::new(&config, Obstacle::default())
    }

    fn view(leader: Option<u64>, leading: bool) -> VoterView {
        let voters = (1..=3).map(|node| (node, MemberAddresses::default())).collect();
        let members = Members { voters, ..Members::default() };
        VoterView { members, leader, leading, silent_for: BTreeMap::new(), failures: BTreeMap::new() }
    }

    /// A leader whose followers last answered so long ago.
    fn leads(silent_ms: &[(u64, u64)], failures: &[(u64, TransportError)]) -> VoterView {
        VoterView {
            silent_for: silent_ms.iter().map(|(node, ms)| (*node, Duration::from_millis(*ms))).collect(),
            failures: failures.iter().cloned().collect(),
            ..view(Some(1), true)
        }
    }

    /// Looks at the same until the end of `span`; all that is new.
    fn news(watch: &mut MajorityWatch, view: &VoterView, now: &mut Instant, span: Duration) -> Vec<News> {
        let end = *now + span;
        let mut news = Vec::new();
        while *now < end {
            *now += TICK;
            news.extend(watch.judge(view, *now));
        }
        news
    }

    #[test]
    fn a_leader_that_nobody_answers_says_so_once_and_then_rarely_and_when_it_is_over() {
        let (mut watch, mut now) = (watch(1), Instant::now());
        let healthy = leads(&[(2, 50), (3, 9_000)], &[(3, TransportError::Refused)]);
        assert_eq!(news(&mut watch, &healthy, &mut now, LOG_EVERY), [], "one of three may be away");
        let alone = leads(&[(2, 5_000), (3, 9_000)], &[(2, TransportError::Refused), (3, TransportError::Refused)]);
        assert_eq!(news(&mut watch, &alone, &mut now, GRACE), [], "an election takes as long");
        assert_eq!(watch.obstacle.get(), None);
        let why = "no majority: nodes 2, 3 do not answer (connection refused)".to_owned();
        assert_eq!(news(&mut watch, &alone, &mut now, LOG_EVERY), [News::Lost(why.clone())]);
        assert_eq!(watch.obstacle.get(), Some(why.clone()));
        assert_eq!(news(&mut watch, &alone, &mut now, LOG_EVERY), [News::Lost(why)]);
        let [News::Back { after }] = news(&mut watch, &healthy, &mut now, LOG_EVERY)[..] else { panic!() };
        assert!(after > LOG_EVERY && after < 3 * LOG_EVERY, "{after:?}");
        assert_eq!(watch.obstacle.get(), None);
    }

    #[test]
    fn a_leader_counts_as_one_until_it_says_that_there_is_no_majority() {
        let (mut watch, mut now) = (watch(1), Instant::now());
        let healthy = leads(&[(2, 50), (3, 50)], &[]);
        let alone = leads(&[(2, 5_000), (3, 5_000)], &[]);
        assert!(watch.look(&healthy, now) && watch.look(&alone, now));
        assert!(news(&mut watch, &alone, &mut now, GRACE * 2).len() == 1 && !watch.look(&alone, now));
        assert!(watch.look(&healthy, now));
        assert!(!watch.look(&view(Some(2), false), now), "a follower");
    }

    #[test]
    fn each_cause_is_named_with_its_nodes() {
        let (mut watch, mut now) = (watch(1), Instant::now());
        let alone = leads(&[(3, 9_000)], &[(2, TransportError::Unreachable("no route".into()))]);
        let news = news(&mut watch, &alone, &mut now, GRACE * 2);
        let why = "no majority: node 3 does not answer (no answer), node 2 does not answer (unreachable: no route)";
        assert_eq!(news, [News::Lost(why.into())]);
    }

    #[test]
    fn a_voter_whose_leader_and_whose_peers_are_gone_has_no_majority() {
        let mut now = Instant::now();
        let of = |leader, failed: &[u64]| VoterView {
            failures: failed.iter().map(|node| (*node, TransportError::TimedOut)).collect(),
            ..view(leader, false)
        };
        for fine in [of(Some(1), &[]), of(Some(1), &[3]), of(Some(1), &[1]), of(None, &[1]), of(None, &[])] {
            let news = news(&mut watch(2), &fine, &mut now, LOG_EVERY);
            assert_eq!(news, [], "{:?} {:?}", fine.leader, fine.failures);
        }
        for alone in [of(Some(1), &[1, 3]), of(None, &[1, 3])] {
            let why = "no majority: nodes 1, 3 do not answer (timed out)".to_owned();
            assert_eq!(news(&mut watch(2), &alone, &mut now, GRACE * 2), [News::Lost(why)]);
        }
    }

    #[test]
    fn a_process_that_was_stopped_does_not_take_its_pause_for_a_loss() {
        let (mut watch, mut now) = (watch(1), Instant::now());
        let silent = leads(&[(2, 700), (3, 700)], &[]);
        assert_eq!(news(&mut watch, &silent, &mut now, TICK), []);
        now += Duration::from_secs(12);
        assert_eq!(news(&mut watch, &silent, &mut now, TICK), []);
        assert_eq!(news(&mut watch, &leads(&[(2, 1), (3, 1)], &[]), &mut now, LOG_EVERY), []);
    }
}
