use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// One that sends nothing: its task is never started.
fn otlp(sample_ratio: f64) -> Arc<Otlp> {
    let mut config = Config::new("test", 1);
    let mut section = crate::config::OtlpSection::new("http://127.0.0.1:9");
    section.sample_ratio = sample_ratio;
    config.otlp = Some(section);
    Otlp::open(&config).unwrap().unwrap()
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

const ROUTE: (&str, &str) = ("POST", "/v1/locks/{name}/acquire");

#[test]
fn a_caller_decides_whether_its_trace_is_recorded() {
    let traced = otlp(0.0).http_request(ROUTE, &headers(&[("traceparent", PARENT)])).unwrap();
    let parent = TraceContext::parse(PARENT).unwrap();
    assert_eq!(traced.context().trace_id, parent.trace_id);
    assert_ne!(traced.context().span_id, parent.span_id);
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    assert!(otlp(1.0).http_request(ROUTE, &headers(&[("traceparent", unsampled)])).is_none());
    assert!(otlp(1.0).stream_request(ROUTE, Some(unsampled)).is_none());
    assert!(otlp(0.0).stream_request(ROUTE, Some(PARENT)).is_some());
}

#[test]
fn without_a_caller_that_can_be_read_the_ratio_decides() {
    for lines in [&[][..], &[("traceparent", "00-nonsense")], &[("traceparent", PARENT), ("traceparent", PARENT)]] {
        assert!(otlp(0.0).http_request(ROUTE, &headers(lines)).is_none(), "{lines:?}");
        let first = otlp(1.0).http_request(ROUTE, &headers(lines)).unwrap().context();
        assert_ne!(first.trace_id, TraceContext::parse(PARENT).unwrap().trace_id, "{lines:?}");
    }
}

#[test]
fn a_keepalive_begins_no_trace() {
    let keepalive = ("POST", "/v1/sessions/{id}/keepalive");
    assert!(otlp(1.0).http_request(keepalive, &HeaderMap::new()).is_none());
    assert!(otlp(1.0).http_request(keepalive, &headers(&[("traceparent", PARENT)])).is_some());
}

#[test]
fn a_state_that_cannot_be_read_is_left_out() {
    let long = "k=v,".repeat(MAX_STATE_BYTES);
    for state in ["", "a=1,b=2", "no list", &long] {
        let mut lines = headers(&[("traceparent", PARENT)]);
        lines.insert("tracestate", state.parse().unwrap());
        assert!(otlp(0.0).http_request(ROUTE, &lines).is_some(), "{state:?}");
    }
}

#[test]
fn a_full_queue_drops_spans_and_does_not_wait() {
    let otlp = otlp(1.0);
    let parent = TraceContext::parse(PARENT).unwrap();
    for _ in 0..10_000 {
        drop(otlp.begin("lockkeeper.apply", parent, &[]));
    }
}
