//! Hands the commit of the build to `lockkeeper version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=LOCKKEEPER_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // A checkout of another project may be around this crate.
    let of_checkout = git("--show-prefix").is_some_and(|prefix| prefix == "crates/cli/");
    let commit = std::env::var("LOCKKEEPER_COMMIT").ok().or_else(|| of_checkout.then(|| git("--short=12 HEAD"))?);
    println!("cargo::rustc-env=LOCKKEEPER_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    if let Some(log) = git("--git-path logs/HEAD").filter(|log| of_checkout && Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
}

/// What `git rev-parse` prints.
fn git(arguments: &str) -> Option<String> {
    let output = Command::new("git").arg("rev-parse").args(arguments.split(' ')).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
