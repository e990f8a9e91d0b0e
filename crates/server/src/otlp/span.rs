//! The span of a client's request. The middleware begins and ends it; the call adds what it is about.

use std::sync::Arc;

use lockkeeper_api::locks::Mode;
use lockkeeper_api::{Answer, Call, Code};
use lockkeeper_core::TraceContext;
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;
use parking_lot::Mutex;

use super::{context_of, number_of};
use crate::calls::Answered;

/// The mode as the API writes it.
fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Write => "write",
        Mode::Permit => "permit",
    }
}

/// A recorded request. Copies are of the same span, which ends with the last of them if nobody ended it before: then
/// the client went away, and the span has no status.
#[derive(Clone)]
pub(crate) struct RequestSpan(Arc<Mutex<Span>>);

impl RequestSpan {
    pub(super) fn new(span: Span) -> Self {
        Self(Arc::new(Mutex::new(span)))
    }

    /// Its position, for spans below it.
    pub(crate) fn context(&self) -> TraceContext {
        context_of(&self.0.lock())
    }

    /// Adds what the call is about. Names only: data and secrets stay out.
    pub(crate) fn describe(&self, call: &Call, session: Option<u64>) {
        let mut span = self.0.lock();
        if let Some(session) = session {
            span.set_attribute(KeyValue::new("lockkeeper.session", number_of(session)));
        }
        let (key, name) = match call {
            Call::AcquireLock { name, body } => {
                span.set_attribute(KeyValue::new("lockkeeper.mode", name_of(body.mode)));
                span.set_attribute(KeyValue::new("lockkeeper.wait_ms", number_of(body.wait_ms)));
                ("lockkeeper.lock", name)
            }
            Call::ReleaseLock { name, body } => {
                span.set_attribute(KeyValue::new("lockkeeper.token", number_of(body.token)));
                ("lockkeeper.lock", name)
            }
            Call::DowngradeLock { name, body } | Call::VerifyLock { name, body } => {
                span.set_attribute(KeyValue::new("lockkeeper.token", number_of(body.token)));
                ("lockkeeper.lock", name)
            }
            Call::BreakLock { name, token } => {
                span.set_attribute(KeyValue::new("lockkeeper.token", number_of(*token)));
                ("lockkeeper.lock", name)
            }
            Call::GetLock { name, .. } => ("lockkeeper.lock", name),
            Call::GetGate { key, .. }
            | Call::BeginGate { key, .. }
            | Call::FinishGate { key, .. }
            | Call::FailGate { key, .. } => ("lockkeeper.gate", key),
            Call::GetNode { path, .. }
            | Call::CreateNode { path, .. }
            | Call::SetNode { path, .. }
            | Call::DeleteNode { path, .. } => ("lockkeeper.path", path),
            _ => return,
        };
        span.set_attribute(KeyValue::new(key, name.clone()));
    }

    /// Adds what came of the call.
    pub(crate) fn answered(&self, answered: &Answered) {
        let mut span = self.0.lock();
        let (outcome, zxid) = match answered {
            Ok(reply) => {
                let outcome = match &reply.body {
                    Answer::Acquired(held) => {
                        span.set_attribute(KeyValue::new("lockkeeper.token", number_of(held.token)));
                        "granted"
                    }
                    _ => "done",
                };
                (outcome, reply.zxid)
            }
            Err(failure) => {
                let outcome = match failure.code() {
                    Code::LockBusy => "timed_out",
                    Code::UnknownOutcome => "unknown",
                    _ => "refused",
                };
                (outcome, failure.zxid())
            }
        };
        span.set_attribute(KeyValue::new("lockkeeper.outcome", outcome));
        if let Some(zxid) = zxid {
            span.set_attribute(KeyValue::new("lockkeeper.zxid", number_of(zxid.0)));
        }
    }

    /// Ends the span with the status of the reply, and the code of its problem.
    pub(crate) fn end(&self, status: u16, code: Option<Code>) {
        let mut span = self.0.lock();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if let Some(code) = code {
            span.set_attribute(KeyValue::new("error.type", code.to_string()));
            // A refusal is the client's affair; see OpenTelemetry's conventions for HTTP.
            if status >= 500 {
                span.set_status(Status::error(code.to_string()));
            }
        }
        span.end();
    }
}
