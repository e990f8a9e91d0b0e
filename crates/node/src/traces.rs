//! The spans of traced requests: what this node does for a request, from the batch that carries it to its application
//! on each replica, and its wait for a lock.
//!
//! Only requests whose caller records them are traced; for all others this costs a look at an `Option`. Spans are begun
//! and ended under the state's lock, so a sink must not wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::{FencingToken, TraceContext};
use parking_lot::Mutex;

/// Records spans. It must not wait, and must not call the node.
pub trait TraceSink: Send + Sync {
    /// Begins a span; it ends when it is dropped.
    fn begin(&self, name: &'static str, parent: TraceContext, links: &[TraceContext]) -> Box<dyn TraceSpan>;
}

/// A span that has begun. Dropping it ends it.
pub trait TraceSpan: Send + Sync {
    /// Its position, for spans below it.
    fn context(&self) -> TraceContext;

    /// Adds an attribute; each key once.
    fn set(&mut self, key: &'static str, value: TraceValue);
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceValue {
    /// A number.
    Number(u64),
    /// A text.
    Text(Cow<'static, str>),
}

impl From<u64> for TraceValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&'static str> for TraceValue {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

/// Most requests whose traces are remembered as targets of links.
const MAX_REQUESTS: usize = 8_192;

/// The sink, and the traces of lock requests, to which waiters behind them link.
#[derive(Default)]
pub(crate) struct Traces {
    sink: Option<Arc<dyn TraceSink>>,
    requests: Mutex<RequestTraces>,
}

impl Traces {
    pub(crate) fn new(sink: Option<Arc<dyn TraceSink>>) -> Self {
        Self { sink, requests: Mutex::default() }
    }

    /// Begins a span, if there is a sink.
    pub(crate) fn begin(
        &self,
        name: &'static str,
        parent: TraceContext,
        links: &[TraceContext],
    ) -> Option<Box<dyn TraceSpan>> {
        self.sink.as_ref().map(|sink| sink.begin(name, parent, links))
    }

    /// Remembers the trace of the lock request that got this token.
    pub(crate) fn note_request(&self, token: FencingToken, trace: TraceContext) {
        if self.sink.is_some() {
            self.requests.lock().insert(token, trace, MAX_REQUESTS);
        }
    }

    /// The trace of the lock request with this token, if it is recorded and known here.
    pub(crate) fn of_request(&self, token: FencingToken) -> Option<TraceContext> {
        self.requests.lock().0.get(&token).copied()
    }
}

/// The traces of the latest lock requests, by token.
#[derive(Debug, Default)]
struct RequestTraces(BTreeMap<FencingToken, TraceContext>);

impl RequestTraces {
    fn insert(&mut self, token: FencingToken, trace: TraceContext, most: usize) {
        self.0.insert(token, trace);
        if self.0.len() > most {
            // Tokens never go back, so the lowest one is the oldest.
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_requests_make_way() {
        let mut requests = RequestTraces::default();
        let trace = |number| TraceContext { trace_id: [number; 16], span_id: [1; 8], flags: 1 };
        for number in [1, 3, 2, 4] {
            requests.insert(FencingToken(number.into()), trace(number), 3);
        }
        assert_eq!(requests.0.keys().map(|token| token.0).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(requests.0[&FencingToken(3)], trace(3));
    }

    #[test]
    fn without_a_sink_nothing_is_kept() {
        let (traces, trace) = (Traces::default(), TraceContext { trace_id: [1; 16], span_id: [1; 8], flags: 1 });
        traces.note_request(FencingToken(1), trace);
        assert_eq!(traces.of_request(FencingToken(1)), None);
        assert!(traces.begin("a", trace, &[]).is_none());
    }
}
