//! `lockkeeper completions`.

use clap::CommandFactory;

use crate::args::Args;
use crate::failure::{EXIT_OK, Failure};
use crate::output::print_bytes;

/// Prints the script.
pub(crate) fn run(shell: clap_complete::Shell) -> Result<u8, Failure> {
    // Into memory first: the generator panics on a pipe that closes.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "lockkeeper", &mut script);
    print_bytes(&script).map(|()| EXIT_OK)
}
