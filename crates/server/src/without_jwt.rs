//! In the place of `jwt` where the program is built without that feature: there is nothing of it, and a configuration
//! with `[auth.jwt]` is refused.

use std::sync::Arc;

use tokio::time::Instant;

use crate::config::{Config, ConfigError};

/// There is none.
#[derive(Debug)]
pub(crate) enum Jwt {}

/// There is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtError {}

impl Jwt {
    pub(crate) fn open(_: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        Ok(None)
    }

    pub(crate) fn prove(&self, _: &str) -> Result<(String, Instant), JwtError> {
        match *self {}
    }

    pub(crate) async fn keep_current(self: Arc<Self>) {
        match *self {}
    }
}
