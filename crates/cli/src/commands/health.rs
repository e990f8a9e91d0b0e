//! `lockkeeper health`: asks whether nodes are ready, for health checks that have no HTTP client.

use crate::args::Common;
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{print_json, print_line};

/// Succeeds if each endpoint says that it is ready. Needs no right.
pub(crate) async fn run(common: &Common) -> Result<(), Failure> {
    let ready = client(common)?.all_ready(common.patience).await;
    if common.json {
        print_json(&serde_json::json!({ "ready": ready }))?;
    }
    match ready {
        true if common.json => Ok(()),
        true => print_line("ready"),
        false => {
            let endpoints = common.endpoints.join(",");
            Err(Failure::failed(format!("not ready, or not reached: {endpoints}; `lockkeeper status` has the reason")))
        }
    }
}
