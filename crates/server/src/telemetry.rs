//! Telemetry: the log on standard error and the metrics under `/metrics`.
//!
//! Every metric of every crate is described here, in one place, with its unit. A label takes only values from a fixed
//! set (route patterns, methods, codes): nothing that a client chooses ever becomes a label, but for the namespaces of
//! locks in `queue_age`, whose number is bounded.

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use lockkeeper_config::{Log, LogFormat, log_filter};
use lockkeeper_http::WriteMetrics;
use lockkeeper_service::context::Context;
use lockkeeper_service::throttle::ThrottleCount;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use crate::exposition::{Exposition, Kind};
use crate::log_lines::{LineFormat, MakeLineWriter, RateLimit};
use crate::process_metrics;
use crate::queue_age::QueueAge;

pub use crate::process_metrics::note_commit;

/// Latencies in seconds, from a loopback reply to a client that waits for a lock.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    600.0,
];
/// Sizes: commands in a batch and the like.
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

fn line_format(format: LogFormat, has_colours: bool) -> LineFormat {
    match format {
        LogFormat::Json => LineFormat::Json,
        LogFormat::Auto if has_colours => LineFormat::Colour,
        LogFormat::Auto | LogFormat::Text => LineFormat::Text,
    }
}

/// Sends the log to standard error. For the process that runs the node, once; a second call does nothing.
pub fn install_logging(log: &Log) {
    let filter = log_filter(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let form = line_format(log.format, std::io::stderr().is_terminal() && !no_colour);
    let lines = fmt::layer().with_writer(MakeLineWriter::new(std::io::stderr, form));
    let lines = match form {
        LineFormat::Json => lines.json().flatten_event(true).boxed(),
        LineFormat::Colour | LineFormat::Text => lines.with_ansi(form == LineFormat::Colour).boxed(),
    };
    let installed = tracing_subscriber::registry().with(filter).with(RateLimit::default()).with(lines).try_init();
    if installed.is_err() {
        tracing::debug!("the log is installed already");
    }
}

/// The process's recorder; all nodes of one process share it.
pub(crate) fn metrics_handle() -> Option<PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
                .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_commands".into()), COUNTS))
                .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_records".into()), COUNTS))
                .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_batches_in_flight".into()), COUNTS))
                .map(PrometheusBuilder::build_recorder)
                .ok()?;
            let handle = recorder.handle();
            // The recorder of a program that embeds the node is served by that program.
            metrics::set_global_recorder(recorder).ok()?;
            describe();
            Some(handle)
        })
        .clone()
}

fn describe() {
    describe_requests();
    describe_tls();
    describe_gauge!(
        "lockkeeper_super_user",
        Unit::Count,
        "1 while admin.super_digest is set: its user may do everything."
    );
    describe_gauge!(
        "lockkeeper_last_backup_timestamp_seconds",
        Unit::Seconds,
        "When a client last received a whole backup from this node, in seconds since 1970; none since its start: absent."
    );
    describe_state();
    describe_replication();
    describe_zookeeper();
}

fn describe_zookeeper() {
    describe_gauge!("lockkeeper_zookeeper_connections", Unit::Count, "Open connections of ZooKeeper's clients.");
    describe_counter!(
        "lockkeeper_zookeeper_connections_refused_total",
        Unit::Count,
        "Connections of ZooKeeper's clients over the cap, by which one: all, or one address."
    );
    describe_counter!(
        "lockkeeper_zookeeper_requests_total",
        Unit::Count,
        "Requests of ZooKeeper's clients by operation."
    );
    describe_counter!(
        "lockkeeper_zookeeper_frames_refused_total",
        Unit::Count,
        "Connections of ZooKeeper's clients that were closed for what they sent, by why: too_long, malformed, tls."
    );
    describe_counter!("lockkeeper_zookeeper_events_total", Unit::Count, "Watch events sent to ZooKeeper's clients.");
    describe_counter!(
        "lockkeeper_zookeeper_held_back_total",
        Unit::Count,
        "How often a change of a ZooKeeper client was held back because too many waited at this node."
    );
    describe_counter!(
        "lockkeeper_zookeeper_ahead_total",
        Unit::Count,
        "ZooKeeper clients that were sent to another node because they had seen more than this replica has."
    );
    describe_counter!(
        "lockkeeper_zookeeper_overruns_total",
        Unit::Count,
        "Connections of ZooKeeper's clients that were cut off because they left too much unread."
    );
}

