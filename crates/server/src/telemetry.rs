//! Telemetry: the log on standard error and the metrics under `/metrics`, which `metric_table` names.

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use lockkeeper_config::{Log, LogFormat, log_filter};
use lockkeeper_http::WriteMetrics;
use lockkeeper_service::context::Context;
use lockkeeper_service::throttle::ThrottleCount;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use crate::exposition::Exposition;
use crate::log_lines::{LineFormat, MakeLineWriter, RateLimit};
use crate::metric_table;
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
            metric_table::describe();
            Some(handle)
        })
        .clone()
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
    let clock = std::time::Duration::from_millis(context.node.clock_ms());
    text.set("lockkeeper_cluster_clock_seconds", clock.as_secs_f64());
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
    text.set_all("lockkeeper_namespace_requests_delayed_total", series(|counted| counted.delayed));
    text.set_all("lockkeeper_namespace_requests_refused_total", series(|counted| counted.refused));
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
    text.set_all("lockkeeper_namespace_used", uses);
    text.set_all("lockkeeper_namespace_limit", most);
}
