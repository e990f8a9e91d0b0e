//! What one node says of itself: its metrics, and the checksum of its state.

use std::time::Duration;

use lockkeeper_api::Call;
use lockkeeper_api::cluster::{ClusterQuery, StateChecksum, Status};

use crate::client::Client;
use crate::endpoints::Endpoint;
use crate::error::Error;
use crate::request_spec::RequestSpec;
use crate::transport::{send_once, send_once_for_bytes};

impl Client {
    /// The metrics of that endpoint in Prometheus' text format. Needs no right.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn metrics_of(&self, endpoint: &Endpoint, limit: Duration) -> Result<String, Error> {
        let request = self.context.http.get(format!("{endpoint}/metrics"));
        let bytes = send_once_for_bytes(endpoint, request, limit).await?;
        String::from_utf8(bytes.into())
            .map_err(|error| Error::NotLockkeeper { endpoint: endpoint.to_string(), why: error.to_string() })
    }

    /// The checksum of the first state of that endpoint's replica that has at least this zxid, or of its present state
    /// after a short wait. Equal zxids must have equal checksums at all endpoints. Work in proportion to the state.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn checksum_of(&self, endpoint: &Endpoint, from: u64, limit: Duration) -> Result<StateChecksum, Error> {
        let query = ClusterQuery { checksum: Some(true), checksum_from: Some(from) };
        let request = self.context.request(endpoint, &RequestSpec::new(Call::GetCluster { query }), None)?;
        let status: Status = send_once(endpoint, request, limit).await?;
        status.state.ok_or_else(|| Error::NotLockkeeper {
            endpoint: endpoint.to_string(),
            why: "it answered without the checksum that it was asked for".into(),
        })
    }
}
