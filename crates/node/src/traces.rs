//! The spans of traced requests: what this node does for a request, from the batch that carries it to its application
//! on each replica, and its wait for a lock.
//!
//! Only requests whose caller records them are traced; for all others this costs a look at an `Option`. Spans are begun
//! and ended under the state's lock, so a sink must not wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::{FencingToken, MAX_TRACED_REQUESTS, TraceContext};
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

    /// Adds a link to another span. A span has at most [`MAX_LINKS`]; further ones have no effect.
    fn link(&mut self, to: TraceContext);
}

/// Most links of a span.
pub const MAX_LINKS: usize = MAX_TRACED_REQUESTS;

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

/// Entries of the log that are older are applied without spans: this node catches up, and the others had theirs when
/// they were new.
const RECENT_MS: u64 = 60_000;

/// Most requests whose traces are remembered as targets of links.
const MAX_REQUESTS: usize = 8_192;

/// The sink, and the traces of lock requests, to which waiters behind them link.
#[derive(Default)]
pub(crate) struct Traces {
    sink: Option<Arc<dyn TraceSink>>,
    /// The last entry of the log when this node started. Up to there it repeats what it did before.
    repeated: u64,
    requests: Mutex<RequestTraces>,
}

impl Traces {
    /// `repeated` is the last entry of the log at the start.
    pub(crate) fn new(sink: Option<Arc<dyn TraceSink>>, repeated: u64) -> Self {
        Self { sink, repeated, requests: Mutex::default() }
    }

    /// Whether the application of the entry at this index is recorded: it is not repeated at a start.
    pub(crate) fn is_first(&self, index: u64) -> bool {
        index > self.repeated
    }

    /// Whether an entry of that time is recorded at this one: it is not caught up with.
    pub(crate) fn is_recent(clock_ms: u64, now_ms: u64) -> bool {
        clock_ms.saturating_add(RECENT_MS) >= now_ms
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
pub(crate) mod tests {
    use super::*;

    /// A span as a sink was told of it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Recorded {
        pub(crate) name: &'static str,
        pub(crate) parent: TraceContext,
        pub(crate) context: TraceContext,
        pub(crate) links: Vec<TraceContext>,
        pub(crate) outcome: Option<TraceValue>,
        pub(crate) ended: bool,
    }

    /// Keeps the spans.
    #[derive(Clone, Default)]
    pub(crate) struct Recorder(Arc<Mutex<Vec<Recorded>>>);

    impl Recorder {
        pub(crate) fn named(&self, name: &str) -> Vec<Recorded> {
            self.0.lock().iter().filter(|span| span.name == name).cloned().collect()
        }
    }

    impl TraceSink for Recorder {
        fn begin(&self, name: &'static str, parent: TraceContext, links: &[TraceContext]) -> Box<dyn TraceSpan> {
            let mut spans = self.0.lock();
            let number = spans.len();
            let context = TraceContext { span_id: (number as u64 + 1).to_be_bytes(), ..parent };
            spans.push(Recorded { name, parent, context, links: links.to_vec(), outcome: None, ended: false });
            Box::new(RecordedSpan(self.clone(), number))
        }
    }

    struct RecordedSpan(Recorder, usize);

    impl TraceSpan for RecordedSpan {
        fn context(&self) -> TraceContext {
            self.0.0.lock()[self.1].context
        }

        fn set(&mut self, key: &'static str, value: TraceValue) {
            if key == "lockkeeper.outcome" {
                self.0.0.lock()[self.1].outcome = Some(value);
            }
        }

        fn link(&mut self, to: TraceContext) {
            self.0.0.lock()[self.1].links.push(to);
        }
    }

    impl Drop for RecordedSpan {
        fn drop(&mut self) {
            self.0.0.lock()[self.1].ended = true;
        }
    }

    pub(crate) fn trace(number: u8) -> TraceContext {
        TraceContext { trace_id: [number; 16], span_id: [number; 8], flags: 1 }
    }

    #[test]
    fn the_oldest_requests_make_way() {
        let mut requests = RequestTraces::default();
        for number in [1, 3, 2, 4] {
            requests.insert(FencingToken(number.into()), trace(number), 3);
        }
        assert_eq!(requests.0.keys().map(|token| token.0).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(requests.0[&FencingToken(3)], trace(3));
    }

    #[test]
    fn without_a_sink_nothing_is_kept() {
        let traces = Traces::default();
        traces.note_request(FencingToken(1), trace(1));
        assert_eq!(traces.of_request(FencingToken(1)), None);
        assert!(traces.begin("a", trace(1), &[]).is_none());
    }

    #[test]
    fn what_is_repeated_or_caught_up_with_is_old() {
        let traces = Traces::new(None, 5);
        assert!(!traces.is_first(5) && traces.is_first(6));
        assert!(Traces::is_recent(1_000, 61_000) && !Traces::is_recent(1_000, 61_001));
        assert!(Traces::is_recent(u64::MAX, 0), "the leader's clock is ahead");
    }
}
