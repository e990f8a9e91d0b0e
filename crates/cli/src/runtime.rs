//! The runtime on which a command runs.

use crate::failure::{EXIT_OK, Failure};

/// Runs a command on a current-thread runtime.
pub(crate) fn on_runtime(command: impl Future<Output = Result<(), Failure>>) -> Result<u8, Failure> {
    runtime()?.block_on(command).map(|()| EXIT_OK)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the runtime: {e}")))
}
