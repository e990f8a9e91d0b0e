//! The metrics of all streams, looked up once, so that a message costs one addition.

use std::sync::LazyLock;

use metrics::{Counter, Gauge};

pub(super) struct StreamMetrics {
    streams: Gauge,
    pub(super) requests: Counter,
    pub(super) keepalives: Counter,
    pub(super) other: Counter,
    pub(super) answers: Counter,
    pub(super) changes: Counter,
    pub(super) losses: Counter,
    pub(super) flushes: Counter,
}

static METRICS: LazyLock<StreamMetrics> = LazyLock::new(|| {
    let received = |kind: &'static str| metrics::counter!("lockkeeper_stream_messages_received_total", "kind" => kind);
    let sent = |kind: &'static str| metrics::counter!("lockkeeper_stream_messages_sent_total", "kind" => kind);
    StreamMetrics {
        streams: metrics::gauge!("lockkeeper_streams"),
        requests: received("request"),
        keepalives: received("keepalive"),
        other: received("other"),
        answers: sent("answer"),
        changes: sent("changes"),
        losses: sent("lock_lost"),
        flushes: metrics::counter!("lockkeeper_stream_flushes_total"),
    }
});

pub(super) fn metrics() -> &'static StreamMetrics {
    &METRICS
}

/// Counts a stream until it is dropped.
pub(super) struct Streams;

impl Streams {
    pub(super) fn enter() -> Self {
        METRICS.streams.increment(1);
        Self
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        METRICS.streams.decrement(1);
    }
}

/// A stream has ended.
pub(super) fn ended(why: &'static str) {
    metrics::counter!("lockkeeper_streams_ended_total", "why" => why).increment(1);
}
