//! The simulation. What it can do is in [`lockkeeper_sim::command`].

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_sim::command::main()
}
