//! The traces of a command of the command line.
//!
//! The settings are OpenTelemetry's environment variables: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
//! `OTEL_EXPORTER_OTLP_ENDPOINT`, in the same way `…_HEADERS`, `…_CERTIFICATE` and `…_PROTOCOL`; `OTEL_SERVICE_NAME`,
//! `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, and `TRACEPARENT`, the span that runs the command.

use lockkeeper_core::TraceContext;
use opentelemetry::trace::{SpanKind, TraceContextExt as _, TraceState, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, ContextGuard, KeyValue, global};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use percent_encoding::percent_decode_str;

use super::export::SpanQueue;
use super::{below, position_of};
use lockkeeper_config::{ConfigError, OtlpSection, refuse};

/// The trace of a command. It is the active context of this thread until it is dropped; dropping it sends the spans.
pub struct CommandTrace {
    active: Option<ContextGuard>,
    context: Context,
    provider: SdkTracerProvider,
}

/// The settings of OpenTelemetry's variables.
#[derive(Debug)]
struct Settings {
    section: OtlpSection,
    url: String,
    names: Names,
}

/// The variables that the settings come from, for errors.
#[derive(Debug)]
struct Names {
    endpoint: String,
    headers: String,
    certificate: String,
}

/// Reads OpenTelemetry's variables; `None` without a collector, or where they switch traces off.
fn settings(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, ConfigError> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    // A variable for traces alone counts before the one for all signals.
    let setting = |what: &str| {
        let general = format!("OTEL_EXPORTER_OTLP_{what}");
        let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{what}");
        match variable(&of_traces) {
            Some(value) => (of_traces, Some(value)),
            None => (general.clone(), variable(&general)),
        }
    };
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|list| list.split(',').all(|name| name.trim() != "otlp"))
    {
        return Ok(None);
    }
    let ((endpoint_name, Some(endpoint)), (protocol_name, protocol)) = (setting("ENDPOINT"), setting("PROTOCOL"))
    else {
        return Ok(None);
    };
    if let Some(other) = protocol.filter(|protocol| protocol != "http/protobuf") {
        return Err(refuse(protocol_name, other, "must be http/protobuf, the only protocol that this program sends"));
    }
    let mut section = OtlpSection::new(endpoint);
    let (certificate_name, certificate) = setting("CERTIFICATE");
    section.authority = certificate.map(Into::into);
    let (headers_name, headers) = setting("HEADERS");
    for pair in headers.iter().flat_map(|list| list.split(',')).filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = header_of(pair)
            .ok_or_else(|| refuse(&headers_name, "this list", "must be NAME=VALUE, separated by commas"))?;
        section.headers.insert(name, value);
    }
    section.service_name = variable("OTEL_SERVICE_NAME").unwrap_or(section.service_name);
    let has_whole_url = endpoint_name.contains("_TRACES_");
    let names = Names { endpoint: endpoint_name, headers: headers_name, certificate: certificate_name };
    section.check().map_err(|error| names.in_error(error))?;
    // By the specification, the variable for traces has the whole URL.
    let url = if has_whole_url { section.endpoint.clone() } else { section.traces_url() };
    Ok(Some(Settings { section, url, names }))
}

/// A header of the list, whose values are percent-encoded.
fn header_of(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((name.trim().to_ascii_lowercase(), value.into_owned()))
}

