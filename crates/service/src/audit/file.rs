//! The audit file, one JSON object a line, and the thread that writes it.
//!
//! A task must not wait for the disk, least of all the one that applies the log. So records go through a bounded queue
//! to a thread of their own. A record that cannot be written is an error in the log and a count in
//! `lockkeeper_audit_write_failures_total`; what it is about goes on.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::oneshot;

/// Most records that wait to be written.
const QUEUED_RECORDS: usize = 1_024;

/// The file that other programs may rename or remove at any time.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    /// `None` after a failure.
    file: Option<File>,
}

impl AuditFile {
    /// Opens the file, or creates it with mode 0600.
    ///
    /// # Errors
    /// As [`File::open`], or it is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(open_to_append(path)?), path: path.to_path_buf() })
    }

    /// Opens the file again, whatever stands at its path by now.
    fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        self.file = Some(open_to_append(&self.path)?);
        Ok(())
    }

    /// Appends a line, which ends with a line break, to the file that stands at the path now.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) if is_at(&self.path, &file) => file,
            _ => open_to_append(&self.path)?,
        };
        // After a failure the file is opened again, which ends a line of which only a part was written.
        file.write_all(line)?;
        self.file = Some(file);
        Ok(())
    }
}

/// Whether the path still names the open file.
fn is_at(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}

fn open_to_append(path: &Path) -> io::Result<File> {
    // For reading too: the last byte says whether the last line is whole, and a pipe opens without waiting.
    let mut file = File::options().read(true).append(true).create(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if let Some(last) = metadata.len().checked_sub(1) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, last)?;
        if byte != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

enum Message {
    Append(Vec<u8>),
    Reopen,
    /// Answered once all records before it are written.
    Flush(oneshot::Sender<()>),
}

/// Hands records to the thread, which ends when its writer is dropped.
#[derive(Debug)]
pub(super) struct AuditWriter(SyncSender<Message>);

impl AuditWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(file: AuditFile) -> io::Result<Self> {
        let (messages, queue) = sync_channel(QUEUED_RECORDS);
        std::thread::Builder::new().name("audit-writer".into()).spawn(move || write(file, &queue))?;
        Ok(Self(messages))
    }

    /// Appends a line.
    pub(super) fn append(&self, line: Vec<u8>) {
        if self.0.try_send(Message::Append(line)).is_err() {
            count_failure();
            tracing::error!(
                queued = QUEUED_RECORDS,
                "the audit file lacks a record, because too many wait to be written; the log has it"
            );
        }
    }

    /// Opens the file again.
    pub(super) fn reopen(&self) {
        // Without room in the queue nothing is lost: each write looks whether the file was replaced.
        let _ = self.0.try_send(Message::Reopen);
    }

    /// Returns once the records before this call are written, or the thread is stuck with a full queue.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.try_send(Message::Flush(done)).is_ok() {
            // An error means that the thread has ended, and then nothing waits.
            let _ = flushed.await;
        }
    }
}

fn write(mut file: AuditFile, queue: &Receiver<Message>) {
    for message in queue {
        let done = match message {
            Message::Append(line) => file.append(&line).inspect_err(|_| count_failure()),
            Message::Reopen => file.reopen(),
            Message::Flush(done) => {
                // The caller may no longer wait.
                let _ = done.send(());
                continue;
            }
        };
        if let Err(error) = done {
            let path = file.path.display();
            tracing::error!(
                %path, %error,
                "cannot write the audit file (audit.file); the log has each record; correct its directory and modes"
            );
        }
    }
}

fn count_failure() {
    metrics::counter!("lockkeeper_audit_write_failures_total").increment(1);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn at() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        (directory, path)
    }

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let (_directory, path) = at();
        AuditFile::open(&path).unwrap().append(b"first\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut file = AuditFile::open(&path).unwrap();
        file.append(b"second\n").unwrap();
        // O_APPEND: nothing that somebody else wrote is overwritten.
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"foreign\n").unwrap();
        file.append(b"third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nforeign\nthird\n");
    }

    #[test]
    fn a_renamed_or_removed_file_is_replaced() {
        let (directory, path) = at();
        let mut file = AuditFile::open(&path).unwrap();
        file.append(b"old\n").unwrap();
        let rotated = directory.path().join("audit.jsonl.1");
        fs::rename(&path, &rotated).unwrap();
        file.append(b"new\n").unwrap();
        assert_eq!(fs::read_to_string(&rotated).unwrap(), "old\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        // Another file in its place.
        fs::rename(&path, &rotated).unwrap();
        fs::write(&path, "made by the tool\n").unwrap();
        file.append(b"newer\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "made by the tool\nnewer\n");
        fs::remove_file(&path).unwrap();
        file.append(b"newest\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newest\n");
    }

    #[test]
    fn a_line_that_was_cut_off_is_ended() {
        let (_directory, path) = at();
        fs::write(&path, "{\"time\":\"20").unwrap();
        AuditFile::open(&path).unwrap().append(b"whole\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"time\":\"20\nwhole\n");
    }

    #[test]
    fn what_cannot_be_opened_is_an_error_and_is_tried_again() {
        let (directory, path) = at();
        assert!(AuditFile::open(directory.path()).is_err(), "a directory");
        assert!(AuditFile::open(&directory.path().join("missing/audit.jsonl")).is_err());
        let mut file = AuditFile::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.append(b"lost\n").is_err());
        assert!(file.reopen().is_err());
        assert!(file.append(b"lost\n").is_err());
        fs::remove_dir(&path).unwrap();
        file.append(b"kept\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept\n");
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let (_directory, path) = at();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let error = AuditFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[tokio::test]
    async fn the_thread_writes_in_order_and_opens_the_file_again_when_asked() {
        let (directory, path) = at();
        let writer = AuditWriter::start(AuditFile::open(&path).unwrap()).unwrap();
        for number in 0..100 {
            writer.append(format!("{number}\n").into_bytes());
        }
        writer.flush().await;
        let lines: Vec<u32> = fs::read_to_string(&path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(lines, (0..100).collect::<Vec<u32>>());
        fs::rename(&path, directory.path().join("audit.jsonl.1")).unwrap();
        writer.reopen();
        writer.flush().await;
        assert!(path.exists(), "created before the next record");
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_written_stops_nothing() {
        let (_directory, path) = at();
        let writer = AuditWriter::start(AuditFile::open(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        writer.append(b"lost\n".to_vec());
        writer.flush().await;
        fs::remove_dir(&path).unwrap();
        writer.append(b"kept\n".to_vec());
        writer.flush().await;
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept\n");
    }
}