fn describe_requests() {
    describe_counter!(
        "lockkeeper_http_requests_total",
        Unit::Count,
        "Requests of clients by route, method, status and code."
    );
    describe_histogram!(
        "lockkeeper_http_request_duration_seconds",
        Unit::Seconds,
        "From the header's arrival to the reply, by route and method."
    );
    describe_counter!(
        "lockkeeper_http_requests_abandoned_total",
        Unit::Count,
        "Requests whose client went away before the reply."
    );
    describe_gauge!(
        "lockkeeper_http_requests_in_flight",
        Unit::Count,
        "Requests of clients at work or waiting for a lock."
    );
    describe_gauge!("lockkeeper_http_connections", Unit::Count, "Open connections by listener.");
    describe_counter!(
        "lockkeeper_http_connections_refused_total",
        Unit::Count,
        "Connections over the cap, by listener."
    );
    describe_counter!(
        "lockkeeper_http_connections_made_way_total",
        Unit::Count,
        "Idle connections that were closed for others, by listener."
    );
    describe_counter!(
        "lockkeeper_http_connections_cut_total",
        Unit::Count,
        "Connections cut off for silence, by reason."
    );
    describe_gauge!("lockkeeper_streams", Unit::Count, "Open session streams.");
    describe_counter!("lockkeeper_streams_ended_total", Unit::Count, "Session streams that ended, by reason.");
    describe_counter!(
        "lockkeeper_stream_messages_received_total",
        Unit::Count,
        "Messages that arrived on session streams, by kind."
    );
    describe_counter!(
        "lockkeeper_stream_messages_sent_total",
        Unit::Count,
        "Messages sent on session streams: answers, changes, lost locks."
    );
    describe_counter!(
        "lockkeeper_stream_flushes_total",
        Unit::Count,
        "Writes to session streams; each carries all that was ready."
    );
    describe_gauge!("lockkeeper_budget_used", Unit::Count, "What is taken of each budget of this node.");
    describe_gauge!("lockkeeper_budget_limit", Unit::Count, "The bound of each budget, as configured.");
    describe_counter!(
        "lockkeeper_budget_refusals_total",
        Unit::Count,
        "Refusals by budget, and whose share was used up: all, address, session."
    );
    describe_counter!("lockkeeper_gate_outcomes_total", Unit::Count, "What gates answered, by outcome.");
    describe_counter!(
        "lockkeeper_rate_permits_total",
        Unit::Count,
        "Permits of rate limits at this node, by outcome: granted to a caller, leased ahead, lapsed without a caller."
    );
    describe_counter!(
        "lockkeeper_rate_requests_refused_total",
        Unit::Count,
        "Requests for permits of rate limits that were not there."
    );
    describe_counter!("lockkeeper_peer_rejections_total", Unit::Count, "Peer calls turned away at the gate, by code.");
}

fn describe_tls() {
    describe_gauge!(
        "lockkeeper_certificate_expiry_seconds",
        Unit::Seconds,
        "Until the certificate of a listener expires, by listener; negative once it has."
    );
    describe_gauge!(
        "lockkeeper_tls_reload_failed",
        Unit::Count,
        "1 while a file of a listener's TLS cannot be used and its former content is, by listener."
    );
    describe_counter!(
        "lockkeeper_tls_handshakes_failed_total",
        Unit::Count,
        "Connections that were turned away at their TLS handshake, by listener and reason."
    );
}

