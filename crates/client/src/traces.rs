//! The caller's trace: each request carries the context of OpenTelemetry that is active where it is made, and each
//! acquire is a span. The program chooses where its spans go (`opentelemetry::global`); without a choice only the
//! context of the caller travels on.

use std::sync::Arc;

use opentelemetry::trace::{FutureExt as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, Value, global};
use reqwest::header::HeaderValue;

use crate::error::Error;

/// The name under which this library's spans are known.
const SCOPE: &str = "lockkeeper-client";

/// Longest `tracestate` that is passed on, in bytes: what every program must take by the standard.
const MAX_STATE_BYTES: usize = 512;

/// The headers of W3C Trace Context.
#[derive(Debug)]
pub(crate) struct TraceHeaders {
    pub(crate) traceparent: String,
    /// Empty if there is none.
    pub(crate) tracestate: String,
}

/// The headers for the active context, if there is one.
pub(crate) fn current() -> Option<Arc<TraceHeaders>> {
    let context = Context::current();
    let span = context.span();
    let at = span.span_context();
    at.is_valid().then(|| {
        let (trace, span, flags) = (at.trace_id(), at.span_id(), at.trace_flags().to_u8());
        let traceparent = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
        Arc::new(TraceHeaders { traceparent, tracestate: state_of(at) })
    })
}

/// The header `tracestate`; empty where it is too long or no header, because no call may fail for it.
fn state_of(at: &SpanContext) -> String {
    let state = at.trace_state().header();
    let is_good = state.len() <= MAX_STATE_BYTES && HeaderValue::from_str(&state).is_ok();
    if is_good { state } else { String::new() }
}

/// Waits for a grant within a span of its own; `token_of` names the grant's token.
pub(crate) async fn acquire<G>(
    lock: &str,
    token_of: impl Fn(&G) -> u64,
    work: impl Future<Output = Result<Option<G>, Error>>,
) -> Result<Option<G>, Error> {
    let span = global::tracer(SCOPE)
        .span_builder("lockkeeper.acquire")
        .with_kind(SpanKind::Client)
        .with_attributes([KeyValue::new("lockkeeper.lock", lock.to_owned())])
        .start(&global::tracer(SCOPE));
    let context = Context::current_with_span(span);
    let acquired = work.with_context(context.clone()).await;
    let span = context.span();
    let outcome = match &acquired {
        Ok(Some(grant)) => {
            let token = i64::try_from(token_of(grant)).unwrap_or(i64::MAX);
            span.set_attribute(KeyValue::new("lockkeeper.token", Value::I64(token)));
            "granted"
        }
        Ok(None) => "timed_out",
        Err(error) => {
            span.set_status(Status::error(error.to_string()));
            "failed"
        }
    };
    span.set_attribute(KeyValue::new("lockkeeper.outcome", outcome));
    span.end();
    acquired
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::Call;
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

    use super::*;
    use crate::request_spec::RequestSpec;

    fn active(state: &[(&str, &str)]) -> Context {
        let state = TraceState::from_key_value(state.iter().copied()).unwrap();
        let (trace, span) = (TraceId::from_bytes([1; 16]), SpanId::from_bytes([2; 8]));
        Context::new().with_remote_span_context(SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state))
    }

    #[test]
    fn without_an_active_trace_there_are_no_headers() {
        assert!(current().is_none());
        let _active = active(&[]).attach();
        assert_eq!(current().unwrap().traceparent, format!("00-{}-{}-01", "01".repeat(16), "02".repeat(8)));
        let keepalive = || RequestSpec::new(Call::KeepSessionAlive { id: 1 });
        assert!(keepalive().trace.is_some() && keepalive().untraced().trace.is_none());
    }

    #[test]
    fn a_state_that_is_no_header_is_left_out() {
        let long = "v".repeat(250);
        for (state, sent) in [
            (&[("a", "1"), ("b", "2")][..], "a=1,b=2"),
            (&[("a", "1\n2")], ""),
            (&[("a", &long), ("b", &long), ("c", &long)], ""),
        ] {
            let _active = active(state).attach();
            assert_eq!(current().unwrap().tracestate, sent);
        }
    }
}
