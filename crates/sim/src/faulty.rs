//! The simulation with bugs planted on purpose: the same program under another name, so that neither can be taken for the other.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_sim::command::main()
}
