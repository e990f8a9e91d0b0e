//! In the place of `otlp` where the program is built without that feature: there is nothing of it, and a configuration
//! with `[otlp]` is refused.

use std::sync::Arc;

use axum::http::HeaderMap;
use lockkeeper_api::{Call, Code};
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

    /// There is none.
    pub fn traceparent() -> Option<String> {
        None
    }
}

/// There is none.
#[derive(Clone)]
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

    pub(crate) fn http_request(&self, _: (&'static str, &str), _: &HeaderMap) -> Option<RequestSpan> {
        match *self {}
    }

    pub(crate) fn stream_request(&self, _: (&'static str, &str), _: Option<&str>) -> Option<RequestSpan> {
        match *self {}
    }
}

impl RequestSpan {
    pub(crate) fn context(&self) -> TraceContext {
        match *self {}
    }

    pub(crate) fn describe(&self, _: &Call, _: Option<u64>) {
        match *self {}
    }

    pub(crate) fn answered(&self, _: &Answered) {
        match *self {}
    }

    pub(crate) fn end(&self, _: u16, _: Option<Code>) {
        match *self {}
    }
}