impl Names {
    /// An error of the section under the name of the variable that the value came from.
    fn in_error(&self, error: ConfigError) -> ConfigError {
        let ConfigError::Refused { key, value, rule } = error else { return error };
        let variable = match key.as_str() {
            "otlp.endpoint" => self.endpoint.as_str(),
            "otlp.authority" => self.certificate.as_str(),
            "otlp.service_name" => "OTEL_SERVICE_NAME",
            _ => self.headers.as_str(),
        };
        let rule = rule.replace("otlp.authority", &self.certificate).replace("otlp.endpoint", &self.endpoint);
        ConfigError::Refused { key: variable.into(), value, rule }
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
        let Some(Settings { section, url, names }) = settings(variable)? else { return Ok(None) };
        let attributes = [
            KeyValue::new("service.name", section.service_name.clone()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ];
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let queue = SpanQueue::to_collector(&section, url).map_err(|error| names.in_error(error))?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_resource(resource)
            .build();
        let parent = variable("TRACEPARENT").and_then(|header| TraceContext::parse(&header));
        let tracer = provider.tracer("lockkeeper");
        global::set_tracer_provider(provider.clone());
        let span = tracer
            .span_builder(format!("lockkeeper {command}"))
            .with_kind(SpanKind::Internal)
            .start_with_context(&tracer, &below(parent, TraceState::NONE));
        let context = Context::new().with_span(span);
        Ok(Some(Self { active: Some(context.clone().attach()), context, provider }))
    }

    /// Ends the trace of a command that ended with this exit code, and sends the spans.
    pub fn end(self, code: u8) {
        self.context.span().set_attribute(KeyValue::new("process.exit.code", i64::from(code)));
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
        let _ = self.provider.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, ConfigError> {
        settings(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");

    #[test]
    fn the_variables_of_opentelemetry_count() {
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        assert_eq!(read(&[BASE]).unwrap().unwrap().url, "http://c:4318/v1/traces");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/custom");
        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "A=b, c=d=e,, f=Bearer%20x%2Cy,");
        let all = read(&[BASE, traces, headers, ("OTEL_SERVICE_NAME", "shop")]).unwrap().unwrap();
        assert_eq!((all.url.as_str(), all.section.service_name.as_str()), ("http://d/custom", "shop"));
        let headers: Vec<(&str, &str)> = all.section.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(headers, [("a", "b"), ("c", "d=e"), ("f", "Bearer x,y")]);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "g=h");
        let all = read(&[BASE, ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"), own]).unwrap().unwrap();
        assert_eq!(all.section.headers.into_keys().collect::<Vec<_>>(), ["g"]);
        assert!(read(&[BASE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).unwrap().is_some());
    }

    #[test]
    fn variables_switch_traces_off() {
        let is_on = |name, value| read(&[BASE, (name, value)]).unwrap().is_some();
        assert!(!is_on("OTEL_SDK_DISABLED", "true") && !is_on("OTEL_SDK_DISABLED", "TRUE"));
        assert!(is_on("OTEL_SDK_DISABLED", "false"));
        assert!(!is_on("OTEL_TRACES_EXPORTER", "none") && !is_on("OTEL_TRACES_EXPORTER", "console"));
        assert!(is_on("OTEL_TRACES_EXPORTER", "console, otlp"));
    }

    #[test]
    fn each_error_names_its_variable_and_no_password() {
        let traces = |value| ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value);
        for (variables, variable) in [
            (&[BASE, ("OTEL_EXPORTER_OTLP_HEADERS", "a")][..], "OTEL_EXPORTER_OTLP_HEADERS"),
            (&[BASE, ("OTEL_EXPORTER_OTLP_HEADERS", "a=%ff")], "OTEL_EXPORTER_OTLP_HEADERS"),
            (&[BASE, ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=%0a")], "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")], "OTEL_EXPORTER_OTLP_ENDPOINT"),
            (&[BASE, traces("http://u:pass9@c")], "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            (&[traces("https://c")], "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            (&[BASE, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem")], "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (&[BASE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "OTEL_EXPORTER_OTLP_PROTOCOL"),
            (&[BASE, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")], "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        ] {
            let error = read(variables).unwrap_err();
            let ConfigError::Refused { key, .. } = &error else { panic!("{error}") };
            assert_eq!(key, variable);
            let text = error.to_string();
            assert!(!text.contains("otlp.") && !text.contains("pass9"), "{text}");
        }
    }
}
