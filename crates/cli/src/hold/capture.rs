//! Copies CMD's standard output to lockkeeper's own and keeps it, up to a limit.
//!
//! The reader of lockkeeper's output may be slow, so a separate thread writes it and no deadline is missed. The limit
//! also bounds what waits in that thread's queue.

use std::io::Write;
use std::process::ChildStdout;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tokio::net::unix::pipe::Receiver;

const PIECE: usize = 16 << 10;

/// See the module's text.
pub(super) struct Capture {
    pipe: Receiver,
    kept: Vec<u8>,
    limit: usize,
    ended: bool,
    to_writer: Sender<Vec<u8>>,
    writer: JoinHandle<()>,
}

impl Capture {
    /// Copies `stdout` to `out`.
    pub(super) fn start(
        stdout: ChildStdout,
        limit: usize,
        mut out: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let pipe = Receiver::from_owned_fd(stdout.into())?;
        let (to_writer, pieces) = channel::<Vec<u8>>();
        let writer = std::thread::Builder::new().name("output".into()).spawn(move || {
            for piece in pieces {
                // A closed pipe does not keep CMD's result from being stored.
                if out.write_all(&piece).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { pipe, kept: Vec::new(), limit, ended: false, to_writer, writer })
    }

    /// Reads the output. Completes when it exceeds the limit. Cancel-safe.
    pub(super) async fn limit_exceeded(&mut self) {
        while !self.exceeds_limit() {
            if self.ended || self.pipe.readable().await.is_err() {
                return std::future::pending().await;
            }
            self.read_available();
        }
    }

    fn read_available(&mut self) {
        let mut piece = vec![0; PIECE];
        while !self.ended && !self.exceeds_limit() {
            match self.pipe.try_read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.add(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => self.ended = error.kind() != std::io::ErrorKind::Interrupted,
            }
        }
    }

    /// Reads everything in the pipe without waiting for more. Uses a system call, because the runtime may not have
    /// noticed the latest write and would report an empty pipe.
    pub(super) fn read_rest(&mut self) {
        let mut piece = vec![0; PIECE];
        while !self.ended && !self.exceeds_limit() {
            match nix::unistd::read(&self.pipe, &mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.add(&piece[..count]),
                Err(nix::errno::Errno::EINTR) => {}
                // A process that has left the group may still have the pipe open; its output is not CMD's.
                Err(_) => return,
            }
        }
    }

    fn add(&mut self, piece: &[u8]) {
        self.kept.extend_from_slice(piece);
        // The thread has ended if the pipe is closed.
        let _ = self.to_writer.send(piece.to_vec());
    }

    pub(super) fn exceeds_limit(&self) -> bool {
        self.kept.len() > self.limit
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Waits until all output has been written.
    pub(super) fn finish(self) {
        drop(self.to_writer);
        // The thread does not panic; the output is kept in any case.
        let _ = self.writer.join();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Captures the output of a command that has ended.
    fn capture(script: &str, limit: usize) -> Capture {
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        child.wait().unwrap();
        Capture::start(stdout, limit, std::io::sink()).unwrap()
    }

    #[tokio::test]
    async fn the_latest_write_is_read_before_the_runtime_notices_it() {
        // Nothing was awaited yet, so the runtime has not polled the pipe.
        let mut capture = capture("printf whole", 100);
        capture.read_rest();
        assert_eq!(capture.kept(), b"whole");
        capture.read_rest();
        assert_eq!(capture.kept(), b"whole");
    }

    #[tokio::test]
    async fn at_most_one_piece_beyond_the_limit_is_kept() {
        let mut capture = capture("head -c 60000 /dev/zero", 10);
        capture.limit_exceeded().await;
        assert!(capture.exceeds_limit() && capture.kept().len() <= 10 + PIECE);
    }
}
