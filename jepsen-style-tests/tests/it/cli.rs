//! What the program says to wrong usage, and that it cannot be taken for a pass.

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_jepsen-style-tests");
    Command::new(program).args(words).env_remove("LOCKKEEPER_BIN").output().expect("runs")
}

fn refused(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn wrong_names_are_answered_with_the_right_ones() {
    let said = refused(&["--workload", "lokc"]);
    assert!(said.contains("no workload 'lokc'") && said.contains("fenced-lock"), "{said}");
    let said = refused(&["--nemesis", "none,flood"]);
    assert!(said.contains("no nemesis 'flood'") && said.contains("kill-leader"), "{said}");
}

#[test]
fn figures_out_of_bounds_are_refused() {
    assert!(refused(&["--nodes", "4"]).contains("3 or 5"));
    assert!(refused(&["--time", "4"]).contains("5..=86400"));
    assert!(refused(&["--clients", "201"]).contains("1..=200"));
    assert!(refused(&["--matrix", "--slice"]).contains("cannot be used with"));
}

#[test]
fn a_server_that_is_not_there_is_not_a_pass() {
    let said = refused(&["--binary", "no/such/server", "--workload", "lock", "--nemesis", "none"]);
    assert!(said.contains("no server binary at no/such/server"), "{said}");
}

#[test]
fn the_list_names_both() {
    let output = run(&["--list"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("unfenced-lock") && said.contains("client-pause"), "{said}");
}
