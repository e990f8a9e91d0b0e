//! The guard: a process beside lockkeeper that kills CMD's group when lockkeeper is gone, or frozen past the deadline that it
//! told last.
//!
//! It reads lines: a deadline on the machine's clock in milliseconds, or `done`. The end of the input without `done` means
//! that lockkeeper was killed.

use std::io::BufRead;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use lockkeeper_client::Moment;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::failure::{EXIT_OK, Failure};

/// The clock is looked at this often at least: timers do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// Watches over the group until it is done, or kills it.
pub(crate) fn run(group: i32) -> Result<u8, Failure> {
    // 0 and 1 would mean this group, and everybody.
    if group <= 1 {
        return Err(Failure::usage("not a process group to be guarded"));
    }
    let (tell, told) = mpsc::sync_channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    let mut deadline = None;
    loop {
        let left = deadline.map(|deadline| Moment::now().until(deadline));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        match told.recv_timeout(left.unwrap_or(LONGEST_NAP).min(LONGEST_NAP)) {
            Ok(line) if line == "done" => return Ok(EXIT_OK),
            Ok(line) => deadline = line.parse().ok().map(Moment::from_millis).or(deadline),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // No such group: it has ended by itself.
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    Ok(EXIT_OK)
}
