//! `lockkeeper man`: writes the manual pages, made from the definition of the command line as `--help` is.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::args::laid_out;
use crate::failure::{EXIT_OK, Failure, wants_json};
use crate::output::{print_json, print_line};

/// The width of a page's text on a terminal of 80 columns.
const WIDTH: usize = 72;

/// Writes a page for each command that `--help` shows.
pub(crate) fn run(directory: &Path) -> Result<u8, Failure> {
    let cannot = |error: std::io::Error| {
        let directory = directory.display();
        Failure::failed(format!("cannot write the manual pages to {directory}: {error}; name a writable directory"))
    };
    std::fs::create_dir_all(directory).map_err(cannot)?;
    write(laid_out(WIDTH).disable_help_subcommand(true), directory).map_err(cannot)?;
    let directory = directory.display().to_string();
    match wants_json() {
        true => print_json(&serde_json::json!({ "directory": directory })),
        false => print_line(&format!("the manual pages are in {directory}")),
    }
    .map(|()| EXIT_OK)
}

fn write(command: Command, directory: &Path) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        write(sub.clone(), directory)?;
    }
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
    std::fs::write(directory.join(page.get_filename()), text)
}
