//! The caller's trace (feature `otlp`): each request carries the context of OpenTelemetry that is active where it is
//! made, and each acquire is a span. The program chooses where its spans go (`opentelemetry::global`); without a choice
//! only the context of the caller travels on.

use std::sync::Arc;

use opentelemetry::trace::{FutureExt as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, Value, global};

use crate::error::Error;
use crate::locks::Grant;

/// The name under which this library's spans are known.
const SCOPE: &str = "lockkeeper-client";

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
        Arc::new(TraceHeaders { traceparent, tracestate: at.trace_state().header() })
    })
}

/// Waits for a grant within a span of its own.
pub(crate) async fn acquire(
    lock: &str,
    work: impl Future<Output = Result<Option<Grant>, Error>>,
) -> Result<Option<Grant>, Error> {
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
            let token = i64::try_from(grant.token()).unwrap_or(i64::MAX);
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
