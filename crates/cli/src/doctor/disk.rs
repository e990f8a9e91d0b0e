//! The disk of the data directory: free space, and how long a sync takes.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_server::config::{Storage, Timing};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::statvfs::statvfs;

use super::Check;

/// Most syncs that are measured, and the longest time for all of them.
const MOST_SYNCS: usize = 32;
const LONGEST_SERIES: Duration = Duration::from_secs(3);
/// What is written before each sync: about as much as a small batch of changes.
const WRITE_BYTES: usize = 4096;
/// The part of `storage.sync_watchdog_ms` that a sync may take, as in the alert LockkeeperDiskSyncNearWatchdog.
const PART_OF_WATCHDOG: u32 = 4;
/// How many times `storage.free_floor_mib` should be free, as in the alert LockkeeperDiskFreeLow.
const FLOORS_FREE: u64 = 4;

const MIB: u64 = 1024 * 1024;
const SYNC: &str = "disk sync";
const SPACE: &str = "free space";

/// What was measured on a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Syncs {
    /// How long each sync took.
    pub(crate) took: Vec<Duration>,
    /// Whether the directory is on tmpfs.
    pub(crate) is_memory: bool,
}

/// Writes to a file without a name in this directory, and syncs after each write, as the store does.
pub(crate) fn measure_syncs(directory: &Path) -> std::io::Result<Syncs> {
    let mut file: File = tempfile::tempfile_in(directory)?;
    let is_memory = fstatfs(file.as_fd()).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    let began = Instant::now();
    let mut took = Vec::new();
    while took.len() < MOST_SYNCS && began.elapsed() < LONGEST_SERIES {
        file.write_all(&[0x5a; WRITE_BYTES])?;
        let before = Instant::now();
        file.sync_data()?;
        took.push(before.elapsed());
    }
    Ok(Syncs { took, is_memory })
}

/// How the disk keeps up with the configured times.
pub(crate) fn judge_syncs(measured: std::io::Result<Syncs>, timing: &Timing, storage: &Storage) -> Check {
    let Syncs { mut took, is_memory } = match measured {
        Ok(measured) => measured,
        Err(error) => {
            let remedy = "make the directory writable for the user that runs this, and repair the disk if it fails";
            return Check::problem(SYNC, format!("a file in the data directory cannot be written: {error}"), remedy);
        }
    };
    took.sort();
    let (Some(worst), Some(p90)) = (took.last().copied(), took.get(took.len() * 9 / 10).copied()) else {
        return Check::skipped(SYNC, "no sync was measured");
    };
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    let found =
        format!("of {} syncs, 90 % within {}, the slowest {}", took.len(), milliseconds(p90), milliseconds(worst));
    let watchdog = Duration::from_millis(storage.sync_watchdog_ms);
    if worst > watchdog / PART_OF_WATCHDOG {
        let remedy = "move the data directory to a disk of its own, and look for what else uses this one; a sync that \
                      takes storage.sync_watchdog_ms ends the node";
        return Check::problem(SYNC, found, remedy);
    }
    if p90 > Duration::from_millis(timing.heartbeat_ms) {
        let remedy = "use a faster disk: each grant and release waits for the disks of a majority";
        return Check::warning(SYNC, found, remedy);
    }
    if is_memory {
        let remedy = "set storage.directory to a directory on a disk";
        return Check::warning(SYNC, "the data directory is in memory (tmpfs) and lost with its machine", remedy);
    }
    Check::ok(SYNC, found)
}

/// The bytes that are free on a directory's disk for users other than root.
pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    let found = statvfs(directory).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// Free space against the floor at which the node stops.
pub(crate) fn judge_space(free_bytes: Option<u64>, storage: &Storage) -> Check {
    let Some(free) = free_bytes else { return Check::skipped(SPACE, "the system does not tell it") };
    let floor_mib = storage.free_floor_mib;
    let found = format!("{} MiB free, storage.free_floor_mib is {floor_mib}", free / MIB);
    let floor = floor_mib.saturating_mul(MIB);
    if free < floor {
        return Check::problem(SPACE, found, "free space, or use a larger disk: the node stops below the floor");
    }
    if free < floor.saturating_mul(FLOORS_FREE) {
        return Check::warning(SPACE, found, "free space, or use a larger disk, before the node stops at the floor");
    }
    Check::ok(SPACE, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn syncs(times_ms: &[u64], is_memory: bool) -> std::io::Result<Syncs> {
        Ok(Syncs { took: times_ms.iter().map(|ms| Duration::from_millis(*ms)).collect(), is_memory })
    }

    #[test]
    fn slow_syncs_are_seen() {
        let (timing, storage) = (Timing::default(), Storage::default());
        let verdict = |measured| judge_syncs(measured, &timing, &storage).verdict;
        let quick = [2; 20];
        assert_eq!(verdict(syncs(&quick, false)), Verdict::Ok);
        let one_slow = [&quick[..], &[timing.heartbeat_ms * 2]].concat();
        assert_eq!(verdict(syncs(&one_slow, false)), Verdict::Ok, "one of twenty may be slow");
        let slow = [timing.heartbeat_ms + 1; 20];
        assert_eq!(verdict(syncs(&slow, false)), Verdict::Warning);
        let stalls = [&quick[..], &[storage.sync_watchdog_ms / 2]].concat();
        assert_eq!(verdict(syncs(&stalls, false)), Verdict::Problem);
        assert_eq!(verdict(syncs(&quick, true)), Verdict::Warning);
        assert_eq!(verdict(Err(std::io::ErrorKind::PermissionDenied.into())), Verdict::Problem);
        assert_eq!(verdict(syncs(&[], false)), Verdict::Skipped);
    }

    #[test]
    fn space_is_compared_with_the_floor() {
        let storage = Storage { free_floor_mib: 100, ..Storage::default() };
        let verdict = |free_mib: u64| judge_space(Some(free_mib * MIB), &storage).verdict;
        assert_eq!((verdict(99), verdict(399), verdict(400)), (Verdict::Problem, Verdict::Warning, Verdict::Ok));
        assert_eq!(judge_space(None, &storage).verdict, Verdict::Skipped);
    }

    #[test]
    fn syncs_and_space_of_a_real_directory() {
        let directory = tempfile::tempdir().unwrap();
        let measured = measure_syncs(directory.path()).unwrap();
        assert!(!measured.took.is_empty() && measured.took.len() <= MOST_SYNCS);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        assert!(free_bytes(directory.path()).is_some());
        assert!(measure_syncs(&directory.path().join("missing")).is_err());
    }
}
