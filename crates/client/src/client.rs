//! The client's public handle.

use std::sync::Arc;

use lockkeeper_api::Credential;

use crate::context::{Context, Options};
use crate::endpoints::{Endpoint, EndpointError};
use crate::stream::StreamHandle;
use crate::tls::Tls;

/// A handle on the cluster; clones share connections and the preferred endpoint.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) context: Context,
    /// The session's stream, which requests of the session go over.
    pub(crate) stream: Option<Arc<StreamHandle>>,
}

impl Client {
    /// Creates a client of the cluster at `endpoints`, without TLS. It connects when first used.
    ///
    /// # Errors
    /// No endpoint is given, or one cannot be used.
    pub fn new(endpoints: impl IntoIterator<Item = impl AsRef<str>>, options: Options) -> Result<Self, EndpointError> {
        Self::new_with_tls(endpoints, options, None)
    }

    /// The same with TLS, where it is given, for `https` endpoints and for those that name no scheme.
    ///
    /// # Errors
    /// No endpoint is given, or one cannot be used.
    pub fn new_with_tls(
        endpoints: impl IntoIterator<Item = impl AsRef<str>>,
        options: Options,
        tls: Option<Tls>,
    ) -> Result<Self, EndpointError> {
        Ok(Self { context: Context::new(endpoints, options, tls)?, stream: None })
    }

    /// The same client, acting for that session.
    #[must_use]
    pub fn as_session(&self, credential: Credential) -> Self {
        Self { context: self.context.as_session(credential), stream: None }
    }

    /// The endpoints of the cluster.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.context.endpoints.all()
    }

    /// The endpoint that the client asks first.
    pub fn preferred(&self) -> &Endpoint {
        self.context.endpoints.at(self.context.endpoints.preferred())
    }

    /// A client of that one endpoint, with the same connections and session.
    ///
    /// # Errors
    /// The endpoint cannot be used.
    pub fn only(&self, endpoint: &Endpoint) -> Result<Self, EndpointError> {
        Ok(Self { context: self.context.only(endpoint)?, stream: None })
    }

    /// The same client over HTTP, which does not acknowledge answers; see [`Context::unacknowledging`].
    pub(crate) fn unacknowledging(&self) -> Self {
        Self { context: self.context.unacknowledging(), stream: None }
    }

    /// The same client without its session, for what is to outlive the session.
    pub(crate) fn anonymous(&self) -> Self {
        Self { context: Context { identity: None, ..self.context.clone() }, stream: None }
    }
}
