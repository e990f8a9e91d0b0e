//! Checks what every node reports of the leader and of itself during a run: at most one leader in a term, and the term
//! and zxid of a living node never go back.
//!
//! [`Lookout`] polls the status of each node past the fault network, so it also sees a leader that is cut off. The
//! checks below are pure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_api::cluster::Status;

use super::Check;
use crate::cluster::Cluster;
use crate::http::Api;
use crate::record::boot_us;
use crate::verdict::Failed;

/// Pause between two questions to one node.
const EVERY: Duration = Duration::from_millis(20);
/// A node that is stopped does not answer; it is the same one when it goes on.
const WITHIN: Duration = Duration::from_secs(3);
/// Of so many glimpses the later ones are not kept: hours of them.
const MOST: usize = 2_000_000;

/// What a node said once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glimpse {
    /// When the answer was there, in microseconds of the boot clock.
    pub at_us: u64,
    /// Which node.
    pub node: u64,
    /// In which of its lives, as far as they can be told apart from outside: never too few.
    pub life: u32,
    /// Its term.
    pub term: u64,
    /// Whom it takes for the leader.
    pub leader: Option<u64>,
    /// Whether it leads.
    pub leading: bool,
    /// What it has applied.
    pub zxid: u64,
}

/// Asks all nodes until it is called in.
#[derive(Debug)]
pub struct Lookout {
    seen: Arc<Mutex<Vec<Glimpse>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Lookout {
    /// Begins to look. `let lookout = Lookout::begin(&cluster)?; …; let checks = leaders::checks(&lookout.end());`
    ///
    /// # Errors
    /// An HTTP client cannot be made.
    pub fn begin(cluster: &Cluster) -> Result<Self, Failed> {
        let seen: Arc<Mutex<Vec<Glimpse>>> = Arc::default();
        let mut tasks = Vec::new();
        for node in cluster.ids() {
            tasks.push(tokio::spawn(look(cluster.own_api(node)?, Arc::clone(&seen))));
        }
        Ok(Self { seen, tasks })
    }

    /// Ends it; gives what was seen, by time.
    pub fn end(self) -> Vec<Glimpse> {
        for task in &self.tasks {
            task.abort();
        }
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        seen.sort_by_key(|glimpse| glimpse.at_us);
        seen
    }
}

async fn look(api: Api, seen: Arc<Mutex<Vec<Glimpse>>>) {
    let mut life = 0;
    loop {
        let url = format!("{}/v1/cluster", api.base());
        let answer = async { api.client().get(url).send().await?.json::<Status>().await };
        match tokio::time::timeout(WITHIN, answer).await {
            Ok(Ok(status)) => {
                // Whoever answers there now: a new member may have taken the place of another.
                let Status { node_id: node, term, leader, leading, zxid, .. } = status;
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.len() < MOST {
                    seen.push(Glimpse { at_us: boot_us(), node, life, term, leader, leading, zxid });
                }
            }
            // Refused or broken off: its process may have ended, and what answers next is another life.
            Ok(Err(_)) => life += 1,
            Err(_) => {}
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// All that can be said of what was seen.
pub fn checks(seen: &[Glimpse]) -> Vec<Check> {
    vec![one_a_term(seen), never_back(seen)]
}

/// In no term do two nodes lead, or does anybody know of two leaders.
pub fn one_a_term(seen: &[Glimpse]) -> Check {
    const NAME: &str = "one leader a term";
    let mut leaders: BTreeMap<u64, (u64, Glimpse)> = BTreeMap::new();
    for glimpse in seen {
        for leader in glimpse.leader.into_iter().chain(glimpse.leading.then_some(glimpse.node)) {
            let (known, first) = *leaders.entry(glimpse.term).or_insert((leader, *glimpse));
            if known != leader {
                let detail = format!("in term {} both {known} and {leader} lead", glimpse.term);
                let lines = vec![line(&first), line(glimpse)];
                return Check { at_us: Some(glimpse.at_us), ..Check::invalid(NAME, "P1 P10", detail, lines) };
            }
        }
    }
    match leaders.len() {
        0 => Check::unknown(NAME, "P1 P10", format!("no leader in {} answers", seen.len())),
        terms => {
            let detail = format!("{terms} terms in {} answers, each with one leader", seen.len());
            Check::valid(NAME, "P1 P10", detail)
        }
    }
}

/// A node that lives forgets no term and no transaction.
pub fn never_back(seen: &[Glimpse]) -> Check {
    const NAME: &str = "no node goes back while it lives";
    let mut last: BTreeMap<(u64, u32), Glimpse> = BTreeMap::new();
    for glimpse in seen {
        let Some(before) = last.insert((glimpse.node, glimpse.life), *glimpse) else { continue };
        if glimpse.term < before.term || glimpse.zxid < before.zxid {
            let detail = format!(
                "node {} went from term {} and zxid {} to term {} and zxid {}",
                glimpse.node, before.term, before.zxid, glimpse.term, glimpse.zxid
            );
            let lines = vec![line(&before), line(glimpse)];
            return Check { at_us: Some(glimpse.at_us), ..Check::invalid(NAME, "P4 P7", detail, lines) };
        }
    }
    match last.len() {
        0 => Check::unknown(NAME, "P4 P7", "no node answered"),
        lives => Check::valid(NAME, "P4 P7", format!("{lives} lives, {} answers", seen.len())),
    }
}

fn line(glimpse: &Glimpse) -> String {
    let Glimpse { at_us, node, life, term, leader, leading, zxid } = glimpse;
    let leads = if *leading { ", and that it leads" } else { "" };
    format!("{at_us} us: node {node} (life {life}) said term {term}, leader {leader:?}, zxid {zxid}{leads}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    fn glimpse(at_us: u64, node: u64, term: u64, leader: u64, zxid: u64) -> Glimpse {
        Glimpse { at_us, node, life: 0, term, leader: Some(leader), leading: node == leader, zxid }
    }

    #[test]
    fn leaders_may_change_with_the_term_only() {
        let good = [glimpse(1, 1, 5, 1, 9), glimpse(2, 2, 5, 1, 9), glimpse(3, 2, 6, 2, 10), glimpse(4, 1, 5, 1, 9)];
        assert_eq!(one_a_term(&good).verdict, Verdict::Valid, "the old one has not heard of the new term");
        let two = [good[0], glimpse(5, 3, 5, 3, 9)];
        assert_eq!((one_a_term(&two).verdict, one_a_term(&two).at_us), (Verdict::Invalid, Some(5)));
        let hearsay = [good[0], Glimpse { leading: false, ..glimpse(5, 2, 5, 3, 9) }];
        assert_eq!(one_a_term(&hearsay).verdict, Verdict::Invalid);
        let claims = [Glimpse { leader: None, ..good[0] }, Glimpse { leader: None, leading: true, ..good[1] }];
        assert_eq!(one_a_term(&claims).verdict, Verdict::Invalid);
        assert_eq!(one_a_term(&[]).verdict, Verdict::Unknown);
    }

    #[test]
    fn going_back_is_for_another_life() {
        let (before, after) = (glimpse(1, 1, 5, 1, 9), glimpse(2, 1, 5, 1, 8));
        assert_eq!(never_back(&[before, after]).verdict, Verdict::Invalid);
        assert_eq!(never_back(&[before, Glimpse { life: 1, ..after }]).verdict, Verdict::Valid);
        assert_eq!(never_back(&[before, glimpse(2, 2, 5, 1, 8)]).verdict, Verdict::Valid);
        assert_eq!(never_back(&[before, glimpse(2, 1, 4, 1, 9)]).verdict, Verdict::Invalid);
        assert_eq!(never_back(&[]).verdict, Verdict::Unknown);
    }
}
