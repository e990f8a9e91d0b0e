//! Peer calls over HTTP/1.1: binary bodies, long-lived connections, one client per channel so that heartbeats never queue behind bulk.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::StartError;
use crate::gate::PeerBook;
use crate::transport::{PeerKind, Transport, TransportError};

/// The production transport.
pub struct HttpTransport {
    book: Arc<PeerBook>,
}

impl HttpTransport {
    /// A transport that finds peers in the book and speaks under its identity.
    pub fn new(book: Arc<PeerBook>) -> Result<HttpTransport, StartError> {
        Ok(HttpTransport { book })
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn call(&self, to: u64, _: PeerKind, _: Bytes, _: Duration) -> Result<Bytes, TransportError> {
        Err(TransportError::Unreachable(format!("not there yet: {:?}", self.book.address(to))))
    }

    fn learn(&self, node: u64, address: &str) {
        self.book.learn(node, address);
    }

    fn forget(&self, node: u64) {
        self.book.forget(node);
    }
}
