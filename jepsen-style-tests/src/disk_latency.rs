//! Measures the latency of the disk. A trial with a time bound must allow for it, because no cluster is faster than its
//! disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::record::boot_us;
use crate::stats::Summary;

const EVERY: Duration = Duration::from_millis(50);

/// Syncs a small file now and then, until it is ended or dropped.
#[derive(Debug)]
pub struct DiskLatency {
    /// Nothing is ever sent: the thread ends when this is gone.
    wanted: Sender<()>,
    thread: JoinHandle<io::Result<Syncs>>,
}

/// When the disk was busy with a sync: from and until when, on the boot clock.
#[derive(Debug, Default)]
pub struct Syncs(Vec<(u64, u64)>);

impl DiskLatency {
    /// Begins, on the disk that has this directory.
    pub fn begin(dir: &Path) -> io::Result<Self> {
        let mut file = File::create(dir.join("pulse"))?;
        let (wanted, still_wanted) = mpsc::channel();
        let beat = move || {
            let mut syncs = Vec::new();
            loop {
                let begun_us = boot_us();
                file.write_all(&[0])?;
                file.sync_data()?;
                syncs.push((begun_us, boot_us()));
                if still_wanted.recv_timeout(EVERY) == Err(RecvTimeoutError::Disconnected) {
                    return Ok(Syncs(syncs));
                }
            }
        };
        let thread = thread::Builder::new().name("pulse".into()).spawn(beat)?;
        Ok(Self { wanted, thread })
    }

    /// Ends; one sync at least was made.
    pub fn end(self) -> io::Result<Syncs> {
        drop(self.wanted);
        self.thread.join().map_err(|_| io::Error::other("the pulse panicked"))?
    }
}

impl Syncs {
    #[cfg(test)]
    pub(crate) fn of(syncs: Vec<(u64, u64)>) -> Self {
        Self(syncs)
    }

    /// How long half of them took at most.
    pub fn median(&self) -> Duration {
        let took: Vec<Duration> = self.0.iter().map(|(from, until)| Duration::from_micros(until - from)).collect();
        Summary::of(&took).map_or(Duration::ZERO, |summary| summary.median)
    }

    /// For how much of this time the disk was busy with one.
    pub fn within(&self, from_us: u64, until_us: u64) -> Duration {
        let overlap = |(from, until): &(u64, u64)| (*until).min(until_us).saturating_sub((*from).max(from_us));
        Duration::from_micros(self.0.iter().map(overlap).sum())
    }

    /// The same in whole milliseconds.
    pub fn ms_within(&self, from_us: u64, until_us: u64) -> u64 {
        u64::try_from(self.within(from_us, until_us).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_takes_some_time() {
        let dir = tempfile::tempdir().unwrap();
        let from = boot_us();
        let syncs = DiskLatency::begin(dir.path()).unwrap().end().unwrap();
        let took = syncs.within(from, boot_us());
        assert!(!syncs.0.is_empty() && took >= syncs.median());
        assert!(DiskLatency::begin(&dir.path().join("nowhere")).is_err());
    }

    #[test]
    fn only_what_lies_within_counts() {
        let syncs = Syncs(vec![(10, 20), (30, 60), (70, 71)]);
        assert_eq!(syncs.median(), Duration::from_micros(10));
        assert_eq!(syncs.within(0, 100), Duration::from_micros(41));
        assert_eq!(syncs.within(15, 40), Duration::from_micros(15));
        assert_eq!(syncs.within(20, 30), Duration::ZERO);
        assert_eq!(syncs.within(35, 36), Duration::from_micros(1));
        assert_eq!(Syncs(vec![(0, 2_500)]).ms_within(0, 2_100), 2);
    }
}
