//! `/v1/nodes` and `/v1/txn`.

use lockkeeper_api::nodes::{Changed, Create, Deleted, Node, SetData, Txn, TxnDone};
use reqwest::Method;

use super::{Query, Reading, node_path};
use crate::client::Client;
use crate::error::Error;
use crate::request_spec::{RequestSpec, RetryPolicy};

/// The request of [`Client::create`].
pub(crate) fn create_spec(path: &str, create: &Create) -> Result<RequestSpec, Error> {
    let target = format!("/v1/nodes{}", node_path(path)?);
    RequestSpec::new(Method::POST, target, RetryPolicy::ByRequestId).json(create)
}

/// The request of [`Client::txn`].
pub(crate) fn txn_spec(txn: &Txn) -> Result<RequestSpec, Error> {
    RequestSpec::new(Method::POST, "/v1/txn".into(), RetryPolicy::ByRequestId).json(txn)
}

impl Client {
    /// Reads a node.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node(&self, path: &str, reading: &Reading) -> Result<Node, Error> {
        let query = Query::default()
            .maybe("children", reading.children.then_some("true"))
            .maybe("children_after", reading.children_after.as_ref())
            .maybe("children_limit", reading.children_limit)
            .maybe("consistency", reading.stale.then_some("stale"));
        self.call(&RequestSpec::get(query.behind(&format!("/v1/nodes{}", node_path(path)?)))).await
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
        let target = Query::default().maybe("version", version).behind(&format!("/v1/nodes{}", node_path(path)?));
        self.call(&RequestSpec::new(Method::PUT, target, RetryPolicy::ByRequestId).json(set)?).await
    }

    /// Deletes a node, if the node has that version.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(&self, path: &str, version: Option<i32>) -> Result<Deleted, Error> {
        let target = Query::default().maybe("version", version).behind(&format!("/v1/nodes{}", node_path(path)?));
        self.call(&RequestSpec::new(Method::DELETE, target, RetryPolicy::ByRequestId)).await
    }

    /// Applies several operations, all or none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn txn(&self, txn: &Txn) -> Result<TxnDone, Error> {
        self.call(&txn_spec(txn)?).await
    }
}
