//! `worker-faulty`: the client processes with a bug planted in the client library (`LOCKKEEPER_PLANTED`), for `--mutants`.

use std::process::ExitCode;

use clap::Parser as _;
use jepsen_style_tests::work::{Arguments, run};

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(unknown) = lockkeeper_planted::from_env() {
        eprintln!("worker-faulty: {unknown}");
        return ExitCode::FAILURE;
    }
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("worker-faulty: {why}");
            ExitCode::FAILURE
        }
    }
}
