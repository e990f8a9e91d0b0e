//! The span of a traced request's wait for a lock, with links to the requests that it waits for.

use lockkeeper_core::lock::parse_request;
use lockkeeper_core::{FencingToken, LockName, NodePath, Standing, State, TraceContext};

use crate::traces::{MAX_LINKS, TraceSpan, Traces};

/// Most holders to which a wait links at a time.
const MAX_HOLDERS: usize = 8;

/// The requests that another one waits for.
pub(crate) struct RequestsAhead {
    /// The nearest one. A request for a permit has none: it waits for any holder.
    blocker: Option<FencingToken>,
    /// The first of those that hold.
    holders: Vec<FencingToken>,
}

impl RequestsAhead {
    pub(crate) fn of(state: &State, lock: &LockName, blocker: &NodePath) -> Self {
        let node = state.get(blocker).filter(|_| parse_request(blocker.name()).is_some());
        let holding =
            state.lock(lock).into_iter().flat_map(|view| view.requests()).map_while(|request| match request.standing {
                Standing::Holds { token } => Some(token),
                Standing::Waits { .. } | Standing::Gone => None,
            });
        Self { blocker: node.map(|node| FencingToken(node.stat.czxid.0)), holders: holding.take(MAX_HOLDERS).collect() }
    }
}

/// See the module's text. Without an outcome, the caller went away.
pub(crate) struct WaitSpan {
    request: Option<TraceContext>,
    token: FencingToken,
    /// Begun with the wait: a request that holds at once has none.
    span: Option<Box<dyn TraceSpan>>,
    linked: Vec<FencingToken>,
}

impl WaitSpan {
    pub(crate) fn new(request: Option<TraceContext>, token: FencingToken) -> Self {
        Self { request, token, span: None, linked: Vec::new() }
    }

    /// The request waits for these. Links to each of them that is recorded, once.
    pub(crate) fn wait_behind(&mut self, traces: &Traces, ahead: Option<RequestsAhead>) {
        let (Some(request), Some(RequestsAhead { blocker, holders })) = (self.request, ahead) else { return };
        if self.span.is_none() {
            self.span = self.begin(traces, request, blocker);
        }
        let Some(span) = &mut self.span else { return };
        for token in blocker.into_iter().chain(holders) {
            if self.linked.len() < MAX_LINKS
                && !self.linked.contains(&token)
                && let Some(trace) = traces.of_request(token)
            {
                span.link(trace);
                self.linked.push(token);
            }
        }
    }

    fn begin(
        &self,
        traces: &Traces,
        request: TraceContext,
        blocker: Option<FencingToken>,
    ) -> Option<Box<dyn TraceSpan>> {
        let mut span = traces.begin("lockkeeper.wait", request, &[])?;
        span.set("lockkeeper.token", self.token.0.into());
        if let Some(FencingToken(blocker)) = blocker {
            span.set("lockkeeper.blocker.token", blocker.into());
        }
        Some(span)
    }

    pub(crate) fn end(self, outcome: &'static str) {
        if let Some(mut span) = self.span {
            span.set("lockkeeper.outcome", outcome.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::traces::tests::{Recorder, trace};

    fn ahead(blocker: Option<u64>, holders: &[u64]) -> Option<RequestsAhead> {
        let holders = holders.iter().map(|token| FencingToken(*token)).collect();
        Some(RequestsAhead { blocker: blocker.map(FencingToken), holders })
    }

    #[test]
    fn each_new_request_ahead_is_linked_once() {
        let recorder = Recorder::default();
        let traces = Traces::new(Some(Arc::new(recorder.clone())), 0);
        for token in [1, 2, 3, 5] {
            traces.note_request(FencingToken(token.into()), trace(token));
        }
        let mut span = WaitSpan::new(Some(trace(9)), FencingToken(9));
        span.wait_behind(&traces, ahead(Some(3), &[1, 2]));
        span.wait_behind(&traces, ahead(Some(3), &[2]));
        // Nobody recorded request 4.
        span.wait_behind(&traces, ahead(Some(5), &[4]));
        span.wait_behind(&traces, ahead(None, &[5]));
        span.end("granted");
        let [wait] = &recorder.named("lockkeeper.wait")[..] else { panic!() };
        assert_eq!(wait.links, [3, 1, 2, 5].map(trace));
        assert_eq!((wait.outcome.clone(), wait.ended), (Some("granted".into()), true));
    }

    #[test]
    fn links_are_bounded() {
        let recorder = Recorder::default();
        let traces = Traces::new(Some(Arc::new(recorder.clone())), 0);
        (1..=100).for_each(|token| traces.note_request(FencingToken(token), trace(1)));
        let mut span = WaitSpan::new(Some(trace(9)), FencingToken(999));
        (1..=100).for_each(|token| span.wait_behind(&traces, ahead(Some(token), &[])));
        assert_eq!(recorder.named("lockkeeper.wait")[0].links.len(), MAX_LINKS);
    }

    #[test]
    fn a_request_that_is_not_recorded_has_no_span() {
        let recorder = Recorder::default();
        let traces = Traces::new(Some(Arc::new(recorder.clone())), 0);
        WaitSpan::new(None, FencingToken(9)).wait_behind(&traces, ahead(Some(3), &[]));
        assert!(recorder.named("lockkeeper.wait").is_empty());
    }
}
