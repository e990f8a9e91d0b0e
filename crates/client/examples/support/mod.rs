//! Shared by the examples: where the cluster is, and checks whose failure ends the example with a non-zero exit code.

#![allow(dead_code, reason = "no example needs all of it")]

pub(crate) mod fence;
pub(crate) mod other;
pub(crate) mod postgres;

use std::error::Error;
use std::time::Duration;

use lockkeeper_client::{Client, Session, SessionOptions};

/// What an example ends with.
pub(crate) type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// The cluster at `LOCKKEEPER_ENDPOINTS` (comma-separated, as `lockkeeper dev` prints it), otherwise that of
/// `scripts/quickstart`.
pub(crate) async fn connect() -> Result<Client, lockkeeper_client::Error> {
    let given = std::env::var("LOCKKEEPER_ENDPOINTS").ok();
    let endpoints = given.unwrap_or_else(|| "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003".into());
    Client::connect(endpoints.split(',')).await
}

/// A session of the usual kind.
pub(crate) async fn session(label: &str) -> Result<Session, lockkeeper_client::Error> {
    session_for(label, Duration::from_secs(10)).await
}

/// A session with that timeout.
pub(crate) async fn session_for(label: &str, timeout: Duration) -> Result<Session, lockkeeper_client::Error> {
    Session::open(&connect().await?, &SessionOptions { timeout, label: label.into(), ..SessionOptions::default() })
        .await
}

/// A name that no other run of an example uses.
pub(crate) fn own(name: &str) -> String {
    format!("examples-{}/{name}", uuid::Uuid::new_v4().simple())
}

/// Says what was checked, or ends the example.
pub(crate) fn check(holds: bool, what: &str) -> Outcome {
    if !holds {
        return Err(format!("CHECK FAILED: {what}").into());
    }
    println!("checked: {what}");
    Ok(())
}
