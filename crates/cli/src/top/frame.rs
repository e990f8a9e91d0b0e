//! The contents of one refresh: pure values from what the members answered.

use lockkeeper_api::cluster::Role;
use lockkeeper_api::locks::Locks;
use serde::Serialize;

use crate::doctor::survey::{Answer, Survey};
use crate::scrape::Metrics;

/// One refresh.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Frame {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader: Option<u64>,
    /// Members of the cluster, and those that answer and are ready.
    pub(crate) member_count: usize,
    pub(crate) ready: usize,
    pub(crate) sessions: u64,
    pub(crate) zxid: u64,
    /// Of all members that answer.
    pub(crate) rates: Rates,
    pub(crate) members: Vec<MemberRow>,
    /// The lock whose first waiter has waited longest comes first.
    pub(crate) locks: Vec<LockRow>,
    /// Whether there are more locks than were asked for.
    pub(crate) has_more_locks: bool,
    /// What could not be learned, and why.
    pub(crate) errors: Vec<String>,
}

/// Per second; `None` where it cannot be determined, as right after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) grants: Option<f64>,
    pub(crate) releases: Option<f64>,
    pub(crate) requests: Option<f64>,
    pub(crate) batches: Option<f64>,
    pub(crate) sessions_ended: Option<f64>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MemberRow {
    pub(crate) node: u64,
    pub(crate) role: &'static str,
    pub(crate) state: String,
    /// Log entries that another member has applied and this one has not.
    pub(crate) behind: u64,
    pub(crate) waiters: u64,
    pub(crate) requests: Option<f64>,
    /// The mean of the disk syncs.
    pub(crate) sync_ms: Option<f64>,
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) memory_bytes: Option<f64>,
    pub(crate) endpoint: String,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LockRow {
    pub(crate) lock: String,
    pub(crate) holding: u64,
    pub(crate) waiting: u64,
    pub(crate) oldest_wait_ms: Option<u64>,
    pub(crate) token: Option<u64>,
    /// How long ago the first holder entered the queue.
    pub(crate) queued_ms: Option<u64>,
    pub(crate) holder: String,
}

impl Frame {
    /// `before` is the survey of the refresh before; without one, rates are means since the members started.
    pub(crate) fn new(survey: &Survey, before: Option<&Survey>, locks: &Result<Locks, String>, now_ms: u64) -> Self {
        let (statuses, best) = (survey.statuses(), survey.best());
        let now_ms = cluster_clock_ms(survey).unwrap_or(now_ms);
        let mut errors: Vec<String> = survey.several_clusters().into_iter().collect();
        errors.extend(
            survey
                .answers
                .iter()
                .filter_map(|answer| Some(format!("{}: {}", answer.endpoint, answer.status.as_ref().err()?))),
        );
        errors.extend(locks.as_ref().err().map(|why| format!("locks: {why}")));
        Self {
            cluster: best.map(|status| status.cluster.clone()),
            leader: best.and_then(|status| status.leader),
            member_count: best.map_or(0, |status| status.members.len()),
            ready: statuses.values().filter(|status| status.ready).count(),
            sessions: best.map_or(0, |status| status.sessions),
            zxid: best.map_or(0, |status| status.zxid),
            rates: rates(survey, before),
            members: member_rows(survey, before),
            locks: locks.as_ref().map(|locks| lock_rows(locks, now_ms)).unwrap_or_default(),
            has_more_locks: locks.as_ref().is_ok_and(|locks| locks.next.is_some()),
            errors,
        }
    }
}

/// The cluster's clock, by which waits are counted.
fn cluster_clock_ms(survey: &Survey) -> Option<u64> {
    let clocks = survey.answers.iter().filter_map(|answer| answer.metrics.largest("lockkeeper_cluster_clock_seconds"));
    clocks.reduce(f64::max).filter(|clock| *clock > 0.0).map(|clock| (clock * 1000.0) as u64)
}

/// How much a counter of a member has risen in a second, since the survey before or since the member started. `None`
/// if the metrics of that time are missing.
fn rate(answer: &Answer, before: Option<&Answer>, counter: &str) -> Option<f64> {
    let now = value(answer, counter)?;
    let (then, then_s) = match before {
        Some(before) => (value(before, counter)?, before.asked_unix_s),
        None => (0.0, answer.metrics.largest("process_start_time_seconds").filter(|started| *started > 0.0)?),
    };
    let passed_s = answer.asked_unix_s - then_s;
    // A counter that has fallen is that of a member that has started again.
    (passed_s > 0.0 && now >= then).then(|| (now - then) / passed_s)
}

