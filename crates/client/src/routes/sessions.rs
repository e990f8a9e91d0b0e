//! `/v1/sessions`. [`Session`](crate::Session) keeps a session alive.

use std::time::Duration;

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::sessions::{KeptAlive, OpenSession, Session, SessionOpened, Sessions, SessionsQuery};
use lockkeeper_api::{Call, Code};

use super::{Paging, level, limit};
use crate::client::Client;
use crate::clock::Moment;
use crate::context::Options;
use crate::endpoints::{Endpoint, EndpointError};
use crate::error::Error;
use crate::request_spec::RequestSpec;
use crate::transport::send_once;

impl Client {
    /// Creates a client with the default [`Options`] and waits until an endpoint has answered.
    ///
    /// # Errors
    /// [`Error::Refused`] for endpoints that cannot be used, [`Error::Unreachable`] if none answers; otherwise see
    /// [`Error`].
    pub async fn connect(endpoints: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let bad = |why: EndpointError| Error::refused(Code::BadRequest, why.to_string());
        let client = Self::new(endpoints, Options::default()).map_err(bad)?;
        // The one call that needs no right.
        client.who_am_i().await?;
        Ok(client)
    }

    /// Opens a session without keeping it alive. If the answer is lost, the request is repeated: the first session then
    /// owns nothing and expires.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open_session(&self, open: &OpenSession) -> Result<SessionOpened, Error> {
        self.open_session_timed(open).await.map(|(_, opened)| opened)
    }

    /// The same, with a time before the first attempt.
    pub(crate) async fn open_session_timed(&self, open: &OpenSession) -> Result<(Moment, SessionOpened), Error> {
        let call = Call::OpenSession { body: open.clone() };
        // Nothing can be held by a session whose credential nobody has: an opening without an answer is nothing done.
        self.call_timed(&RequestSpec::new(call)).await
    }

    /// Sends one keepalive of this client's session.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keepalive(&self) -> Result<KeptAlive, Error> {
        self.call(&self.keepalive_spec()?).await
    }

    /// Sends one keepalive of this client's session to that endpoint and no other.
    pub(crate) async fn keepalive_at(&self, endpoint: &Endpoint, limit: Duration) -> Result<KeptAlive, Error> {
        let request = self.context.request(endpoint, &self.keepalive_spec()?, None)?;
        send_once(endpoint, request, limit).await
    }

    fn keepalive_spec(&self) -> Result<RequestSpec, Error> {
        let call = Call::KeepSessionAlive { id: self.context.credential()?.session_id };
        // No part of what the program does: keepalives go on for as long as the session lives.
        Ok(RequestSpec::new(call).untraced())
    }

    /// Closes this client's session. The cluster deletes all it owned.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Lost`] if the session was already over.
    pub async fn close_session(&self) -> Result<(), Error> {
        let call = Call::CloseSession { id: self.context.credential()?.session_id };
        // A repetition is answered with "session expired", which `Session::close` takes for success.
        self.send::<serde::de::IgnoredAny>(call).await.map(|_| ())
    }

    /// Reads a session and what it owns.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn session(&self, session_id: u64) -> Result<Session, Error> {
        let call = Call::GetSession { id: session_id, query: ReadQuery::default() };
        self.send(call).await
    }

    /// A page of the open sessions.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sessions(&self, paging: &Paging) -> Result<Sessions, Error> {
        let after = paging
            .after
            .as_ref()
            .map(|after| after.parse())
            .transpose()
            .map_err(|_| Error::refused(Code::BadRequest, "'after' is the 'next' of the page before, a number"))?;
        let query = SessionsQuery { after, limit: limit(paging.limit), consistency: level(paging.stale) };
        self.send(Call::ListSessions { query }).await
    }
}
