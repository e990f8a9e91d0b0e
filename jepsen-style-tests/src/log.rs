//! The log of a proof: lines on standard output with the time since the start, and the same lines in `proof.log` beside
//! the evidence.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use parking_lot::Mutex;

/// The recorder.
pub struct RunLog {
    begun: Instant,
    file: Mutex<File>,
}

impl RunLog {
    /// Begins `dir/proof.log`.
    pub fn begin(dir: &Path) -> std::io::Result<Self> {
        Ok(Self { begun: Instant::now(), file: Mutex::new(File::create(dir.join("proof.log"))?) })
    }

    /// Says a line.
    pub fn say(&self, line: impl AsRef<str>) {
        let line = format!("[{:8.3}] {}", self.begun.elapsed().as_secs_f64(), line.as_ref());
        println!("{line}");
        self.note_line(&line);
    }

    /// Writes a line into the file only: for evidence that would drown the reader.
    pub fn note(&self, line: impl AsRef<str>) {
        self.note_line(&format!("[{:8.3}] {}", self.begun.elapsed().as_secs_f64(), line.as_ref()));
    }

    fn note_line(&self, line: &str) {
        // A full disk must not stop a proof: what it saw is on standard output too.
        let _ = writeln!(self.file.lock(), "{line}");
    }
}