fn describe_state() {
    describe_counter!(
        "lockkeeper_audit_write_failures_total",
        Unit::Count,
        "Audit records that could not be written to audit.file; the log has them."
    );
    describe_counter!("lockkeeper_spans_sent_total", Unit::Count, "Spans that the collector of [otlp] has taken.");
    describe_counter!(
        "lockkeeper_spans_dropped_total",
        Unit::Count,
        "Spans that were dropped, by reason: queue_full, not_sent, rejected, shutdown."
    );
    describe_counter!(
        "lockkeeper_log_lines_left_out_total",
        Unit::Count,
        "Lines of the log that were left out because too many of their kind came at once."
    );
    describe_gauge!(
        "lockkeeper_whole_session_tables",
        Unit::Count,
        "On the leader: voters, itself included, that know when each session was last heard of; without a majority \
         of them a new leader gives every session its full timeout."
    );
    describe_gauge!("lockkeeper_sessions", Unit::Count, "Open sessions of the cluster.");
    describe_gauge!("lockkeeper_nodes", Unit::Count, "Nodes of the tree.");
    describe_gauge!("lockkeeper_ephemerals", Unit::Count, "Ephemeral nodes of the tree.");
    describe_gauge!(
        "lockkeeper_state_bytes",
        Unit::Bytes,
        "What the replicated state takes in memory, as every replica counts it."
    );
    describe_gauge!("lockkeeper_state_bytes_limit", Unit::Bytes, "How large it may grow (limits.state_mib).");
    describe_gauge!("lockkeeper_alarms", Unit::Count, "What an operator has to see to; /v1/cluster says what.");
    describe_counter!("lockkeeper_slow_applies_total", Unit::Count, "Log entries that took more than 20 ms to apply.");
    describe_gauge!("lockkeeper_watches", Unit::Count, "Watches registered at this node.");
    describe_counter!("lockkeeper_sessions_ended_total", Unit::Count, "Sessions that ended, by cause.");
    describe_counter!(
        "lockkeeper_watches_lost_total",
        Unit::Count,
        "Watches that were cut off because their listener was too slow or history was skipped."
    );
    describe_gauge!("lockkeeper_lock_waiters", Unit::Count, "Lock requests that wait at this node.");
    describe_gauge!("lockkeeper_zxid", Unit::Count, "Last zxid applied.");
    describe_gauge!("lockkeeper_ready", Unit::Count, "1 if the node has a leader and is caught up.");
    describe_counter!(
        "lockkeeper_lock_releases_total",
        Unit::Count,
        "Lock requests that left a queue: releases, withdrawals, ended sessions."
    );
    describe_counter!(
        "lockkeeper_lock_notifications_total",
        Unit::Count,
        "Waiters woken at this node; over the cluster one per release."
    );
    describe_histogram!(
        "lockkeeper_lock_wait_seconds",
        Unit::Seconds,
        "From a lock request to its grant, at this node."
    );
    describe_counter!(
        "lockkeeper_lock_requests_abandoned_total",
        Unit::Count,
        "Lock requests taken out of their queue because their caller had gone."
    );
    describe_counter!(
        "lockkeeper_delayed_requests_total",
        Unit::Count,
        "Lock requests behind many others that waited for another command, by how that ended."
    );
    describe_counter!("lockkeeper_forced_releases_total", Unit::Count, "Locks taken from their holders by force.");
}

