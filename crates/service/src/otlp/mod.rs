//! Traces of OpenTelemetry (section `[otlp]`): a span for each traced request of a client, and those
//! of the node below it.
//!
//! Ended spans go through a bounded queue to one thread, which sends them to a collector. Nothing here waits for that
//! thread: a span that finds no room is dropped and counted. No token, secret or data of a node may get into a span.

mod command;
mod export;
mod span;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::HeaderMap;
use lockkeeper_core::TraceContext;
use lockkeeper_node::{MAX_LINKS, TraceSink, TraceSpan, TraceValue};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanLimits};

pub use self::command::CommandTrace;
use self::export::SpanQueue;
pub use self::span::RequestSpan;
use lockkeeper_config::{Config, ConfigError, OtlpSection};

/// Longest `tracestate` that is passed on, in bytes.
const MAX_STATE_BYTES: usize = 512;
/// Longest text of an attribute, in bytes. Names come from clients and may be as long as a request.
const MAX_TEXT_BYTES: usize = 256;
/// Most attributes of a span.
const MAX_ATTRIBUTES: u32 = 32;
/// The route that is no work for the cluster. It is never the first span of a trace.
const NEVER_FIRST: &str = "/v1/sessions/{id}/keepalive";

/// See the module's text.
pub struct Otlp {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// The part of the requests that begin a trace here.
    ratio: f64,
    follow_callers: bool,
}

impl std::fmt::Debug for Otlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Otlp")
    }
}

impl Otlp {
    /// Reads what the configuration names; `None` if it has no such section.
    ///
    /// # Errors
    /// The authority of the collector cannot be used.
    pub fn open(config: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        let Some(section) = &config.otlp else { return Ok(None) };
        let queue = SpanQueue::to_collector(section, section.traces_url())?;
        Ok(Some(Self::with_queue(config, section, queue)))
    }

    fn with_queue(config: &Config, section: &OtlpSection, queue: SpanQueue) -> Arc<Self> {
        let attributes = [
            KeyValue::new("service.name", section.service_name.clone()),
            KeyValue::new("service.namespace", config.cluster.id.clone()),
            KeyValue::new("service.instance.id", config.cluster.node.to_string()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("lockkeeper.cluster", config.cluster.id.clone()),
            KeyValue::new("lockkeeper.node", i64::try_from(config.cluster.node).unwrap_or(i64::MAX)),
        ];
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            // What begins here is decided before there is a span.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            // Set, so that no variable of the environment sets them.
            .with_span_limits(limits())
            .with_resource(resource)
            .build();
        Arc::new(Self {
            tracer: provider.tracer("lockkeeper"),
            provider,
            ratio: section.sample_ratio,
            follow_callers: section.follow_callers,
        })
    }

    /// Sends what has ended so far, within a bound, and stops.
    pub async fn flush(&self) {
        let provider = self.provider.clone();
        let sent = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if !sent.is_ok_and(|sent| sent.is_ok()) {
            tracing::warn!("the last spans were not sent, because the collector does not answer");
        }
    }

    /// The sink of the node's spans.
    pub fn sink(self: &Arc<Self>) -> Arc<dyn TraceSink> {
        self.clone()
    }

    /// What the headers of a request say of the caller's trace.
    pub fn caller_over_http(&self, headers: &HeaderMap) -> CallerTrace {
        let traceparent = single(headers, "traceparent").filter(|_| self.follow_callers);
        self.caller(traceparent, "http", || state_in(headers))
    }

    /// The same for a request on a session stream.
    pub fn caller_on_stream(&self, traceparent: Option<&str>) -> CallerTrace {
        self.caller(traceparent.filter(|_| self.follow_callers), "websocket", TraceState::default)
    }

    /// `state` is called only for a trace that is recorded: most are not.
    fn caller(
        &self,
        traceparent: Option<&str>,
        protocol: &'static str,
        state: impl FnOnce() -> TraceState,
    ) -> CallerTrace {
        let parent = match traceparent.and_then(TraceContext::parse) {
            Some(parent) if parent.is_sampled() => Parent::Recorded(parent, state()),
            Some(_) => Parent::Unrecorded,
            None => Parent::Unknown,
        };
        CallerTrace { parent, protocol }
    }

    /// Begins the span of a request, if it is recorded.
    pub fn begin_request(
        &self,
        CallerTrace { parent, protocol }: CallerTrace,
        (method, route): (&'static str, &'static str),
    ) -> Option<RequestSpan> {
        let context = match parent {
            Parent::Recorded(parent, state) => below(Some(parent), state),
            Parent::Unrecorded => return None,
            Parent::Unknown if route == NEVER_FIRST || rand::random::<f64>() >= self.ratio => return None,
            Parent::Unknown => opentelemetry::Context::new(),
        };
        let builder = SpanBuilder::from_name(format!("{method} {route}")).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &context);
        span.set_attributes([
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route),
            KeyValue::new("network.protocol.name", protocol),
        ]);
        Some(RequestSpan::new(span))
    }
}

/// What a caller says of its trace.
#[derive(Clone, Debug)]
pub struct CallerTrace {
    parent: Parent,
    protocol: &'static str,
}

#[derive(Clone, Debug)]
enum Parent {
    /// The caller records it.
    Recorded(TraceContext, TraceState),
    /// The caller has decided not to record it.
    Unrecorded,
    /// The caller says nothing that can be read, or is not followed.
    Unknown,
}

/// The list `tracestate`, or an empty one if it is too long or cannot be read. The standard allows several lines of it.
fn state_in(headers: &HeaderMap) -> TraceState {
    let lines = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok());
    let state = lines.collect::<Vec<_>>().join(",");
    if state.len() > MAX_STATE_BYTES { TraceState::NONE } else { state.parse().unwrap_or_default() }
}

fn limits() -> SpanLimits {
    SpanLimits {
        max_events_per_span: 0,
        max_attributes_per_span: MAX_ATTRIBUTES,
        max_links_per_span: MAX_LINKS as u32,
        max_attributes_per_event: 0,
        max_attributes_per_link: 0,
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
                TraceValue::Text(text) => text_of(&text),
            },
        ));
    }

    fn link(&mut self, to: TraceContext) {
        self.0.add_link(remote(to, TraceState::NONE), Vec::new());
    }
}

/// A text that is cut off where it is too long. Every text of an attribute that is not fixed comes from here.
fn text_of(text: &str) -> Value {
    let end = (0..=text.len().min(MAX_TEXT_BYTES)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned().into()
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
