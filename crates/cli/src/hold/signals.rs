//! The signals that are for the command.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::{EXIT_INTERNAL, Failure};

const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Receives them from now on.
pub(super) fn passed_on() -> Result<mpsc::Receiver<Signal>, Failure> {
    let (tell, told) = mpsc::channel(64);
    for which in PASSED_ON {
        let failed = |e: std::io::Error| Failure::new(EXIT_INTERNAL, format!("cannot receive {which}: {e}"));
        let mut received = signal(SignalKind::from_raw(which as i32)).map_err(failed)?;
        let tell = tell.clone();
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                if tell.send(which).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(told)
}
