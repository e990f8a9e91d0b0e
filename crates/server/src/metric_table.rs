//! Every metric that a node exports: one row each, in the sections of the reference in `docs/monitoring.md`, which is
//! generated from here. The crates record them; `scripts/check monitoring` finds a name that has no row, and a row that
//! nobody records.
//!
//! A label takes only values from a fixed set (route patterns, methods, codes): nothing that a client chooses ever
//! becomes a label, but for namespaces, whose number is bounded.

use metrics::Unit::{self, Bytes, Count, Milliseconds, Seconds};
use metrics::{describe_counter, describe_gauge, describe_histogram};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    unit: Unit,
    pub(crate) help: &'static str,
}

const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit, help }
}

const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, help }
}

const fn histogram(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit, help }
}

/// One line for each metric.
#[rustfmt::skip]
static TABLE: [(&str, &[Metric]); 7] = [
    ("Process and build", &[
        gauge("lockkeeper_build_info", Count, "1; labels `version`, `commit`, `profile`"),
        gauge("lockkeeper_super_user", Count, "1 while `admin.super_digest` is set: its user may do everything"),
        counter("lockkeeper_audit_write_failures_total", Count, "audit records only the log has, because `audit.file` failed"),
        counter("lockkeeper_log_lines_left_out_total", Count, "log lines left out: too many alike"),
        counter("lockkeeper_spans_sent_total", Count, "trace spans the collector took"),
        counter("lockkeeper_spans_dropped_total", Count, "by `reason`: `queue_full`, `not_sent`, `rejected`, `shutdown`"),
        counter("process_cpu_seconds_total", Seconds, "user and system"),
        gauge("process_resident_memory_bytes", Bytes, "resident memory"),
        gauge("process_virtual_memory_bytes", Bytes, "virtual memory"),
        gauge("process_threads", Count, "threads"),
        gauge("process_open_fds", Count, "open files and connections"),
        gauge("process_max_fds", Count, "their limit"),
        gauge("process_start_time_seconds", Seconds, "start, since 1970"),
    ]),
    ("Cluster", &[
        gauge("lockkeeper_is_leader", Count, "1 if it leads and a majority answers"),
        gauge("lockkeeper_ready", Count, "1 if up to date with a leader within 5 s and, at a voter, a majority answers"),
        gauge("lockkeeper_admitted", Count, "1 if a majority found its data directory in order"),
        gauge("lockkeeper_voters", Count, "members that vote"),
        gauge("lockkeeper_learners", Count, "members that do not vote yet"),
        gauge("lockkeeper_fronts", Count, "front nodes"),
        gauge("lockkeeper_is_front", Count, "1 at a front node"),
        gauge("lockkeeper_synced_followers", Count, "at the leader: other voters that answer and lack at most 1,000 entries; else 0"),
        gauge("lockkeeper_synced_fronts", Count, "same for front nodes"),
        gauge("lockkeeper_whole_session_tables", Count, "at the leader: voters that know each session's last sign of life; without a majority the next leader restarts all timeouts. Elsewhere its last value"),
        gauge("lockkeeper_feature_level", Count, "the cluster's, as applied here"),
        gauge("lockkeeper_supported_feature_level", Count, "this member's highest, bounded by `cluster.max_feature_level`"),
        gauge("lockkeeper_alarms", Count, "alarms; `lockkeeper status` has them"),
        gauge("lockkeeper_term", Count, "Raft term"),
        gauge("lockkeeper_last_log_index", Count, "stored"),
        gauge("lockkeeper_applied_index", Count, "applied"),
        gauge("lockkeeper_purged_log_index", Count, "cut off"),
        gauge("lockkeeper_zxid", Count, "last zxid applied"),
        counter("lockkeeper_elections_total", Count, "changes of leader or term seen"),
        counter("lockkeeper_fast_elections_total", Count, "elections because the leader's process was dead or silent"),
        gauge("lockkeeper_peers_turned_away", Count, "members whose data directory it turns away"),
        counter("lockkeeper_peers_turned_away_total", Count, "how often, by `code`"),
        counter("lockkeeper_peer_rejections_total", Count, "rejected peer calls by `code`"),
        counter("lockkeeper_peer_messages_refused_total", Count, "impossible peer messages by `kind`, `what`: a broken or false member"),
        gauge("lockkeeper_cluster_clock_seconds", Seconds, "the cluster's clock; 0: none yet"),
        gauge("lockkeeper_clock_skew_ms", Milliseconds, "this machine's clock ahead of it"),
        gauge("lockkeeper_last_backup_timestamp_seconds", Seconds, "last whole backup sent since start; else absent"),
    ]),
    ("Locks and queues", &[
        gauge("lockkeeper_lock_waiters", Count, "lock requests waiting here, ZooKeeper clients left out"),
        gauge("lockkeeper_queue_age_seconds", Seconds, "longest wait by `namespace`, all clients, same at each member"),
        histogram("lockkeeper_lock_wait_seconds", Seconds, "lock request to grant"),
        counter("lockkeeper_lock_releases_total", Count, "requests that left a queue, each counted by one member"),
        counter("lockkeeper_lock_notifications_total", Count, "waiters woken; about one per release of the cluster"),
        counter("lockkeeper_lock_requests_abandoned_total", Count, "withdrawn: caller gone"),
        counter("lockkeeper_delayed_requests_total", Count, "lock requests deep in a queue that waited up to 10 ms for company, by how that `ended`: `with_another`, `when_due`, `when_needed`"),
        counter("lockkeeper_forced_releases_total", Count, "locks taken by force; the audit log says by whom"),
        counter("lockkeeper_gate_outcomes_total", Count, "gates' answers by `outcome`"),
        counter("lockkeeper_rate_permits_total", Count, "rate limits' permits by `outcome`: `granted`, `leased` ahead (`granted` too once handed out), `lapsed`"),
        counter("lockkeeper_rate_requests_refused_total", Count, "requests without permits left"),
    ]),
    ("Sessions and state", &[
        gauge("lockkeeper_sessions", Count, "open sessions of the cluster"),
        counter("lockkeeper_sessions_ended_total", Count, "by `cause`: `closed`, `expired`; every member counts each, again after a start: use the leader's"),
        gauge("lockkeeper_nodes", Count, "nodes of the tree"),
        gauge("lockkeeper_ephemerals", Count, "ephemeral ones"),
        gauge("lockkeeper_state_bytes", Bytes, "the state in memory"),
        gauge("lockkeeper_state_bytes_limit", Bytes, "`limits.state_mib`"),
        histogram("lockkeeper_state_validation_seconds", Seconds, "check of the whole state, every 5 min; a broken invariant ends the process"),
        gauge("lockkeeper_watches", Count, "watches here, ZooKeeper clients left out"),
        counter("lockkeeper_watches_lost_total", Count, "ended: client too slow, or history skipped"),
    ]),
    ("Requests", &[
        counter("lockkeeper_http_requests_total", Count, "by `route`, `method`, `status`, `code`; session streams too"),
        histogram("lockkeeper_http_request_duration_seconds", Seconds, "waits for locks included; by `route`, `method`"),
        gauge("lockkeeper_http_requests_in_flight", Count, "served, or waiting for a lock"),
        counter("lockkeeper_http_requests_abandoned_total", Count, "client left before the reply"),
        counter("lockkeeper_proposals_total", Count, "batches by `result`: `committed`, `not_taken` (no leader), `refused`, `unknown`"),
        histogram("lockkeeper_proposal_seconds", Seconds, "a batch, until the leader applied it"),
        counter("lockkeeper_commit_notices_total", Count, "at the leader: commits that followers learn, by how they are `sent`: `alone`, or held back until `with_entries`"),
        histogram("lockkeeper_batch_commands", Count, "commands in a batch"),
        histogram("lockkeeper_batches_in_flight", Count, "when one more is sent"),
        histogram("lockkeeper_read_round_seconds", Seconds, "round for linearizable reads"),
        histogram("lockkeeper_apply_seconds", Seconds, "to apply an entry"),
        counter("lockkeeper_slow_applies_total", Count, "entries that took over 20 ms"),
        gauge("lockkeeper_streams", Count, "open session streams"),
        counter("lockkeeper_streams_ended_total", Count, "by `why`; `too_slow`, `silent`, `no_room`: the client's trouble"),
        counter("lockkeeper_stream_messages_received_total", Count, "by `kind`"),
        counter("lockkeeper_stream_messages_sent_total", Count, "by `kind`"),
        counter("lockkeeper_stream_flushes_total", Count, "writes to connections"),
        gauge("lockkeeper_zookeeper_connections", Count, "open ones"),
        counter("lockkeeper_zookeeper_requests_total", Count, "by `operation`"),
        counter("lockkeeper_zookeeper_events_total", Count, "watch events sent"),
        counter("lockkeeper_zookeeper_ahead_total", Count, "clients sent away: they had seen more than this member"),
    ]),
    ("Disk", &[
        histogram("lockkeeper_store_sync_seconds", Seconds, "write and sync of the journal, and waits for sled"),
        histogram("lockkeeper_store_sled_sync_seconds", Seconds, "flush and data sync of sled, which follows the journal"),
        gauge("lockkeeper_store_unarchived_bytes", Bytes, "of log entries in the journal that sled does not have"),
        histogram("lockkeeper_store_batch_records", Count, "log entries per sync"),
        gauge("lockkeeper_store_free_bytes", Bytes, "free on the data disk at the last write"),
        gauge("lockkeeper_store_log_entries", Count, "entries in the log"),
        histogram("lockkeeper_snapshot_seconds", Seconds, "to write a snapshot"),
    ]),
    ("Limits and listeners", &[
        gauge("lockkeeper_budget_used", Count, "use of each `budget`: a key below `limits`"),
        gauge("lockkeeper_budget_limit", Count, "its bound"),
        counter("lockkeeper_budget_refusals_total", Count, "by `budget` and exhausted `share`: `all`, `address`, `session`"),
        gauge("lockkeeper_namespace_used", Count, "by `namespace` with limits, and `resource`: `sessions`, `lock_requests`, `nodes`, `bytes`"),
        gauge("lockkeeper_namespace_limit", Count, "its limit; +Inf: none"),
        counter("lockkeeper_namespace_requests_delayed_total", Count, "above `requests_per_s` of the `namespace`: waited"),
        counter("lockkeeper_namespace_requests_refused_total", Count, "same: refused"),
        gauge("lockkeeper_http_connections", Count, "open ones by `listener`: `client`, `peer`"),
        counter("lockkeeper_http_connections_refused_total", Count, "too many"),
        counter("lockkeeper_http_connections_made_way_total", Count, "idle, closed for others"),
        counter("lockkeeper_http_connections_cut_total", Count, "cut off for silence, by `why`"),
        gauge("lockkeeper_certificate_expiry_seconds", Seconds, "until the certificate of the `listener` (`client`, `zookeeper`, `peer`) expires; absent without TLS"),
        gauge("lockkeeper_tls_reload_failed", Count, "1 while the `listener`'s new TLS file is unusable; the log has the cause"),
        counter("lockkeeper_tls_handshakes_failed_total", Count, "by `listener`, `why`: `plain_text`, `refused` (certificate, version), `timeout`, `broken`"),
        gauge("lockkeeper_jwt_keys_failed", Count, "1 while new `[auth.jwt]` keys cannot be had; the log has the cause"),
        counter("lockkeeper_zookeeper_connections_refused_total", Count, "by `bound`: `all`, `address`"),
        counter("lockkeeper_zookeeper_frames_refused_total", Count, "clients cut off by `why`: `too_long` (`zookeeper.max_frame_bytes`), `malformed`, `tls` (to a plain port)"),
        counter("lockkeeper_zookeeper_held_back_total", Count, "changes that waited: too many waited here"),
        counter("lockkeeper_zookeeper_overruns_total", Count, "clients cut off: too much unread"),
    ]),
];

