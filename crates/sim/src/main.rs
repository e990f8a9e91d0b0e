//! The simulation. See [`lockkeeper_sim::command`] for the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_sim::command::main()
}