/// The value of a counter, which a member shows only once it has counted something; `None` without any metrics.
fn value(answer: &Answer, counter: &str) -> Option<f64> {
    (answer.metrics != Metrics::default()).then(|| answer.metrics.sum(counter).unwrap_or_default())
}

fn earlier<'a>(before: Option<&'a Survey>, answer: &Answer) -> Option<&'a Answer> {
    let node = answer.node()?;
    before?.answers.iter().find(|earlier| earlier.node() == Some(node))
}

/// The counter of all members together; of sessions that end, every member counts each.
fn rates(survey: &Survey, before: Option<&Survey>) -> Rates {
    let members = survey.members();
    let all = |counter: &str| {
        let rates = members.values().filter_map(|answer| rate(answer, earlier(before, answer), counter));
        rates.reduce(|sum, rate| sum + rate)
    };
    let leader = survey.answers.iter().find(|answer| answer.status.as_ref().is_ok_and(|status| status.leading));
    let ended = "lockkeeper_sessions_ended_total";
    Rates {
        grants: all("lockkeeper_lock_wait_seconds_count"),
        releases: all("lockkeeper_lock_releases_total"),
        requests: all("lockkeeper_http_requests_total"),
        batches: all("lockkeeper_proposals_total"),
        sessions_ended: leader.and_then(|leader| rate(leader, earlier(before, leader), ended)),
    }
}

fn member_rows(survey: &Survey, before: Option<&Survey>) -> Vec<MemberRow> {
    let furthest = survey.statuses().values().map(|status| status.applied_index).max().unwrap_or_default();
    let row = |(node, answer): (u64, &Answer)| {
        let status = answer.status.as_ref().ok()?;
        let rate = |counter| rate(answer, earlier(before, answer), counter);
        let (syncs, in_sync) = (rate("lockkeeper_store_sync_seconds_count"), rate("lockkeeper_store_sync_seconds_sum"));
        Some(MemberRow {
            node,
            role: match status.role {
                _ if status.leading => "leader",
                Some(Role::Voter) => "voter",
                Some(Role::Learner) => "learner",
                Some(Role::Front) => "front",
                None => "no member",
            },
            state: match &status.not_ready_because {
                _ if status.ready => "ready".into(),
                Some(why) => format!("not ready: {why}"),
                None => "not ready".into(),
            },
            behind: furthest.saturating_sub(status.applied_index),
            waiters: status.lock_waiters,
            requests: rate("lockkeeper_http_requests_total"),
            sync_ms: syncs.zip(in_sync).filter(|(syncs, _)| *syncs > 0.0).map(|(syncs, seconds)| seconds / syncs * 1e3),
            cpu_percent: rate("process_cpu_seconds_total").map(|cores| cores * 100.0),
            memory_bytes: answer.metrics.sum("process_resident_memory_bytes"),
            endpoint: answer.endpoint.to_string(),
        })
    };
    survey.members().into_iter().filter_map(row).collect()
}

