//! A collector of OpenTelemetry for tests: it takes OTLP over HTTP on a free port of 127.0.0.1 and keeps the spans.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// A span, and the node that it came from, if a node sent it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) node: Option<i64>,
    pub(crate) span: Span,
}

impl Seen {
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match attribute(&self.span.attributes, key)? {
            AnyValue::StringValue(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, key: &str) -> Option<i64> {
        number(&self.span.attributes, key)
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<AnyValue> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value
}

fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match attribute(attributes, key)? {
        AnyValue::IntValue(number) => Some(number),
        _ => None,
    }
}

/// How a collector answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// It takes the spans.
    Taken,
    /// It answers with this status.
    Status(u16),
    /// It does not answer.
    Never,
}

#[derive(Default)]
struct Received {
    spans: Vec<Seen>,
    /// The headers of the requests.
    heads: Vec<String>,
}

/// See the module's text. Its threads go with the process.
pub(crate) struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::that_answers(Answers::Taken)
    }

    pub(crate) fn that_answers(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::<Mutex<Received>>::default());
        let kept = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let received = kept.clone();
                std::thread::spawn(move || serve(stream, &received, answers));
            }
        });
        Self { address, received }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn spans(&self) -> Vec<Seen> {
        self.received.lock().unwrap().spans.clone()
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.received.lock().unwrap().heads.clone()
    }

    pub(crate) fn of_trace(&self, trace: u128) -> Vec<Seen> {
        let mut spans = self.spans();
        spans.retain(|seen| seen.span.trace_id == trace.to_be_bytes());
        spans
    }
}

/// Answers the requests of a connection; ends with it.
fn serve(stream: TcpStream, received: &Mutex<Received>, answers: Answers) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length, mut line) = (String::new(), 0, String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let lower = line.to_ascii_lowercase();
            length = lower.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
            head.push_str(&line);
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: application/x-protobuf\r\n"), "{head}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        received.lock().unwrap().heads.push(head);
        for sender in ExportTraceServiceRequest::decode(&body[..]).unwrap().resource_spans {
            let node = number(&sender.resource.unwrap().attributes, "lockkeeper.node");
            let of_scope = sender.scope_spans.into_iter().flat_map(|scope| scope.spans);
            received.lock().unwrap().spans.extend(of_scope.map(|span| Seen { node, span }));
        }
        let reply = ExportTraceServiceResponse::default().encode_to_vec();
        let status = match answers {
            Answers::Taken => 200,
            Answers::Status(status) => status,
            Answers::Never => loop {
                std::thread::park();
            },
        };
        let head = format!(
            "HTTP/1.1 {status} Answer\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
            reply.len()
        );
        reader.get_mut().write_all(head.as_bytes()).ok()?;
        reader.get_mut().write_all(&reply).ok()?;
    }
}
