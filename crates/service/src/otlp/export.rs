//! From ended spans to the collector: the SDK's bounded queue, and its thread, which sends what is in it as OTLP over
//! HTTP (`POST /v1/traces`, protobuf).

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use lockkeeper_tls::client_config;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use parking_lot::Mutex;
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use tokio::runtime::Runtime;

use lockkeeper_config::{ConfigError, OtlpSection, refuse};

/// Most spans that are not sent yet. One takes about 1 KiB, and at most 12 KiB: its links, texts and `tracestate` are
/// bounded. So all take about 4 MiB, and at most 48 MiB.
const MAX_QUEUED: usize = 4_096;
/// Most spans of one request to the collector.
const MAX_SENT_TOGETHER: usize = 512;
/// How long a span waits for others to be sent with it.
const GATHER: Duration = Duration::from_millis(500);
/// Longest time for a request to the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a shutdown waits for spans to be sent. Dropping the provider is a shutdown too.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Longest reply that is read.
const MAX_REPLY_BYTES: u64 = 64 * 1024;

/// Takes ended spans. Never waits.
#[derive(Debug)]
pub(super) struct SpanQueue {
    batches: BatchSpanProcessor,
    /// How many spans are not sent yet.
    queued: Arc<AtomicUsize>,
    is_closed: AtomicBool,
}

impl SpanQueue {
    /// One whose spans go to the collector of the section, at this URL.
    pub(super) fn to_collector(section: &OtlpSection, url: String) -> Result<Self, ConfigError> {
        let unusable =
            |error: &dyn std::fmt::Display| refuse("otlp.endpoint", "this URL", format!("cannot be used: {error}"));
        let rejected = Arc::<AtomicU64>::default();
        let collector = Collector {
            url: url.clone(),
            client: client(section)?.build().map_err(|error| unusable(&error))?,
            runtime: OnceLock::new(),
            rejected: rejected.clone(),
            trouble: Mutex::default(),
        };
        // All is set, so that no variable of the environment sets it.
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(collector)
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(SEND_TIMEOUT)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| unusable(&error))?;
        Ok(Self::new(exporter, rejected))
    }

    /// One whose spans go to an exporter; `rejected` is how many of its last ones the collector rejected.
    pub(super) fn new(exporter: impl SpanExporter + 'static, rejected: Arc<AtomicU64>) -> Self {
        let queued = Arc::<AtomicUsize>::default();
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED)
            .with_max_export_batch_size(MAX_SENT_TOGETHER)
            .with_scheduled_delay(GATHER)
            .build();
        let counted = CountedExporter { exporter, rejected, queued: queued.clone() };
        let batches = BatchSpanProcessor::builder(counted).with_batch_config(config).build();
        Self { batches, queued, is_closed: AtomicBool::new(false) }
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if self.is_closed.load(Ordering::Relaxed) {
            count_dropped("shutdown", 1);
        } else if self.queued.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            count_dropped("queue_full", 1);
        } else {
            self.batches.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.is_closed.store(true, Ordering::Relaxed);
        self.batches.shutdown_with_timeout(timeout.min(LAST_SPANS))
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

fn count_dropped(reason: &'static str, spans: u64) {
    metrics::counter!("lockkeeper_spans_dropped_total", "reason" => reason).increment(spans);
}

/// Counts what becomes of the spans.
#[derive(Debug)]
struct CountedExporter<E> {
    exporter: E,
    rejected: Arc<AtomicU64>,
    queued: Arc<AtomicUsize>,
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let count = spans.len();
        let sent = self.exporter.export(spans).await;
        self.queued.fetch_sub(count, Ordering::Relaxed);
        let rejected = self.rejected.swap(0, Ordering::Relaxed).min(count as u64);
        if sent.is_ok() {
            metrics::counter!("lockkeeper_spans_sent_total").increment(count as u64 - rejected);
        } else {
            count_dropped("not_sent", count as u64);
        }
        if rejected > 0 {
            count_dropped("rejected", rejected);
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The exporter's HTTP client.
#[derive(Debug)]
struct Collector {
    url: String,
    client: reqwest::Client,
    /// The SDK's thread has no runtime.
    runtime: OnceLock<Runtime>,
    /// How many spans of the last request the collector rejected.
    rejected: Arc<AtomicU64>,
    /// Why the last request failed, as it was logged.
    trouble: Mutex<Option<String>>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait for a lookup of the collector's name, as a shutdown would.
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Without the headers, to which the exporter adds some of the environment: `client` has those that count.
        let body = request.into_body();
        let runtime = self.runtime().map_err(|error| format!("no thread for requests: {error}"));
        let reply = runtime.and_then(|runtime| runtime.block_on(self.reply_to(body)));
        self.log(reply.as_ref().err());
        let reply = reply?;
        let parsed = ExportTraceServiceResponse::decode(reply.clone()).ok().and_then(|parsed| parsed.partial_success);
        let rejected = parsed.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or(0);
        self.rejected.store(rejected, Ordering::Relaxed);
        Ok(Response::new(reply))
    }
}

impl Collector {
    fn runtime(&self) -> std::io::Result<&Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let made = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(self.runtime.get_or_init(|| made))
    }

    /// The reply to a request; empty where it is too long.
    async fn reply_to(&self, body: Bytes) -> Result<Bytes, String> {
        let why = |error: reqwest::Error| {
            let error = error.without_url();
            lockkeeper_tls::causes(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
        };
        let response = self.client.post(&self.url).body(body).send().await.map_err(why)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the collector's answer is {status}"));
        }
        if response.content_length().is_none_or(|bytes| bytes > MAX_REPLY_BYTES) {
            return Ok(Bytes::new());
        }
        response.bytes().await.map_err(why)
    }

    fn log(&self, failed: Option<&String>) {
        let mut trouble = self.trouble.lock();
        match failed {
            None if trouble.is_some() => tracing::info!(url = self.url, "the collector takes spans again"),
            Some(error) if trouble.as_ref() != failed => {
                tracing::warn!(url = self.url, error, "spans cannot be sent, and are dropped");
            }
            _ => {}
        }
        *trouble = failed.cloned();
    }
}

fn client(section: &OtlpSection) -> Result<reqwest::ClientBuilder, ConfigError> {
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
    let builder =
        reqwest::Client::builder().timeout(SEND_TIMEOUT).redirect(Policy::none()).no_proxy().default_headers(headers);
    Ok(match section.authority.as_deref() {
        Some(authority) => builder.use_preconfigured_tls(tls(authority)?),
        None => builder,
    })
}

fn tls(authority: &Path) -> Result<impl std::any::Any + Send + Sync + 'static, ConfigError> {
    client_config(Some(authority), None)
        .map_err(|error| refuse("otlp.authority", authority.display(), error.to_string()))
}
