//! `prove NAME`: tries to falsify one of the promises against real processes, and ends in one line.

fn main() -> std::process::ExitCode {
    jepsen_style_tests::proofs::command::main()
}
