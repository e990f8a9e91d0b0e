//! The span of a client's request, from its admission to its answer.

use lockkeeper_api::access::Resource;
use lockkeeper_api::locks::Mode;
use lockkeeper_api::{Answer, Call, Code};
use lockkeeper_core::{TraceContext, Zxid};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;

use super::{context_of, number_of, text_of};
use crate::failure::Failure;
use crate::reply::{Answered, Reply};

/// The mode as the API writes it.
fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Write => "write",
        Mode::Permit => "permit",
    }
}

/// A recorded request. Where it is dropped before it ends, the client went away or the request was cancelled, and the
/// span has no outcome.
pub struct RequestSpan(Span);

impl RequestSpan {
    pub(super) fn new(span: Span) -> Self {
        Self(span)
    }

    /// Its position, for spans below it.
    pub fn context(&self) -> TraceContext {
        context_of(&self.0)
    }

    /// Adds what the call is about. Names only: data and secrets stay out.
    pub fn describe(&mut self, call: &Call, session: Option<u64>) {
        let span = &mut self.0;
        if let Some(session) = session {
            span.set_attribute(KeyValue::new("lockkeeper.session", number_of(session)));
        }
        let token = match call {
            Call::AcquireLock { body, .. } => {
                span.set_attribute(KeyValue::new("lockkeeper.mode", name_of(body.mode)));
                span.set_attribute(KeyValue::new("lockkeeper.wait_ms", number_of(body.wait_ms)));
                None
            }
            Call::ReleaseLock { body, .. } => Some(body.token),
            Call::DowngradeLock { body, .. } | Call::VerifyLock { body, .. } => Some(body.token),
            Call::FinishGate { body, .. } => Some(body.token),
            Call::FailGate { body, .. } => Some(body.token),
            Call::ResetGate { query, .. } => query.token,
            Call::BreakLock { token, .. } => Some(*token),
            _ => None,
        };
        if let Some(token) = token {
            span.set_attribute(KeyValue::new("lockkeeper.token", number_of(token)));
        }
        let key = match call.row().resource() {
            Resource::Locks => "lockkeeper.lock",
            Resource::Gates => "lockkeeper.gate",
            Resource::Rates => "lockkeeper.rate",
            Resource::Nodes | Resource::Sessions | Resource::Cluster => "lockkeeper.path",
        };
        if let Some(name) = call.name() {
            span.set_attribute(KeyValue::new(key, text_of(name)));
        }
    }

    /// Ends the span with the outcome of the call.
    pub fn end(mut self, answered: &Answered) {
        match answered {
            Ok(reply) => self.end_well(reply),
            Err(failure) => self.end_with_failure(failure),
        }
    }

    fn end_well(&mut self, reply: &Reply) {
        let outcome = match &reply.body {
            Answer::AcquireLock(held) => {
                self.0.set_attribute(KeyValue::new("lockkeeper.token", number_of(held.token)));
                "granted"
            }
            _ => "done",
        };
        self.set_outcome(outcome, reply.status, reply.zxid);
    }

    fn end_with_failure(&mut self, failure: &Failure) {
        let code = failure.code();
        let outcome = match code {
            Code::LockBusy => "timed_out",
            Code::UnknownOutcome => "unknown",
            _ => "refused",
        };
        self.set_outcome(outcome, failure.status(), failure.zxid());
        self.0.set_attribute(KeyValue::new("error.type", code.to_string()));
        // A refusal is the client's affair; see OpenTelemetry's conventions for HTTP.
        if failure.status() >= 500 {
            self.0.set_status(Status::error(code.to_string()));
        }
    }

    fn set_outcome(&mut self, outcome: &'static str, status: u16, zxid: Option<Zxid>) {
        self.0.set_attribute(KeyValue::new("lockkeeper.outcome", outcome));
        self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if let Some(zxid) = zxid {
            self.0.set_attribute(KeyValue::new("lockkeeper.zxid", number_of(zxid.0)));
        }
    }
}
