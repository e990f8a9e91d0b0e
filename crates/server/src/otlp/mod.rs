//! Traces of OpenTelemetry (feature `otlp`, section `[otlp]`): a span for each traced request of a client, and those
//! of the node below it.
//!
//! Ended spans go through a bounded queue to one task, which sends them to a collector. Nothing here waits for that
//! task: a span that finds no room is dropped and counted. No token, secret or data of a node may get into a span.

mod command;
mod export;
mod span;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use lockkeeper_core::TraceContext;
use lockkeeper_node::{TraceSink, TraceSpan, TraceValue};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use self::command::CommandTrace;
use self::export::{Collector, Exporter, SpanQueue};
pub(crate) use self::span::RequestSpan;
use crate::config::{Config, ConfigError};

/// Longest time that a shutdown waits for spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Longest `tracestate` that is passed on, in bytes.
const MAX_STATE_BYTES: usize = 512;
/// Routes that are no work for the cluster, or last as long as the client likes. They are never the first span of a
/// trace.
const NEVER_FIRST: [&str; 3] = ["/v1/sessions/{id}/keepalive", "/v1/sessions/{id}/stream", "/v1/watch"];

/// See the module's text.
pub(crate) struct Otlp {
    tracer: SdkTracer,
    exporter: Mutex<Option<Exporter>>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Otlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Otlp")
    }
}

impl Otlp {
    /// Reads what the configuration names; `None` if it has no such section. Nothing is sent yet.
    ///
    /// # Errors
    /// The authority of the collector cannot be used.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        let Some(section) = &config.otlp else { return Ok(None) };
        let attributes = [
            KeyValue::new("service.name", section.service_name.clone()),
            KeyValue::new("service.namespace", config.cluster.id.clone()),
            KeyValue::new("service.instance.id", config.cluster.node.to_string()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("lockkeeper.cluster", config.cluster.id.clone()),
            KeyValue::new("lockkeeper.node", i64::try_from(config.cluster.node).unwrap_or(i64::MAX)),
        ];
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let collector = Collector::open(section, section.traces_url())?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(section.sample_ratio)));
        Ok(Some(Self::new(collector, resource, sampler)))
    }

    fn new(collector: Collector, resource: Resource, sampler: Sampler) -> Arc<Self> {
        let (queue, exporter) = SpanQueue::new(collector, &resource);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        let (exporter, task) = (Mutex::new(Some(exporter)), Mutex::default());
        // The tracer keeps its provider.
        Arc::new(Self { tracer: provider.tracer("lockkeeper"), exporter, task, stop: CancellationToken::new() })
    }

    /// Begins to send spans, on the runtime of the caller.
    pub(crate) fn start(&self) {
        if let Some(exporter) = self.exporter.lock().take() {
            *self.task.lock() = Some(tokio::spawn(exporter.run(self.stop.clone())));
        }
    }

    /// Sends what has ended so far, within a bound, and stops.
    pub(crate) async fn flush(&self) {
        self.stop.cancel();
        let Some(task) = self.task.lock().take() else { return };
        let abort = task.abort_handle();
        if timeout(LAST_SPANS, task).await.is_err() {
            abort.abort();
            tracing::warn!("the last spans were not sent, because the collector does not answer");
        }
    }

    /// The sink of the node's spans.
    pub(crate) fn sink(self: &Arc<Self>) -> Arc<dyn TraceSink> {
        self.clone()
    }

    /// Begins the span of a request over HTTP, if it is sampled.
    pub(crate) fn http_request(
        &self,
        (method, route): (&'static str, &str),
        headers: &HeaderMap,
    ) -> Option<RequestSpan> {
        let parent = single(headers, "traceparent").and_then(TraceContext::parse);
        // The standard allows several lines of it, which are one list.
        let states = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok());
        let state = parent.map(|_| states.collect::<Vec<_>>().join(",")).unwrap_or_default();
        self.request((method, route, "http"), parent, &state)
    }

    /// The same for a request on a session stream.
    pub(crate) fn stream_request(
        &self,
        (method, route): (&'static str, &str),
        traceparent: Option<&str>,
    ) -> Option<RequestSpan> {
        self.request((method, route, "websocket"), traceparent.and_then(TraceContext::parse), "")
    }

    fn request(
        &self,
        (method, route, protocol): (&'static str, &str, &'static str),
        parent: Option<TraceContext>,
        state: &str,
    ) -> Option<RequestSpan> {
        if parent.is_none() && NEVER_FIRST.contains(&route) {
            return None;
        }
        // Most requests are not recorded: what follows is only for those that are.
        if parent.is_some_and(|parent| !parent.is_sampled()) {
            return None;
        }
        let state = Some(state).filter(|state| state.len() <= MAX_STATE_BYTES);
        let state = state.and_then(|state| state.parse().ok()).unwrap_or_default();
        let builder = SpanBuilder::from_name("request").with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &below(parent, state));
        if !span.is_recording() {
            return None;
        }
        span.update_name(format!("{method} {route}"));
        span.set_attributes([
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("network.protocol.name", protocol),
        ]);
        Some(RequestSpan::new(span))
    }
}

impl TraceSink for Otlp {
    fn begin(&self, name: &'static str, parent: TraceContext, links: &[TraceContext]) -> Box<dyn TraceSpan> {
        let links = links.iter().map(|link| Link::with_context(remote(*link, TraceState::NONE))).collect();
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_links(links);
        Box::new(NodeSpan(self.tracer.build_with_context(builder, &below(Some(parent), TraceState::NONE))))
    }
}

/// A span of the node.
struct NodeSpan(Span);

impl TraceSpan for NodeSpan {
    fn context(&self) -> TraceContext {
        context_of(&self.0)
    }

    fn set(&mut self, key: &'static str, value: TraceValue) {
        self.0.set_attribute(KeyValue::new(
            key,
            match value {
                TraceValue::Number(number) => number_of(number),
                TraceValue::Text(text) => text.into(),
            },
        ));
    }

    fn link(&mut self, to: TraceContext) {
        self.0.add_link(remote(to, TraceState::NONE), Vec::new());
    }
}

/// OpenTelemetry has no unsigned numbers; Lockkeeper gives none that do not fit.
fn number_of(number: u64) -> Value {
    Value::I64(i64::try_from(number).unwrap_or(i64::MAX))
}

fn context_of(span: &Span) -> TraceContext {
    position_of(span.span_context())
}

fn position_of(context: &SpanContext) -> TraceContext {
    TraceContext {
        trace_id: context.trace_id().to_bytes(),
        span_id: context.span_id().to_bytes(),
        flags: context.trace_flags().to_u8(),
    }
}

fn remote(context: TraceContext, state: TraceState) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id));
    SpanContext::new(trace, span, TraceFlags::new(context.flags), true, state)
}

fn below(parent: Option<TraceContext>, state: TraceState) -> opentelemetry::Context {
    let context = opentelemetry::Context::new();
    match parent {
        Some(parent) => context.with_remote_span_context(remote(parent, state)),
        None => context,
    }
}

/// The header, if it is there once.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}
