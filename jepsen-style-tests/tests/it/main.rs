//! The fault suite as a program; the fencing helpers and the engines on SQL databases against real servers; and each
//! family of faults against a real cluster. The last takes minutes, and root for some:
//! `cargo test -p jepsen-style-tests --features live`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of which clippy takes them to be")]

/// Whether the server of a test is installed. Under `CI=true` it must be; elsewhere a note says that the test did
/// nothing, and which packages of Debian it needs.
fn is_installed(installed: bool, packages: &str) -> bool {
    if !installed {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!ci, "the server of this test is not installed: install {packages}");
        eprintln!("note: this test did nothing, since its server is not installed: install {packages}");
    }
    installed
}

mod cli;
mod engines;
mod engines_sql;
mod fencing_mysql;
#[cfg(feature = "live")]
mod nemeses;
