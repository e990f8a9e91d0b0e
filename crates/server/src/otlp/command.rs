//! The traces of a command of the command line, which ends soon: its spans are sent by a thread of their own, so that
//! the command needs no runtime for them.
//!
//! The settings are OpenTelemetry's environment variables: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
//! `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_CERTIFICATE`, `OTEL_SERVICE_NAME`,
//! and `TRACEPARENT`, the span that runs the command.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use lockkeeper_core::TraceContext;
use opentelemetry::trace::{SpanKind, TraceContextExt as _, TraceState, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, ContextGuard, KeyValue, global};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio_util::sync::CancellationToken;

use super::export::{Collector, SpanQueue};
use super::{LAST_SPANS, below, position_of};
use crate::config::{ConfigError, OtlpSection, refuse};

/// The trace of a command. It is the active context of this thread until it is dropped; dropping it sends the spans.
pub struct CommandTrace {
    active: Option<ContextGuard>,
    context: Context,
    stop: CancellationToken,
    sent: Receiver<()>,
}

/// Reads OpenTelemetry's variables; `None` without a collector.
fn section(variable: impl Fn(&str) -> Option<String>) -> Result<Option<(OtlpSection, String)>, ConfigError> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let of_traces = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let Some(endpoint) = of_traces.clone().or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT")) else { return Ok(None) };
    let mut section = OtlpSection::new(endpoint);
    section.authority = variable("OTEL_EXPORTER_OTLP_CERTIFICATE").map(Into::into);
    for pair in variable("OTEL_EXPORTER_OTLP_HEADERS").iter().flat_map(|list| list.split(',')) {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            refuse("OTEL_EXPORTER_OTLP_HEADERS", "this list", "must be NAME=VALUE, separated by commas")
        })?;
        section.headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    section.service_name = variable("OTEL_SERVICE_NAME").unwrap_or(section.service_name);
    section.check().map_err(named_by_variable)?;
    // By the specification, the variable for traces has the whole URL.
    let url = of_traces.unwrap_or_else(|| section.traces_url());
    Ok(Some((section, url)))
}

/// An error of the section under the name of the variable that the value came from.
fn named_by_variable(error: ConfigError) -> ConfigError {
    let ConfigError::Refused { key, value, rule } = error else { return error };
    let variable = match key.as_str() {
        "otlp.endpoint" => "OTEL_EXPORTER_OTLP_ENDPOINT",
        "otlp.authority" => "OTEL_EXPORTER_OTLP_CERTIFICATE",
        "otlp.service_name" => "OTEL_SERVICE_NAME",
        _ => "OTEL_EXPORTER_OTLP_HEADERS",
    };
    let rule = rule.replace("otlp.authority", "OTEL_EXPORTER_OTLP_CERTIFICATE");
    ConfigError::Refused {
        key: variable.into(),
        value,
        rule: rule.replace("otlp.endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    }
}

impl CommandTrace {
    /// Begins the trace of the command of that name, if OpenTelemetry's variables name a collector. Sets the provider
    /// of this process.
    ///
    /// # Errors
    /// A variable cannot be used.
    pub fn from_environment(command: &str) -> Result<Option<Self>, ConfigError> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some((section, url)) = section(variable)? else { return Ok(None) };
        let attributes = [
            KeyValue::new("service.name", section.service_name.clone()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ];
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let (queue, exporter) = SpanQueue::new(Collector::open(&section, url).map_err(named_by_variable)?, &resource);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_resource(resource)
            .build();
        let (stop, (ended, sent)) = (CancellationToken::new(), channel());
        let stopped = stop.clone();
        let unusable = |error: std::io::Error| refuse("OTEL_EXPORTER_OTLP_ENDPOINT", "this URL", error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unusable)?;
        let thread = move || {
            runtime.block_on(exporter.run(stopped));
            // Nobody listens any more if this took too long.
            let _ = ended.send(());
        };
        thread::Builder::new().name("otlp".into()).spawn(thread).map_err(unusable)?;
        let parent = variable("TRACEPARENT").and_then(|header| TraceContext::parse(&header));
        let tracer = provider.tracer("lockkeeper");
        global::set_tracer_provider(provider);
        let span = tracer
            .span_builder(format!("lockkeeper {command}"))
            .with_kind(SpanKind::Internal)
            .start_with_context(&tracer, &below(parent, TraceState::NONE));
        let context = Context::new().with_span(span);
        Ok(Some(Self { active: Some(context.clone().attach()), context, stop, sent }))
    }

    /// The active context of this thread, for a program that it starts: the value of `TRACEPARENT`.
    pub fn traceparent() -> Option<String> {
        let context = Context::current();
        let span = context.span();
        span.span_context().is_valid().then(|| position_of(span.span_context()).to_string())
    }
}

impl Drop for CommandTrace {
    fn drop(&mut self) {
        self.active = None;
        self.context.span().end();
        self.stop.cancel();
        let _ = self.sent.recv_timeout(LAST_SPANS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<(OtlpSection, String)>, ConfigError> {
        section(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_variables_of_opentelemetry_count() {
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap(), None);
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert_eq!(read(&[base]).unwrap().unwrap().1, "http://c:4318/v1/traces");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/custom");
        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "A=b, c=d=e");
        let (all, url) = read(&[base, traces, headers, ("OTEL_SERVICE_NAME", "shop")]).unwrap().unwrap();
        assert_eq!((url.as_str(), all.service_name.as_str()), ("http://d/custom", "shop"));
        assert_eq!(all.headers["a"], "b");
        assert_eq!(all.headers["c"], "d=e");
        for wrong in [&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a")][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")]] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("OTEL_") && !error.contains("otlp."), "{error}");
        }
    }
}
