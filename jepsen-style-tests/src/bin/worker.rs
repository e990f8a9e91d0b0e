//! `worker`: the client processes of the proofs. See `jepsen_style_tests::work`.

use std::process::ExitCode;

use clap::Parser as _;
use jepsen_style_tests::work::{WorkerArguments, run};

#[tokio::main]
async fn main() -> ExitCode {
    // The client library in here may be what carries the mutant.
    #[cfg(mutants)]
    if let Err(unknown) = lockkeeper_mutants::start("worker") {
        eprintln!("worker: {unknown}");
        return ExitCode::FAILURE;
    }
    match run(WorkerArguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("worker: {why}");
            ExitCode::FAILURE
        }
    }
}
