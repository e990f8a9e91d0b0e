//! `/v1/nodes` and `/v1/txn`.

use lockkeeper_api::Call;
use lockkeeper_api::nodes::{
    Add, Added, Changed, Create, Deleted, Node, NodeQuery, SetData, Txn, TxnDone, VersionQuery,
};

use super::{Reading, level, limit, node_path};
use crate::client::Client;
use crate::error::Error;
use crate::request_spec::RequestSpec;

/// The request of [`Client::create`].
pub(crate) fn create_spec(path: &str, create: &Create) -> Result<RequestSpec, Error> {
    let call = Call::CreateNode { path: node_path(path)?, body: create.clone() };
    Ok(RequestSpec::new(call))
}

/// The request of [`Client::txn`].
pub(crate) fn txn_spec(txn: &Txn) -> RequestSpec {
    RequestSpec::new(Call::RunTransaction { body: txn.clone() })
}

impl Client {
    /// Reads a node.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node(&self, path: &str, reading: &Reading) -> Result<Node, Error> {
        let query = NodeQuery {
            children: reading.children.then_some(true),
            children_after: reading.children_after.clone(),
            children_limit: limit(reading.children_limit),
            consistency: level(reading.stale),
        };
        self.send(Call::GetNode { path: node_path(path)?, query }).await
    }

    /// The names of all children of a node, read page by page. The node may change between two pages.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        let mut reading = Reading { children: true, ..Reading::default() };
        loop {
            let page = self.node(path, &reading).await?;
            names.extend(page.children.unwrap_or_default());
            match page.next_children {
                Some(next) => reading.children_after = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Creates a node.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create(&self, path: &str, create: &Create) -> Result<Changed, Error> {
        self.call(&create_spec(path, create)?).await
    }

    /// Sets a node's data, if the node has that version.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn set(&self, path: &str, set: &SetData, version: Option<i32>) -> Result<Changed, Error> {
        let query = VersionQuery { version };
        let call = Call::SetNode { path: node_path(path)?, query, body: set.clone() };
        self.send(call).await
    }

    /// Deletes a node, if the node has that version.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(&self, path: &str, version: Option<i32>) -> Result<Deleted, Error> {
        let call = Call::DeleteNode { path: node_path(path)?, query: VersionQuery { version } };
        self.send(call).await
    }

    /// Adds to the decimal number in a node, within bounds that the cluster checks. A missing node counts as 0 and is
    /// created.
    ///
    /// # Errors
    /// [`OutOfBounds`](lockkeeper_api::Code::OutOfBounds) if the sum would be beyond a bound; otherwise see [`Error`].
    pub async fn add(&self, path: &str, add: &Add) -> Result<Added, Error> {
        let call = Call::AddToCounter { path: node_path(path)?, body: add.clone() };
        self.send(call).await
    }

    /// Applies several operations, all or none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn txn(&self, txn: &Txn) -> Result<TxnDone, Error> {
        self.call(&txn_spec(txn)).await
    }
}
