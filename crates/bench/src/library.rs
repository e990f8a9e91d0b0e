//! A program's share of the load: one session of the client library, whose tasks take turns with nothing but guards.

use lockkeeper_client::{Client, Options, Session, SessionOptions, Transport};

use crate::BenchError;

/// Opens the session that tasks share, at that endpoint.
pub(crate) async fn open(endpoint: &str, label: &str) -> Result<Session, BenchError> {
    let failed = |why: String| BenchError::Endpoint { endpoint: endpoint.to_owned(), why };
    let client = Client::new([endpoint], Options::default()).map_err(|e| failed(e.to_string()))?;
    let options = SessionOptions { label: label.to_owned(), transport: Transport::Stream, ..SessionOptions::default() };
    Session::open(&client, &options).await.map_err(|e| failed(e.to_string()))
}

/// Ends the session; that another task has done so is no error.
pub(crate) async fn close(session: &Session) -> Result<(), BenchError> {
    let closed = session.close().await;
    closed.map_err(|e| BenchError::Endpoint { endpoint: session.client().preferred().to_string(), why: e.to_string() })
}
