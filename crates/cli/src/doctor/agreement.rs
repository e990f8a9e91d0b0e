//! Whether the members agree: the checksums of their replicated states at one zxid.
//!
//! While changes are made, the members' present states differ. So all are asked for the first state from a zxid on that
//! none of them has reached; each then copies its state right after the same entry. Only equal zxids are ever compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use lockkeeper_api::cluster::StateChecksum;
use lockkeeper_client::{Client, Endpoint};

use super::Check;
use super::survey::Survey;

const AGREEMENT: &str = "agreement";
/// How often the members are asked until their zxids are equal.
const MOST_ROUNDS: u32 = 5;
/// Longest time for a member to wait for a zxid and to compute a checksum.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How far ahead of the cluster the zxid is: what is changed in this time, so that no member has it when it is asked.
const AHEAD: Duration = Duration::from_millis(250);

/// The checksums of one round, by node; or why a member gave none.
type Round = BTreeMap<u64, Result<StateChecksum, String>>;

/// What one round showed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// All of these members have the same state at this zxid.
    Agree { zxid: u64, nodes: Vec<u64> },
    /// Members have different states at one zxid.
    Differ { zxid: u64, checksums: BTreeMap<String, Vec<u64>> },
    /// No two members were at one zxid.
    Apart(Vec<u64>),
}

/// Asks the members that answered the survey, some times if need be.
pub(crate) async fn check(client: &Client, survey: &Survey) -> Check {
    let members: Vec<(u64, Endpoint)> =
        survey.members().into_iter().map(|(node, answer)| (node, answer.endpoint.clone())).collect();
    if members.len() < 2 {
        return Check::skipped(AGREEMENT, "only one member answers");
    }
    let mut pace = Pace::new(survey.statuses().values().map(|status| status.zxid).max().unwrap_or_default());
    let mut last = Round::new();
    let mut best = None;
    for round in 0..MOST_ROUNDS {
        // A cluster that is at rest agrees at its present zxid.
        let from = if round == 0 { 0 } else { pace.ahead() };
        let asked = members.iter().map(|(node, endpoint)| async move {
            let checksum = client.checksum_of(endpoint, from, ANSWER_WITHIN).await;
            (*node, checksum.map_err(|error| error.to_string()))
        });
        last = join_all(asked).await.into_iter().collect();
        pace.saw(last.values().flatten().map(|checksum| checksum.zxid).max().unwrap_or_default());
        match compare(&last) {
            Finding::Apart(_) => {}
            differ @ Finding::Differ { .. } => return judge(&differ, &last),
            agree => {
                let is_of_all = matches!(&agree, Finding::Agree { nodes, .. } if nodes.len() == members.len());
                if is_of_all {
                    return judge(&agree, &last);
                }
                best = Some(agree);
            }
        }
    }
    judge(&best.unwrap_or_else(|| compare(&last)), &last)
}

/// How fast the zxid rises.
struct Pace {
    at: Instant,
    zxid: u64,
    per_second: f64,
}

impl Pace {
    fn new(zxid: u64) -> Self {
        Self { at: Instant::now(), zxid, per_second: 0.0 }
    }

    fn saw(&mut self, zxid: u64) {
        let (now, rise) = (Instant::now(), zxid.saturating_sub(self.zxid));
        let passed = now.duration_since(self.at).max(Duration::from_millis(1));
        *self = Self { at: now, zxid: self.zxid.max(zxid), per_second: rise as f64 / passed.as_secs_f64() };
    }

    /// A zxid that the cluster will have reached after a while.
    fn ahead(&self) -> u64 {
        let rise = self.per_second * (AHEAD + self.at.elapsed()).as_secs_f64();
        self.zxid.saturating_add((rise as u64).max(1))
    }
}