fn all() -> impl Iterator<Item = &'static Metric> {
    TABLE.iter().flat_map(|(_, metrics)| *metrics)
}

/// The row of a metric.
pub(crate) fn find(name: &str) -> Option<&'static Metric> {
    all().find(|metric| metric.name == name)
}

/// Describes every metric to the recorder.
pub(crate) fn describe() {
    for Metric { name, kind, unit, help } in all() {
        match kind {
            Kind::Counter => describe_counter!(*name, *unit, *help),
            Kind::Gauge => describe_gauge!(*name, *unit, *help),
            Kind::Histogram => describe_histogram!(*name, *unit, *help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Writes the reference of `docs/monitoring.md` anew.
    const RENEW: &str = "UPDATE=1 cargo test --workspace --lib reference";

    fn reference() -> String {
        let row = |metric: &Metric| {
            let kind = if metric.kind == Kind::Histogram { "histogram: " } else { "" };
            format!("| `{}` | {kind}{} |\n", metric.name, metric.help)
        };
        let section = |(title, metrics): &(&str, &[Metric])| {
            let rows: String = metrics.iter().map(row).collect();
            format!("### {title}\n| metric | meaning |\n|---|---|\n{rows}\n")
        };
        TABLE.iter().map(section).collect()
    }

    #[test]
    fn the_documentation_has_this_reference() {
        let begin = "<!-- metrics: generated from crates/server/src/metric_table.rs -->\n";
        let end = "<!-- end of the metrics -->";
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring.md");
        let text = std::fs::read_to_string(page).unwrap();
        let (before, rest) = text.split_once(begin).unwrap();
        let (there, after) = rest.split_once(end).unwrap();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(page, format!("{before}{begin}{}{end}{after}", reference())).unwrap();
            return;
        }
        assert_eq!(there, reference(), "docs/monitoring.md is stale; renew it: {RENEW}");
    }

    #[test]
    fn names_are_unique_and_say_kind_and_unit() {
        let mut names = BTreeSet::new();
        for Metric { name, kind, unit, .. } in all() {
            assert!(names.insert(name), "{name} has two rows");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let has = |suffix: &str| name.trim_end_matches("_total").ends_with(suffix);
            assert_eq!((has("_seconds"), has("_ms")), (*unit == Seconds, *unit == Milliseconds), "{name}");
            assert!(*unit != Bytes || name.contains("_bytes"), "{name}");
        }
    }
}
