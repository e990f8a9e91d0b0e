//! Golden scripts: what the state answers, told in text that reads like a session at a terminal.
//!
//! In `*.txt`, lines that start with `> ` are commands (see `script.rs`), the lines up to the next blank one are what
//! came out, `#` starts a comment. `UPDATE=1 cargo test -p lockkeeper-core --test it golden` writes what comes out;
//! read it before you commit it. After each command every invariant is checked.

mod render;
mod script;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn scripts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "txt"));
    paths.sort();
    paths
}

/// Runs a script and writes it anew, with what came out in place of what was expected.
fn play(script: &str) -> String {
    let mut stage = script::Stage::new();
    let mut played = String::new();
    let mut in_output = false;
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(played, "{line}").unwrap();
            played.push_str(&stage.run(command));
            in_output = true;
        } else if line.is_empty() || line.starts_with('#') {
            writeln!(played, "{line}").unwrap();
            in_output = false;
        } else {
            assert!(in_output, "neither command, comment nor output: {line}");
        }
    }
    played
}

#[test]
fn scripts_come_out_as_written() {
    let paths = scripts();
    assert!(paths.len() >= 12, "only {} scripts found", paths.len());
    let mut wrong = String::new();
    for path in paths {
        let expected = std::fs::read_to_string(&path).unwrap();
        let played = play(&expected);
        if played == expected {
            continue;
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, played).unwrap();
            continue;
        }
        let first = expected.lines().zip(played.lines()).position(|(e, p)| e != p).unwrap_or(0);
        let (want, got) = (expected.lines().nth(first).unwrap_or(""), played.lines().nth(first).unwrap_or(""));
        writeln!(wrong, "{}:{}\n  written:  {want}\n  came out: {got}", path.display(), first + 1).unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
