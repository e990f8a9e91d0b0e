//! Clients that create nodes of the tree, one after the other, and what was acknowledged to them.

use lockkeeper_api::Data;

use crate::http::CALL_WITHIN;
use crate::proofs::prelude::*;

/// After a call that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(10);

/// How they write.
#[derive(Clone)]
pub(super) struct Writing {
    /// The names of the nodes are sequential and begin so.
    pub(super) prefix: String,
    /// Clients at each node of the cluster.
    pub(super) at_each: usize,
    /// How long a call may take.
    pub(super) within: Duration,
    /// The pause between two calls.
    pub(super) every: Duration,
    /// The data of a client's nodes, by number.
    pub(super) data: fn(usize) -> Data,
}

impl Writing {
    /// So many clients at each node, which do not pause and write nodes without data.
    pub(super) fn of(prefix: &str, at_each: usize) -> Self {
        let (within, every) = (CALL_WITHIN, Duration::ZERO);
        Self { prefix: prefix.to_owned(), at_each, within, every, data: |_| Data::default() }
    }
}

/// An acknowledged write.
#[derive(Clone)]
pub(super) struct TimedWrite {
    at: u64,
    sent: Instant,
    received: Instant,
    pub(super) path: String,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Writers {
    nodes: Vec<u64>,
    seen: Arc<SeenByWriters>,
    tasks: Tasks<()>,
}

#[derive(Default)]
struct SeenByWriters {
    written: Mutex<Vec<TimedWrite>>,
    failures: Mutex<Vec<String>>,
}

impl Writers {
    /// Starts them at these nodes of the cluster.
    pub(super) fn start(nodes: &[(u64, Api)], writing: &Writing) -> Self {
        let mut writers = Self { nodes: nodes.iter().map(|(id, _)| *id).collect(), ..Self::default() };
        for (id, api) in nodes {
            for _ in 0..writing.at_each {
                let (api, writing, seen) = (api.clone(), writing.clone(), Arc::clone(&writers.seen));
                writers.tasks.start(|stop| write(*id, api, writing, seen, stop));
            }
        }
        writers
    }

    /// Once each node has acknowledged a write that was sent since then: when the last of them did.
    pub(super) fn all_acknowledge(&self, since: Instant) -> Option<Instant> {
        let written = self.seen.written.lock();
        let first = |node: &u64| {
            let later = written.iter().rev().take_while(|write| write.received >= since);
            later.filter(|write| write.at == *node && write.sent >= since).map(|write| write.received).last()
        };
        let firsts: Option<Vec<Instant>> = self.nodes.iter().map(first).collect();
        firsts.map(|firsts| firsts.into_iter().max().unwrap_or(since))
    }

    /// What has failed so far, or has an unknown outcome.
    pub(super) fn failures(&self) -> Vec<String> {
        self.seen.failures.lock().clone()
    }

    /// Ends them. All that was acknowledged, and what has failed.
    pub(super) async fn end(self) -> Result<(Vec<TimedWrite>, Vec<String>), Failed> {
        self.tasks.end().await?;
        let written = std::mem::take(&mut *self.seen.written.lock());
        let failures = std::mem::take(&mut *self.seen.failures.lock());
        Ok((written, failures))
    }
}

async fn write(at: u64, api: Api, writing: Writing, seen: Arc<SeenByWriters>, stop: CancellationToken) {
    for number in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let body = Create { data: (writing.data)(number), sequential: true, ..Create::default() };
        match api.create_within(&writing.prefix, &body, None, writing.within).await {
            Ok(done) => {
                let write = TimedWrite { at, sent: done.sent, received: done.received, path: done.value.path };
                seen.written.lock().push(write);
            }
            Err(failure) => {
                seen.failures.lock().push(format!("create: {failure}"));
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
        if !writing.every.is_zero() {
            tokio::time::sleep(writing.every).await;
        }
    }
}
