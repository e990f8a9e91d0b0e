//! Signals as a caller expects them: a signal that the caller has ignored stays ignored, as under `nohup` and for
//! background jobs of scripts; and a program that was ended by a signal dies of it, so that the script around it ends.
//!
//! Two exceptions: a server always ends on SIGTERM, because whoever runs it has no other way to stop it in order. And
//! for CMD SIGPIPE always has its default action, because Rust's runtime has forgotten what the caller had set.

use std::io;

use nix::sys::prctl::set_dumpable;
use nix::sys::signal::Signal;
use nix::unistd::getpid;
use tokio::signal::unix::{self, SignalKind, signal};

/// Whether the signal is in this set of the process.
fn is_in(set: &str, process: &str, which: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(set)?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & bit(which) != 0)
}

/// Whether this process ignores the signal. A process inherits that from its caller.
fn is_ignored(which: Signal) -> bool {
    is_in("SigIgn:", "self", which)
}

/// Whether the process has got the signal, and has it blocked.
pub(crate) fn is_pending(process: u32, which: Signal) -> bool {
    is_in("ShdPnd:", &process.to_string(), which)
}

/// The signal in a set of signals.
pub(crate) fn bit(which: Signal) -> u64 {
    1 << (which as u32 - 1)
}

/// Receives a signal; with [`of`](Self::of) never one that the caller has ignored.
pub(crate) struct Arrivals(Option<unix::Signal>);

impl Arrivals {
    pub(crate) fn of(which: Signal) -> io::Result<Self> {
        if is_ignored(which) { Ok(Self(None)) } else { Self::even_if_ignored(which) }
    }

    fn even_if_ignored(which: Signal) -> io::Result<Self> {
        signal(SignalKind::from_raw(which as i32)).map(|arrivals| Self(Some(arrivals)))
    }

    /// Completes with `None` if no more signals can come.
    pub(crate) async fn recv(&mut self) -> Option<()> {
        match &mut self.0 {
            Some(arrivals) => arrivals.recv().await,
            None => std::future::pending().await,
        }
    }
}

/// The signals that stop a server: SIGTERM even if the caller has ignored it.
pub(crate) struct Stops(Vec<Arrivals>);

impl Stops {
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
        let arrivals = |which| match which {
            Signal::SIGTERM => Arrivals::even_if_ignored(which),
            _ => Arrivals::of(which),
        };
        signals.iter().copied().map(arrivals).collect::<io::Result<_>>().map(Self)
    }

    /// Completes when one has come.
    pub(crate) async fn next(&mut self) {
        futures::future::select_all(self.0.iter_mut().map(|arrivals| Box::pin(arrivals.recv()))).await;
    }
}

/// Ends this process by the signal's default action. Returns if the signal cannot end it, such as the first process of
/// a container.
pub(crate) fn die_of(which: Signal) {
    if getpid().as_raw() == 1 {
        return;
    }
    // A core file would have the session's secret.
    let _ = set_dumpable(false);
    let _ = signal_hook::low_level::emulate_default_handler(which as i32);
}