fn compare(round: &Round) -> Finding {
    let mut by_zxid: BTreeMap<u64, BTreeMap<String, Vec<u64>>> = BTreeMap::new();
    for (node, checksum) in round.iter().filter_map(|(node, answer)| Some((*node, answer.as_ref().ok()?))) {
        by_zxid.entry(checksum.zxid).or_default().entry(checksum.checksum.clone()).or_default().push(node);
    }
    if let Some((zxid, checksums)) = by_zxid.iter().find(|(_, checksums)| checksums.len() > 1) {
        return Finding::Differ { zxid: *zxid, checksums: checksums.clone() };
    }
    let agreeing = by_zxid.iter().filter_map(|(zxid, checksums)| Some((*zxid, checksums.values().next()?)));
    match agreeing.max_by_key(|(_, nodes)| nodes.len()) {
        Some((zxid, nodes)) if nodes.len() > 1 => Finding::Agree { zxid, nodes: nodes.clone() },
        _ => Finding::Apart(by_zxid.into_keys().collect()),
    }
}

fn judge(finding: &Finding, round: &Round) -> Check {
    let list = |nodes: &[u64]| nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match finding {
        Finding::Differ { zxid, checksums } => {
            let parts = checksums.iter().map(|(checksum, nodes)| format!("{checksum} at node {}", list(nodes)));
            let found = format!("the states differ at zxid {zxid}: {}", parts.collect::<Vec<_>>().join("; "));
            let remedy = "stop the members that differ from the majority, keep copies of all data directories, report \
                          this, and replace those members under new ids; trust no lock of theirs";
            Check::problem(AGREEMENT, found, remedy)
        }
        Finding::Agree { zxid, nodes } if nodes.len() == round.len() => {
            Check::ok(AGREEMENT, format!("all {} members that answer have the same state at zxid {zxid}", nodes.len()))
        }
        Finding::Agree { zxid, nodes } => {
            let found = format!("nodes {} agree at zxid {zxid}; the others could not be compared", list(nodes));
            Check::warning(AGREEMENT, why_not(found, round), "look again when all members are ready and in step")
        }
        Finding::Apart(zxids) => {
            let found = format!("could not compare: the members were at zxids {}", list(zxids));
            Check::warning(AGREEMENT, why_not(found, round), "look again when all members are ready and in step")
        }
    }
}

/// With the errors of members that gave no checksum.
fn why_not(found: String, round: &Round) -> String {
    let errors = round.iter().filter_map(|(node, answer)| Some(format!("; node {node}: {}", answer.as_ref().err()?)));
    found + &errors.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn round(answers: &[(u64, u64, &str)]) -> Round {
        let checksum = |zxid, checksum: &str| Ok(StateChecksum { zxid, checksum: checksum.into() });
        answers.iter().map(|(node, zxid, text)| (*node, checksum(*zxid, text))).collect()
    }

    fn judged(round: &Round) -> Check {
        judge(&compare(round), round)
    }

    #[test]
    fn only_equal_zxids_are_compared() {
        assert_eq!(judged(&round(&[(1, 7, "a"), (2, 7, "a"), (3, 7, "a")])).verdict, Verdict::Ok);
        let differs = judged(&round(&[(1, 7, "a"), (2, 7, "b"), (3, 8, "c")]));
        assert_eq!(differs.verdict, Verdict::Problem);
        assert!(differs.found.contains("zxid 7: a at node 1; b at node 2"), "{differs:?}");
        let apart = judged(&round(&[(1, 7, "a"), (2, 8, "b"), (3, 9, "c")]));
        assert!(apart.verdict == Verdict::Warning && apart.found.contains("could not compare"), "{apart:?}");
        let partly = judged(&round(&[(1, 7, "a"), (2, 7, "a"), (3, 9, "c")]));
        assert!(partly.verdict == Verdict::Warning && partly.found.contains("nodes 1, 2 agree"), "{partly:?}");
    }

    #[test]
    fn a_member_without_a_checksum_is_named() {
        let mut round = round(&[(1, 7, "a"), (2, 7, "a")]);
        round.insert(3, Err("it is busy".into()));
        let check = judged(&round);
        assert!(check.verdict == Verdict::Warning && check.found.ends_with("; node 3: it is busy"), "{check:?}");
    }

    #[test]
    fn the_zxid_that_is_asked_for_is_ahead() {
        let mut pace = Pace::new(100);
        assert_eq!(pace.ahead(), 101);
        pace.at -= Duration::from_secs(1);
        pace.saw(1_100);
        assert!((1_300..2_000).contains(&pace.ahead()), "{}", pace.ahead());
    }
}
