//! `worker`: the client processes of the proofs. See `lockkeeper_jepsen::work`.

use std::process::ExitCode;

use clap::Parser as _;
use lockkeeper_jepsen::work::{Arguments, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("worker: {why}");
            ExitCode::FAILURE
        }
    }
}
