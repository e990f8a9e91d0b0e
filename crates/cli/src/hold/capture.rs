//! CMD's standard output, passed on as it comes and kept, up to a bound.
//!
//! Whoever reads lockkeeper's own output may be slow: what is passed on goes through a thread of its own, so that a deadline is
//! never missed for it. The bound holds for what waits there, too.

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
    pass_on: Sender<Vec<u8>>,
    writer: JoinHandle<()>,
}

impl Capture {
    /// Passes what comes from `stdout` on to `out`.
    pub(super) fn start(
        stdout: ChildStdout,
        limit: usize,
        mut out: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let pipe = Receiver::from_owned_fd(stdout.into())?;
        let (pass_on, pieces) = channel::<Vec<u8>>();
        let writer = std::thread::Builder::new().name("output".into()).spawn(move || {
            for piece in pieces {
                // A reader that has gone has no part in whether CMD's result is stored.
                if out.write_all(&piece).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { pipe, kept: Vec::new(), limit, ended: false, pass_on, writer })
    }

    /// Takes what comes; completes when it is more than the bound. May be dropped at any time and asked again.
    pub(super) async fn too_much(&mut self) {
        while !self.is_too_much() {
            if self.ended || self.pipe.readable().await.is_err() {
                return std::future::pending().await;
            }
            self.take();
        }
    }

    fn take(&mut self) {
        let mut piece = vec![0; PIECE];
        while !self.ended && !self.is_too_much() {
            match self.pipe.try_read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.add(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => self.ended = error.kind() != std::io::ErrorKind::Interrupted,
            }
        }
    }

    /// Takes all that is in the pipe, without waiting for more. Asks the system, not the runtime: that may not have heard yet of what
    /// was written last, and would say that there is nothing.
    pub(super) fn take_rest(&mut self) {
        let mut piece = vec![0; PIECE];
        while !self.ended && !self.is_too_much() {
            match nix::unistd::read(&self.pipe, &mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.add(&piece[..count]),
                Err(nix::errno::Errno::EINTR) => {}
                // A process that has left the group may have it open still; what it writes is not CMD's.
                Err(_) => return,
            }
        }
    }

    fn add(&mut self, piece: &[u8]) {
        self.kept.extend_from_slice(piece);
        // The thread has ended if nobody reads any more.
        let _ = self.pass_on.send(piece.to_vec());
    }

    pub(super) fn is_too_much(&self) -> bool {
        self.kept.len() > self.limit
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Returns when all that came has been passed on.
    pub(super) fn finish(self) {
        drop(self.pass_on);
        // It does not panic; and if it did, what came was kept all the same.
        let _ = self.writer.join();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Of a command that has ended.
    fn capture(script: &str, limit: usize) -> Capture {
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        child.wait().unwrap();
        Capture::start(stdout, limit, std::io::sink()).unwrap()
    }

    #[tokio::test]
    async fn what_was_written_last_is_taken_before_the_runtime_hears_of_it() {
        // Nothing has been waited for here, so the runtime has not looked at the pipe.
        let mut capture = capture("printf whole", 100);
        capture.take_rest();
        assert_eq!(capture.kept(), b"whole");
        capture.take_rest();
        assert_eq!(capture.kept(), b"whole");
    }

    #[tokio::test]
    async fn no_more_is_kept_than_one_piece_beyond_the_bound() {
        let mut capture = capture("head -c 60000 /dev/zero", 10);
        capture.too_much().await;
        assert!(capture.is_too_much() && capture.kept().len() <= 10 + PIECE);
    }
}
