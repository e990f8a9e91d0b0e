//! Figures for monitoring tools: requests by operation, latencies, and each connection's last reply.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_zookeeper::{OpCode, RequestHeader};
use metrics::Counter;
use parking_lot::Mutex;

/// Counters of one connection's requests by opcode. Each is looked up in the registry once.
#[derive(Default)]
pub(super) struct RequestCounters(HashMap<i32, Counter>);

impl RequestCounters {
    /// Counts a request. Unknown opcodes share one counter.
    pub(super) fn count(&mut self, header: RequestHeader) {
        let operation = header.operation();
        let number = if operation.is_some() { header.opcode } else { i32::MIN };
        let counter = self.0.entry(number).or_insert_with(|| {
            let name = operation.map_or("unknown", |operation| operation.row().name).to_lowercase();
            metrics::counter!("lockkeeper_zookeeper_requests_total", "operation" => name)
        });
        counter.increment(1);
    }
}

/// Latency of replies since the node started: from a request's last byte to when its reply is queued.
#[derive(Debug)]
pub(super) struct Latency {
    count: AtomicU64,
    sum_us: AtomicU64,
    least_us: AtomicU64,
    most_us: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { count: zero(), sum_us: zero(), least_us: AtomicU64::new(u64::MAX), most_us: zero() }
    }
}

impl Latency {
    pub(super) fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.least_us.fetch_min(us, Ordering::Relaxed);
        self.most_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Least, mean and most, in milliseconds; zeroes before the first reply.
    pub(super) fn ms(&self) -> (u64, f64, u64) {
        match self.count.load(Ordering::Relaxed) {
            0 => (0, 0.0, 0),
            count => (
                self.least_us.load(Ordering::Relaxed) / 1_000,
                self.sum_us.load(Ordering::Relaxed) as f64 / count as f64 / 1_000.0,
                self.most_us.load(Ordering::Relaxed) / 1_000,
            ),
        }
    }
}

/// Counts since the frontend started.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// First frames that were connect requests.
    pub(super) connect_requests: AtomicU64,
    /// Connections closed without a reply: too many from one address, or a client ahead of this replica.
    pub(super) rejected: AtomicU64,
    pub(super) auth_failures: AtomicU64,
    pub(super) bytes_received: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Values under ZooKeeper's names.
    pub(super) fn figures(&self) -> [(&'static str, String); 4] {
        [
            ("zk_connection_request_count", &self.connect_requests),
            ("zk_connection_rejected", &self.rejected),
            ("zk_auth_failed_count", &self.auth_failures),
            ("zk_bytes_received_count", &self.bytes_received),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed).to_string()))
    }
}

/// A connection's last reply, as the command `cons` shows it.
#[derive(Debug)]
pub(super) struct LastReply {
    pub(super) latency: Latency,
    zxid: AtomicI64,
    operation: Mutex<Operation>,
}

/// The operation that was answered last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// ZooKeeper's abbreviation.
    pub(super) name: &'static str,
    /// The latest xid that the client chose; pings, setWatches and auth have reserved ones.
    pub(super) xid: Option<i32>,
    pub(super) took_ms: u64,
    /// When it was answered, in milliseconds since the frontend started.
    pub(super) at_ms: u64,
}

impl Default for LastReply {
    fn default() -> Self {
        let operation = Operation { name: "NA", xid: None, took_ms: 0, at_ms: 0 };
        Self { latency: Latency::default(), zxid: AtomicI64::new(-1), operation: Mutex::new(operation) }
    }
}

impl LastReply {
    pub(super) fn set_zxid(&self, zxid: i64) {
        self.zxid.store(zxid, Ordering::Relaxed);
    }

    pub(super) fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, (opcode, xid): (i32, i32), took: Duration, since_start: Duration) {
        self.latency.record(took);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let name = OpCode::from_number(opcode).map_or("NA", |operation| operation.row().abbreviation);
        let mut operation = self.operation.lock();
        let xid = if xid >= 0 { Some(xid) } else { operation.xid };
        *operation = Operation { name, xid, took_ms: ms(took), at_ms: ms(since_start) };
    }

    pub(super) fn operation(&self) -> Operation {
        *self.operation.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_least_mean_and_most() {
        let latency = Latency::default();
        assert_eq!(latency.ms(), (0, 0.0, 0));
        for ms in [3, 1, 8] {
            latency.record(Duration::from_millis(ms));
        }
        assert_eq!(latency.ms(), (1, 4.0, 8));
    }

    #[test]
    fn pings_leave_the_number_of_the_last_request() {
        let last = LastReply::default();
        assert_eq!((last.operation().name, last.operation().xid, last.zxid()), ("NA", None, -1));
        last.record((4, 7), Duration::from_millis(3), Duration::from_secs(1));
        last.record((11, -2), Duration::from_millis(1), Duration::from_secs(2));
        let Operation { name, xid, took_ms, at_ms } = last.operation();
        assert_eq!((name, xid, took_ms, at_ms), ("PING", Some(7), 1, 2_000));
        assert_eq!(last.latency.ms(), (1, 2.0, 3));
    }
}
