//! SIGHUP, which asks a node to read its certificates and to open its audit file again.
//!
//! Each task that acts on the signal has a value of its own, and each of them gets every signal. A node without such a
//! task leaves the signal alone, and then it ends the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// See the module's text.
pub struct Hangups(Option<Signal>);

impl Hangups {
    /// Handles the signal from now on. `without` is the consequence if that is not possible, for the log.
    pub fn new(without: &'static str) -> Self {
        let signal = signal(SignalKind::hangup());
        Self(signal.inspect_err(|error| tracing::warn!(%error, without, "cannot receive SIGHUP")).ok())
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending().await
        }
    }
}
