use std::collections::BTreeSet;
use std::ops::Deref;

use lockkeeper_api::locks::Acquire;
use lockkeeper_api::{Call, CallKind};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;
use serde_json::json;

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Keeps the spans in the place of a collector.
#[derive(Clone, Debug, Default)]
struct KeptSpans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for KeptSpans {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(spans);
        Ok(())
    }
}

struct Traced {
    otlp: Arc<Otlp>,
    kept: KeptSpans,
}

impl Deref for Traced {
    type Target = Arc<Otlp>;

    fn deref(&self) -> &Arc<Otlp> {
        &self.otlp
    }
}

impl Traced {
    /// The spans that have ended.
    fn ended(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        std::mem::take(&mut *self.kept.0.lock())
    }
}

fn otlp_with(change: impl FnOnce(&mut OtlpSection)) -> Traced {
    let mut section = OtlpSection::new("http://127.0.0.1:9");
    change(&mut section);
    let kept = KeptSpans::default();
    let queue = SpanQueue::new(kept.clone(), Arc::default());
    Traced { otlp: Otlp::with_queue(&Config::new("test", 1), &section, queue), kept }
}

fn otlp(sample_ratio: f64) -> Traced {
    otlp_with(|section| section.sample_ratio = sample_ratio)
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

const ROUTE: (&str, &str) = ("POST", "/v1/locks/{name}/acquire");

impl Otlp {
    fn over_http(
        &self,
        route: (&'static str, &'static str),
        lines: &[(&'static str, &'static str)],
    ) -> Option<RequestSpan> {
        self.begin_request(self.caller_over_http(&headers(lines)), route)
    }
}

#[test]
fn a_caller_decides_whether_its_trace_is_recorded() {
    let traced = otlp(0.0).over_http(ROUTE, &[("traceparent", PARENT)]).unwrap();
    let parent = TraceContext::parse(PARENT).unwrap();
    assert_eq!(traced.context().trace_id, parent.trace_id);
    assert_ne!(traced.context().span_id, parent.span_id);
    assert!(otlp(1.0).over_http(ROUTE, &[("traceparent", UNSAMPLED)]).is_none());
    let on_stream = |ratio, traceparent| {
        let otlp = otlp(ratio);
        otlp.begin_request(otlp.caller_on_stream(Some(traceparent)), ROUTE)
    };
    assert!(on_stream(1.0, UNSAMPLED).is_none());
    assert!(on_stream(0.0, PARENT).is_some());
}

#[test]
fn callers_that_are_not_followed_decide_nothing() {
    let deaf =
        |sample_ratio| otlp_with(|section| (section.sample_ratio, section.follow_callers) = (sample_ratio, false));
    assert!(deaf(0.0).over_http(ROUTE, &[("traceparent", PARENT)]).is_none());
    let nodes_own = deaf(1.0);
    for traceparent in [PARENT, UNSAMPLED] {
        let span = nodes_own.begin_request(nodes_own.caller_on_stream(Some(traceparent)), ROUTE).unwrap();
        assert_ne!(span.context().trace_id, TraceContext::parse(PARENT).unwrap().trace_id);
    }
}

#[test]
fn without_a_caller_that_can_be_read_the_ratio_decides() {
    for lines in [&[][..], &[("traceparent", "00-nonsense")], &[("traceparent", PARENT), ("traceparent", PARENT)]] {
        assert!(otlp(0.0).over_http(ROUTE, lines).is_none(), "{lines:?}");
        let first = otlp(1.0).over_http(ROUTE, lines).unwrap().context();
        assert_ne!(first.trace_id, TraceContext::parse(PARENT).unwrap().trace_id, "{lines:?}");
    }
}

#[test]
fn a_keepalive_begins_no_trace() {
    let keepalive = ("POST", "/v1/sessions/{id}/keepalive");
    assert!(otlp(1.0).over_http(keepalive, &[]).is_none());
    assert!(otlp(1.0).over_http(keepalive, &[("traceparent", PARENT)]).is_some());
}

#[test]
fn a_state_that_cannot_be_read_is_left_out() {
    let otlp = otlp(0.0);
    let long = format!("k={}", "v".repeat(MAX_STATE_BYTES));
    for (state, kept) in [("", ""), ("a=1,b=2", "a=1,b=2"), ("no list", ""), (&long, "")] {
        let mut lines = headers(&[("traceparent", PARENT)]);
        lines.insert("tracestate", state.parse().unwrap());
        drop(otlp.begin_request(otlp.caller_over_http(&lines), ROUTE).unwrap());
        assert_eq!(otlp.ended()[0].span_context.trace_state().header(), kept, "{state:?}");
    }
    let mut lines = headers(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]);
    drop(otlp.begin_request(otlp.caller_over_http(&lines), ROUTE).unwrap());
    assert_eq!(otlp.ended()[0].span_context.trace_state().header(), "a=1,b=2");
    lines.insert("traceparent", UNSAMPLED.parse().unwrap());
    assert!(matches!(otlp.caller_over_http(&lines).parent, Parent::Unrecorded));
}

