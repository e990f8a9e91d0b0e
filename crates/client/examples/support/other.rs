//! Another process: the same example, told to play another part, that can be killed without a word.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::Outcome;

/// A running process; killed when dropped.
pub(crate) struct Other(Child);

impl Other {
    /// Starts this very program with these arguments and waits for the first line that it prints.
    pub(crate) fn start(arguments: &[&str]) -> Result<(Self, String), Box<dyn std::error::Error + Send + Sync>> {
        let mut other = Self(Command::new(std::env::current_exe()?).args(arguments).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        let output = other.0.stdout.take().ok_or("the other process has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        if line.is_empty() {
            return Err("the other process ended before it said anything".into());
        }
        Ok((other, line.trim().to_owned()))
    }

    /// SIGKILL: it does not get to say goodbye.
    pub(crate) fn kill(mut self) -> Outcome {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
