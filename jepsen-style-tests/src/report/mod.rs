//! The report of a run or a matrix: one self-contained page, and the raw history beside it.

mod data;
pub mod matrix;
mod page;
mod plot;
#[cfg(test)]
mod tests;
mod timeline;

pub use data::{OpCounts, Outcome, Provenance, Recovery, Report, Skipped};

use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use crate::history::History;

/// Writes everything into the directory of the run.
pub fn write(dir: &Path, report: &Report, history: &History) -> io::Result<()> {
    lines(&dir.join("history.jsonl"), history.events())?;
    lines(&dir.join("faults.jsonl"), &report.faults)?;
    std::fs::write(dir.join("run.json"), serde_json::to_vec_pretty(report).map_err(io::Error::other)?)?;
    std::fs::write(dir.join("index.html"), page::run(report, history))
}

fn lines<T: Serialize>(path: &Path, all: &[T]) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    for one in all {
        serde_json::to_writer(&mut file, one).map_err(io::Error::other)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}
