//! `/v1/access` and `/v1/namespaces`: roles, grants and tokens, and the limits of namespaces.
//!
//! None of these calls is made on behalf of the client's session: the answer depends on the caller's principals alone.

use lockkeeper_api::Call;
use lockkeeper_api::access::{Access, AccessAnswer, AccessChange, AccessChanged, AccessQuestion, Namespaces, WhoAmI};
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::row::Retry;

use crate::client::Client;
use crate::error::Error;
use crate::request_spec::RequestSpec;

impl Client {
    /// Reads access control: roles, grants and tokens without their secrets.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn access(&self) -> Result<Access, Error> {
        let call = Call::GetAccess { query: ReadQuery::default() };
        self.send(call).await
    }

    /// Changes access control. Draw a token yourself ([`AccessToken::draw`](crate::AccessToken::draw)), store it, and
    /// give its hash to [`AccessChange::CreateToken`] or [`AccessChange::Enable`]: such a call is repeated while its
    /// outcome is unknown, and nothing is lost with an answer. Without a hash the node draws the token, and its answer
    /// is the only place where the token is shown.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn change_access(&self, change: &AccessChange) -> Result<AccessChanged, Error> {
        let retry = match change {
            // The hash identifies the change.
            AccessChange::Enable { token_hash: Some(_) } | AccessChange::CreateToken { token_hash: Some(_), .. } => {
                Retry::Idempotent
            }
            _ => Retry::Never,
        };
        let call = Call::ChangeAccess { body: change.clone() };
        self.call(&RequestSpec::new(call).with_retry(retry)).await
    }

    /// Lists the namespaces that have limits, with what they use. Without the right to read the cluster, only those
    /// that this client owns.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn namespaces(&self) -> Result<Namespaces, Error> {
        let call = Call::ListNamespaces { query: ReadQuery::default() };
        self.send(call).await
    }

    /// Tells this client's principals and roles.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn who_am_i(&self) -> Result<WhoAmI, Error> {
        let call = Call::WhoAmI { query: ReadQuery::default() };
        self.send(call).await
    }

    /// Asks whether nothing can be reached now, as [`Error::is_outage`] means it, for as long as this client is
    /// patient: before a caller acts without the cluster, as it has declared in advance. Any answer comes from a
    /// cluster that is there.
    pub async fn is_outage(&self) -> bool {
        self.who_am_i().await.is_err_and(|error| error.is_outage())
    }

    /// Says whether this client, or the principal of the question, may do something. Does not do it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn check_access(&self, question: &AccessQuestion) -> Result<AccessAnswer, Error> {
        let call = Call::CheckAccess { query: question.clone() };
        self.send(call).await
    }
}