fn describe_replication() {
    describe_gauge!("lockkeeper_term", Unit::Count, "Raft term.");
    describe_gauge!("lockkeeper_is_leader", Unit::Count, "1 if this node leads and a majority answers it.");
    describe_gauge!(
        "lockkeeper_synced_followers",
        Unit::Count,
        "At the leader: other voters that answer and whose log lacks little. Where they are half of \
         lockkeeper_voters, rounded down, one more loss is an outage. 0 at other nodes."
    );
    describe_gauge!(
        "lockkeeper_admitted",
        Unit::Count,
        "1 if a majority has found this node's data directory in order; before that it does not take part."
    );
    describe_gauge!(
        "lockkeeper_peers_turned_away",
        Unit::Count,
        "Members that this node turns away because their data directory lacks what they acknowledged, or runs twice. \
         GET /v1/cluster says why."
    );
    describe_counter!(
        "lockkeeper_peers_turned_away_total",
        Unit::Count,
        "Data directories of peers that this node found to be older copies, clones or wiped, by code."
    );
    describe_gauge!("lockkeeper_voters", Unit::Count, "Members that vote.");
    describe_gauge!("lockkeeper_learners", Unit::Count, "Members that do not vote yet.");
    describe_gauge!("lockkeeper_fronts", Unit::Count, "Front nodes, which never vote.");
    describe_gauge!(
        "lockkeeper_synced_fronts",
        Unit::Count,
        "At the leader: front nodes that answer and whose log lacks little. 0 at other nodes."
    );
    describe_gauge!("lockkeeper_is_front", Unit::Count, "1 if this node is a front node.");
    describe_gauge!(
        "lockkeeper_feature_level",
        Unit::Count,
        "The cluster's feature level, as far as applied here: what the programs of all members can read."
    );
    describe_gauge!(
        "lockkeeper_supported_feature_level",
        Unit::Count,
        "The highest feature level that this node announces: what it supports, and cluster.max_feature_level allows."
    );
    describe_gauge!("lockkeeper_applied_index", Unit::Count, "Last log index applied.");
    describe_gauge!(
        "lockkeeper_clock_skew_ms",
        Unit::Milliseconds,
        "How far this machine's wall clock is ahead of the cluster's clock; negative if it is behind."
    );
    describe_gauge!("lockkeeper_purged_log_index", Unit::Count, "Log index up to which the log is cut.");
    describe_gauge!("lockkeeper_last_log_index", Unit::Count, "Last log index stored.");
    describe_counter!("lockkeeper_elections_total", Unit::Count, "Changes of leader or term seen by this node.");
    describe_counter!(
        "lockkeeper_fast_elections_total",
        Unit::Count,
        "Elections called because the leader's process was found dead or did not answer."
    );
    describe_counter!(
        "lockkeeper_peer_messages_refused_total",
        Unit::Count,
        "Requests, proposals and answers of peers refused as impossible (terms, indexes, entries that cannot be \
         read), by kind."
    );
    describe_counter!("lockkeeper_proposals_total", Unit::Count, "Batches proposed by this node.");
    describe_histogram!(
        "lockkeeper_proposal_seconds",
        Unit::Seconds,
        "From a batch's proposal here until the leader has applied it."
    );
    describe_histogram!("lockkeeper_batches_in_flight", Unit::Count, "Batches in flight when one more is sent.");
    describe_histogram!("lockkeeper_batch_commands", Unit::Count, "Commands in a proposed batch.");
    describe_histogram!("lockkeeper_apply_seconds", Unit::Seconds, "Time to apply a log entry.");
    describe_histogram!(
        "lockkeeper_read_round_seconds",
        Unit::Seconds,
        "A round that makes the reads waiting for it linearizable."
    );
    describe_histogram!(
        "lockkeeper_store_sync_seconds",
        Unit::Seconds,
        "One barrier of the store: flush and data sync."
    );
    describe_histogram!("lockkeeper_store_batch_records", Unit::Count, "Log records made durable by one barrier.");
    describe_gauge!("lockkeeper_store_free_bytes", Unit::Bytes, "Free bytes of the data directory's disk.");
    describe_gauge!("lockkeeper_store_log_entries", Unit::Count, "Entries in the log.");
    describe_histogram!("lockkeeper_snapshot_seconds", Unit::Seconds, "Time to write a snapshot.");
}

/// What `/metrics` shows of a node; `None` where another program's recorder has the metrics.
pub(crate) fn metrics_of(context: Arc<Context>) -> Option<WriteMetrics> {
    let (handle, queue_age) = (metrics_handle()?, QueueAge::default());
    Some(Arc::new(move || {
        set_gauges(&context);
        handle.render() + &on_demand(&context, &queue_age)
    }))
}