#[test]
fn a_long_name_is_cut_off() {
    let otlp = otlp(1.0);
    for name in ["n".repeat(1 << 20), "é".repeat(1 << 19), format!("a{}", "é".repeat(1 << 19))] {
        let mut span = otlp.over_http(ROUTE, &[]).unwrap();
        span.describe(&Call::AcquireLock { name: name.clone(), body: Acquire::default() }, None);
        drop(span);
        let ended = otlp.ended().remove(0);
        let lengths = ended.attributes.iter().map(|attribute| attribute.value.as_str().len());
        assert!(lengths.max().unwrap() <= MAX_TEXT_BYTES, "{} bytes", name.len());
        let kept = ended.attributes.iter().find(|attribute| attribute.key.as_str() == "lockkeeper.lock").unwrap();
        assert!(name.starts_with(&*kept.value.as_str()) && kept.value.as_str().len() >= MAX_TEXT_BYTES - 1);
    }
}

/// Wherever a call has its fencing token.
#[test]
fn the_span_of_a_call_with_a_token_names_it() {
    let (otlp, mut with_token) = (otlp(1.0), BTreeSet::new());
    for row in CallKind::rows() {
        let mut fields = json!({});
        for part in row.parts {
            fields[part.name] = if part.is_number() { json!(7) } else { json!("a") };
        }
        let in_path = row.parts.iter().any(|part| part.name == "token").then(|| fields.clone());
        if let Ok(body) = serde_json::from_str::<serde_json::Value>(row.rules.example) {
            fields["body"] = body;
        }
        let in_input = ["body", "query"].map(|input| {
            let mut fields = fields.clone();
            fields[input]["token"] = json!(7);
            fields
        });
        // A call without such a field is refused.
        let calls = in_path.into_iter().chain(in_input).map(|fields| json!({ (row.name): fields }));
        for call in calls.filter_map(|call| serde_json::from_value::<Call>(call).ok()) {
            let mut span = otlp.over_http(ROUTE, &[]).unwrap();
            span.describe(&call, None);
            drop(span);
            let ended = otlp.ended().remove(0);
            let token = ended.attributes.iter().find(|attribute| attribute.key.as_str() == "lockkeeper.token");
            assert_eq!(token.map(|token| &token.value), Some(&number_of(7)), "{call:?}");
            with_token.insert(row.name);
        }
    }
    let all = "break_lock downgrade_lock fail_gate finish_gate release_lock reset_gate verify_lock";
    assert_eq!(with_token.into_iter().collect::<Vec<_>>().join(" "), all);
}

#[test]
fn a_span_has_so_many_links_and_no_more() {
    let otlp = otlp(1.0);
    let parent = TraceContext::parse(PARENT).unwrap();
    let mut span = otlp.sink().begin("lockkeeper.wait", parent, &[parent]);
    (0..100).for_each(|_| span.link(parent));
    drop(span);
    assert_eq!(otlp.ended()[0].links.len(), MAX_LINKS);
}

#[test]
fn a_full_queue_drops_spans_and_does_not_wait() {
    let otlp = otlp(1.0);
    let parent = TraceContext::parse(PARENT).unwrap();
    // Nothing is sent meanwhile.
    let sending = otlp.kept.0.lock();
    for _ in 0..10_000 {
        drop(otlp.sink().begin("lockkeeper.apply", parent, &[]));
    }
    drop(sending);
    assert_eq!(otlp.ended().len(), 4_096);
    drop(otlp.sink().begin("lockkeeper.apply", parent, &[]));
    assert_eq!(otlp.ended().len(), 1, "there is room again");
}
