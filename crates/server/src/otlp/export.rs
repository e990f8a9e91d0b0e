//! From ended spans to the collector: a bounded queue, and one task that sends what is in it as OTLP over HTTP
//! (`POST /v1/traces`, protobuf).

use std::path::Path;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use lockkeeper_tls::client_config;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, OtlpSection, refuse};

/// Most spans that wait to be sent. One takes about 1 KiB, and at most 12 KiB: its links, texts and `tracestate` are
/// bounded. So all take about 4 MiB, and at most 48 MiB.
const MAX_QUEUED: usize = 4_096;
/// Most spans of one request to the collector.
const MAX_SENT_TOGETHER: usize = 512;
/// How long a span waits for others to be sent with it.
const GATHER: Duration = Duration::from_millis(500);
/// Longest time for a request to the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest reply that is read.
const MAX_REPLY_BYTES: u64 = 64 * 1024;

/// Where spans are sent.
pub(super) struct Collector {
    url: String,
    client: reqwest::Client,
}

impl Collector {
    pub(super) fn open(section: &OtlpSection, url: String) -> Result<Self, ConfigError> {
        Ok(Self { url, client: client(section)? })
    }

    /// Sends spans; returns how many of them the collector rejected.
    async fn send(&self, request: &ExportTraceServiceRequest) -> Result<u64, String> {
        let why = |error: reqwest::Error| {
            let error = error.without_url();
            lockkeeper_tls::causes(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
        };
        let request = self.client.post(&self.url).body(request.encode_to_vec());
        let response = request.send().await.map_err(why)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the collector's answer is {status}"));
        }
        if response.content_length().is_none_or(|bytes| bytes > MAX_REPLY_BYTES) {
            return Ok(0);
        }
        let bytes = response.bytes().await.map_err(why)?;
        let rejected = ExportTraceServiceResponse::decode(bytes).ok().and_then(|reply| reply.partial_success);
        Ok(rejected.and_then(|rejected| u64::try_from(rejected.rejected_spans).ok()).unwrap_or(0))
    }
}

fn client(section: &OtlpSection) -> Result<reqwest::Client, ConfigError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &section.headers {
        let key = || format!("otlp.headers.{name}");
        let (Ok(name), Ok(mut value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) else {
            return Err(refuse(key(), "its value", "must be a header of HTTP"));
        };
        // Kept out of logs: it may be a credential.
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    let mut builder =
        reqwest::Client::builder().timeout(SEND_TIMEOUT).redirect(Policy::none()).no_proxy().default_headers(headers);
    if let Some(authority) = section.authority.as_deref() {
        builder = builder.use_preconfigured_tls(tls(authority)?);
    }
    builder.build().map_err(|error| refuse("otlp.endpoint", "this URL", format!("cannot be used: {error}")))
}

fn tls(authority: &Path) -> Result<impl std::any::Any + Send + Sync + 'static, ConfigError> {
    client_config(Some(authority), None)
        .map_err(|error| refuse("otlp.authority", authority.display(), error.to_string()))
}

/// Takes ended spans. Never waits.
#[derive(Debug)]
pub(super) struct SpanQueue(mpsc::Sender<SpanData>);

impl SpanQueue {
    /// The queue, and what sends the spans in it.
    pub(super) fn new(collector: Collector, resource: &Resource) -> (Self, Exporter) {
        let (sender, spans) = mpsc::channel(MAX_QUEUED);
        (Self(sender), Exporter { collector, spans, resource: resource.into(), trouble: None })
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        match self.0.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => count_dropped("queue_full", 1),
            Err(TrySendError::Closed(_)) => count_dropped("shutdown", 1),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

fn count_dropped(reason: &'static str, spans: u64) {
    metrics::counter!("lockkeeper_spans_dropped_total", "reason" => reason).increment(spans);
}

/// Sends what is in the queue.
pub(super) struct Exporter {
    collector: Collector,
    pub(super) spans: mpsc::Receiver<SpanData>,
    resource: ResourceAttributesWithSchema,
    /// Why the last request failed, as it was logged.
    trouble: Option<String>,
}

impl Exporter {
    /// The task. Once `stop` is cancelled, it sends what is left and ends.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let mut spans = Vec::new();
            let mut until = None;
            while spans.len() < MAX_SENT_TOGETHER {
                let room = MAX_SENT_TOGETHER - spans.len();
                let more = self.spans.recv_many(&mut spans, room);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    taken = within(until, more) => match taken {
                        None => break,
                        // Nobody can end a span any more.
                        Some(0) => return self.send(spans).await,
                        Some(_) => drop(until.get_or_insert_with(|| Instant::now() + GATHER)),
                    }
                }
            }
            self.send(spans).await;
        }
        self.spans.close();
        loop {
            let mut spans = Vec::new();
            while spans.len() < MAX_SENT_TOGETHER
                && let Ok(span) = self.spans.try_recv()
            {
                spans.push(span);
            }
            if spans.is_empty() {
                return;
            }
            self.send(spans).await;
        }
    }

    async fn send(&mut self, spans: Vec<SpanData>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        match self.collector.send(&ExportTraceServiceRequest { resource_spans }).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                metrics::counter!("lockkeeper_spans_sent_total").increment(count - rejected);
                if rejected > 0 {
                    count_dropped("rejected", rejected);
                }
                if self.trouble.take().is_some() {
                    tracing::info!(url = self.collector.url, "the collector takes spans again");
                }
            }
            Err(error) => {
                count_dropped("not_sent", count);
                if self.trouble.as_ref() != Some(&error) {
                    tracing::warn!(url = self.collector.url, error, "spans cannot be sent, and are dropped");
                }
                self.trouble = Some(error);
            }
        }
    }
}

/// `None` once the time is over.
async fn within<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match until {
        Some(until) => timeout_at(until, work).await.ok(),
        None => Some(work.await),
    }
}
