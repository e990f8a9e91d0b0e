//! In the place of `otlp` where the program is built without that feature: there is nothing of it, and a configuration
//! with `[otlp]` is refused.

use std::sync::Arc;

use axum::http::HeaderMap;
use lockkeeper_api::Call;
use lockkeeper_core::TraceContext;
use lockkeeper_node::TraceSink;

use crate::calls::Answered;
use crate::config::{Config, ConfigError};

/// There is none.
#[derive(Debug)]
pub(crate) enum Otlp {}

/// There is none.
#[derive(Debug)]
pub enum CommandTrace {}

impl CommandTrace {
    /// Nothing is traced, whatever the environment says.
    ///
    /// # Errors
    /// Never.
    pub fn from_environment(_: &str) -> Result<Option<Self>, ConfigError> {
        Ok(None)
    }

    /// There is none to end.
    pub fn end(self, _: u8) {
        match self {}
    }

    /// There is none.
    pub fn traceparent() -> Option<String> {
        None
    }
}

/// There is none.
pub(crate) enum CallerTrace {}

/// There is none.
pub(crate) enum RequestSpan {}

impl Otlp {
    pub(crate) fn open(_: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        Ok(None)
    }

    pub(crate) fn start(&self) {
        match *self {}
    }

    pub(crate) async fn flush(&self) {
        match *self {}
    }

    pub(crate) fn sink(self: &Arc<Self>) -> Arc<dyn TraceSink> {
        match **self {}
    }

    pub(crate) fn caller_over_http(&self, _: &HeaderMap) -> CallerTrace {
        match *self {}
    }

    pub(crate) fn caller_on_stream(&self, _: Option<&str>) -> CallerTrace {
        match *self {}
    }

    pub(crate) fn begin_request(&self, _: CallerTrace, _: (&'static str, &'static str)) -> Option<RequestSpan> {
        match *self {}
    }
}

impl RequestSpan {
    pub(crate) fn context(&self) -> TraceContext {
        match *self {}
    }

    pub(crate) fn describe(&mut self, _: &Call, _: Option<u64>) {
        match *self {}
    }

    pub(crate) fn end(self, _: &Answered) {
        match self {}
    }
}
