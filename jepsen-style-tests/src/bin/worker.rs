//! `worker`: the client processes of the proofs. See `jepsen_style_tests::work`.

use std::process::ExitCode;

use clap::Parser as _;
use jepsen_style_tests::work::{Arguments, run};

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