fn lock_rows(locks: &Locks, now_ms: u64) -> Vec<LockRow> {
    let ago = |since_ms: u64| now_ms.saturating_sub(since_ms);
    let row = |lock: &lockkeeper_api::locks::LockSummary| LockRow {
        lock: lock.lock.clone(),
        holding: lock.holding,
        waiting: lock.waiting,
        oldest_wait_ms: lock.waiting_since_ms.map(ago),
        token: lock.holder.as_ref().map(|holder| holder.token),
        queued_ms: lock.holder.as_ref().map(|holder| ago(holder.since_ms)),
        holder: lock.holder.as_ref().map(|holder| holder.label.clone()).unwrap_or_default(),
    };
    let mut rows: Vec<LockRow> = locks.locks.iter().map(row).collect();
    // Stable: locks for which nobody waits stay in the order of their names.
    rows.sort_by_key(|row| std::cmp::Reverse((row.oldest_wait_ms, row.waiting)));
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use lockkeeper_client::{Endpoint, Error, Tried};
    use serde_json::json;

    use super::*;

    pub(crate) fn answer(node: u64, asked_unix_s: f64, metrics: &str) -> Answer {
        let status = json!({
            "cluster": "c", "node_id": node, "version": "1.0.0", "term": 3, "leader": 1, "leading": node == 1,
            "role": "voter", "ready": node != 3, "not_ready_because": (node == 3).then_some("no leader"),
            "last_log_index": 10, "applied_index": 10 - node, "zxid": 9, "sessions": 4, "nodes": 1, "watches": 0,
            "lock_waiters": 2, "members": [
                { "node_id": 1, "peer_address": "p:1", "role": "voter" },
                { "node_id": 2, "peer_address": "p:2", "role": "voter" },
                { "node_id": 3, "peer_address": "p:3", "role": "voter" },
            ],
        });
        Answer {
            endpoint: Endpoint::parse(&format!("http://c:{node}")).unwrap(),
            is_named: true,
            status: Ok(serde_json::from_value(status).unwrap()),
            metrics: Metrics::parse(metrics),
            asked_unix_s,
        }
    }

    pub(crate) fn locks() -> Locks {
        let lock = |name: &str, waiting: u64, since: Option<u64>| {
            json!({ "lock": name, "holding": 1, "waiting": waiting, "waiting_since_ms": since, "holder": {
                "token": 7, "sequence": 0, "mode": "exclusive", "label": "host a\u{1b}[31m", "since_ms": 1_000,
                "path": "/locks/x" } })
        };
        let locks = [lock("a", 0, None), lock("b", 1, Some(5_000)), lock("c", 2, Some(4_000)), lock("d", 0, None)];
        serde_json::from_value(json!({ "locks": locks, "next": "d", "zxid": 9 })).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_surveys() {
        let before = Survey { answers: vec![answer(1, 100.0, "lockkeeper_lock_releases_total 50\n")] };
        let now = answer(1, 110.0, "lockkeeper_lock_releases_total 80\n");
        let frame = |now: Answer, before| {
            Frame::new(&Survey { answers: vec![now] }, before, &Err("no right".into()), 0).rates.releases
        };
        assert_eq!(frame(now.clone(), Some(&before)), Some(3.0));
        let restarted = answer(1, 110.0, "lockkeeper_lock_releases_total 5\n");
        assert_eq!(frame(restarted, Some(&before)), None);
        assert_eq!(frame(now.clone(), None), None, "nobody knows since when it counts");
        let since_start = "process_start_time_seconds 90\nlockkeeper_lock_releases_total 40\n";
        assert_eq!(frame(answer(1, 110.0, since_start), None), Some(2.0));
        let unknown_start = "process_start_time_seconds 0\nlockkeeper_lock_releases_total 40\n";
        assert_eq!(frame(answer(1, 110.0, unknown_start), None), None);
        let no_metrics = Survey { answers: vec![answer(1, 100.0, "")] };
        assert_eq!(frame(now, Some(&no_metrics)), None, "it did not count from 0");
        assert_eq!(frame(answer(1, 110.0, ""), Some(&no_metrics)), None);
        let nothing_yet = Survey { answers: vec![answer(1, 100.0, "process_threads 9\n")] };
        assert_eq!(frame(answer(1, 110.0, "process_threads 9\n"), Some(&nothing_yet)), Some(0.0));
    }

    #[test]
    fn members_and_locks_are_rows() {
        let metrics = "lockkeeper_cluster_clock_seconds 10\nprocess_resident_memory_bytes 2048\n";
        let mut answers = vec![answer(1, 100.0, metrics), answer(3, 100.0, "")];
        let tried = vec![Tried { endpoint: "http://c:2".into(), why: "refused".into(), code: None }];
        answers.push(Answer { status: Err(Error::Unreachable { tried }), ..answer(2, 100.0, "") });
        let frame = Frame::new(&Survey { answers }, None, &Ok(locks()), 0);
        assert_eq!((frame.leader, frame.member_count, frame.ready, frame.sessions), (Some(1), 3, 1, 4));
        let members: Vec<_> = frame.members.iter().map(|row| (row.node, row.role, row.behind)).collect();
        assert_eq!(members, [(1, "leader", 0), (3, "voter", 2)]);
        assert_eq!((frame.errors.len(), frame.has_more_locks), (1, true), "{:?}", frame.errors);
        let rows: Vec<_> = frame.locks.iter().map(|row| (row.lock.as_str(), row.oldest_wait_ms)).collect();
        assert_eq!(rows, [("c", Some(6_000)), ("b", Some(5_000)), ("a", None), ("d", None)]);
    }
}
