//! One module for each command, or for a family of them.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod dev;
pub(crate) mod elect;
pub(crate) mod gate;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod nodes;
pub(crate) mod semaphore;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod status;
pub(crate) mod unlock;
pub(crate) mod watch;

use std::time::Duration;

use lockkeeper_client::{Client, Options};

use crate::args::Common;
use crate::failure::{EXIT_OK, Failure};

/// A client as the common options want it.
pub(crate) fn client(common: &Common) -> Result<Client, Failure> {
    let endpoints = common.endpoints.iter().map(String::as_str).filter(|text| !text.trim().is_empty());
    let options = Options {
        patience: common.patience,
        attempt_timeout: common.patience.max(Duration::from_millis(100)),
        ..Options::default()
    };
    Ok(Client::new(endpoints, options)?)
}

/// Runs a command that has nothing else to do. The thread that waits is the only one.
pub(crate) fn on_runtime(command: impl Future<Output = Result<(), Failure>>) -> Result<u8, Failure> {
    runtime()?.block_on(command).map(|()| EXIT_OK)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the runtime: {e}")))
}
