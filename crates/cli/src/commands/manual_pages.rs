//! `lockkeeper man`: writes the manual pages, made from the definition of the command line as `--help` is.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Args;
use crate::failure::{EXIT_OK, Failure, wants_json};
use crate::output::{print_json, print_line};

/// Writes a page for each command that `--help` shows.
pub(crate) fn run(directory: &Path) -> Result<u8, Failure> {
    let cannot = |error: std::io::Error| {
        let directory = directory.display();
        Failure::failed(format!("cannot write the manual pages to {directory}: {error}; name a writable directory"))
    };
    std::fs::create_dir_all(directory).map_err(cannot)?;
    clap_mangen::generate_to(Args::command(), directory).map_err(cannot)?;
    let directory = directory.display().to_string();
    match wants_json() {
        true => print_json(&serde_json::json!({ "directory": directory })),
        false => print_line(&format!("the manual pages are in {directory}")),
    }
    .map(|()| EXIT_OK)
}