/// Sets the gauges that are read on demand.
fn set_gauges(context: &Context) {
    let status = context.node.status();
    let set = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    set("lockkeeper_sessions", status.sessions as u64);
    set("lockkeeper_nodes", status.nodes as u64);
    set("lockkeeper_ephemerals", status.ephemerals as u64);
    set("lockkeeper_state_bytes", status.state_bytes);
    set("lockkeeper_state_bytes_limit", status.state_bytes_limit);
    set("lockkeeper_alarms", status.alarms.len() as u64);
    set("lockkeeper_watches", status.watches as u64);
    set("lockkeeper_zxid", status.zxid.0);
    set("lockkeeper_ready", u64::from(status.ready));
    set("lockkeeper_synced_followers", status.consensus.synced_voters() as u64);
    set("lockkeeper_admitted", u64::from(status.consensus.not_admitted_because.is_none()));
    set("lockkeeper_peers_turned_away", status.consensus.turned_away.len() as u64);
    let members = &status.consensus.members;
    set("lockkeeper_voters", members.voters.len() as u64);
    set("lockkeeper_learners", members.learners.len() as u64);
    set("lockkeeper_fronts", members.fronts.len() as u64);
    set("lockkeeper_synced_fronts", status.consensus.synced_fronts() as u64);
    set("lockkeeper_is_front", u64::from(members.fronts.contains_key(&status.consensus.node)));
    set("lockkeeper_feature_level", status.feature_level.0.into());
    let supported = status.consensus.feature_levels.get(&status.consensus.node);
    set("lockkeeper_supported_feature_level", supported.copied().unwrap_or_default().into());
    set("lockkeeper_applied_index", status.consensus.applied.map_or(0, |applied| applied.index));
    set("lockkeeper_purged_log_index", status.consensus.purged.map_or(0, |purged| purged.index));
    set("lockkeeper_last_log_index", status.consensus.last_log.unwrap_or_default());
    set("lockkeeper_http_requests_in_flight", context.admission.in_flight() as u64);
    context.admission.show();
}

/// The metrics that the recorder does not keep.
fn on_demand(context: &Context, queue_age: &QueueAge) -> String {
    let mut text = Exposition::default();
    let help = "The cluster's clock as this node knows it, in seconds since 1970; 0 while the cluster has no time.";
    let clock = std::time::Duration::from_millis(context.node.clock_ms());
    text.set("lockkeeper_cluster_clock_seconds", Kind::Gauge, help, clock.as_secs_f64());
    queue_age.add(&mut text, &context.node);
    context.node.look(|state| {
        add_namespaces(&mut text, state);
        add_throttled(&mut text, &context.admission.throttle.counts(state));
    });
    process_metrics::add(&mut text);
    text.into_text()
}

fn add_throttled(text: &mut Exposition, counts: &[ThrottleCount]) {
    let series = |count: fn(&ThrottleCount) -> u64| {
        let counted = counts.iter().map(move |counted| (&*counted.namespace, count(counted)));
        counted.filter(|(_, count)| *count > 0).map(|(name, count)| (vec![("namespace", name)], count as f64))
    };
    let delayed = "Requests above the rate of their namespace that waited for their turn at this node.";
    let refused = "Requests refused at this node because too many of their namespace waited for their turn.";
    let kind = Kind::Counter;
    text.set_all("lockkeeper_namespace_requests_delayed_total", kind, delayed, series(|counted| counted.delayed));
    text.set_all("lockkeeper_namespace_requests_refused_total", kind, refused, series(|counted| counted.refused));
}

/// Only the namespaces that have limits have series, and keep them for as long.
fn add_namespaces(text: &mut Exposition, state: &lockkeeper_core::State) {
    let (mut uses, mut most) = (Vec::new(), Vec::new());
    for (name, namespace, used) in state.namespaces() {
        let limits = &namespace.limits;
        for (resource, used, limit) in [
            ("sessions", used.sessions, limits.sessions),
            ("lock_requests", used.lock_requests, limits.lock_requests),
            ("nodes", used.nodes, limits.nodes),
            ("bytes", used.bytes, limits.bytes),
        ] {
            let labels = vec![("namespace", name), ("resource", resource)];
            uses.push((labels.clone(), used as f64));
            // Without a limit, as much as there could be.
            most.push((labels, limit.map_or(f64::INFINITY, |limit| limit as f64)));
        }
    }
    let help = "What each namespace with limits uses, by resource.";
    text.set_all("lockkeeper_namespace_used", Kind::Gauge, help, uses);
    text.set_all("lockkeeper_namespace_limit", Kind::Gauge, "Its limit; +Inf if there is none.", most);
}
