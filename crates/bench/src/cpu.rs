//! CPU time and memory of processes, from `/proc/<pid>`.

use crate::BenchError;

/// Microseconds in a tick, in which `/proc` counts (`USER_HZ` is part of Linux's ABI).
pub const US_PER_TICK: u64 = 10_000;

/// Total CPU time of these processes and of their children so far, user and system, over all threads, in microseconds:
/// a PostgreSQL server does its work in children.
///
/// # Errors
/// A process does not exist or its file cannot be read.
pub fn spent_us(pids: &[u32]) -> Result<u64, BenchError> {
    let ticks = |pid: u32| {
        let failed = |why: String| BenchError::Process { pid, why };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| failed(e.to_string()))?;
        ticks_of(&stat).ok_or_else(|| failed("unexpected format of its stat file".into()))
    };
    // The time of a child that ends meanwhile is in that of its parent, which is read last.
    let of_children: u64 = children_of(pids).into_iter().filter_map(|child| ticks(child).ok()).sum();
    let own = pids.iter().try_fold(0, |sum, pid| Ok(sum + ticks(*pid)?))?;
    Ok((of_children + own) * US_PER_TICK)
}

/// The children of these processes that run.
pub fn children_of(parents: &[u32]) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        // One that has ended meanwhile is none any more.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parent_of(&stat).is_some_and(|parent| parents.contains(&parent))
    };
    pids.filter(is_child).collect()
}

/// The parent, the 4th field.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Resident memory of a process.
///
/// # Errors
/// The process does not exist or its file cannot be read.
pub fn resident_bytes(pid: u32) -> Result<u64, BenchError> {
    let failed = |why: String| BenchError::Process { pid, why };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| failed(e.to_string()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| failed("its status file does not tell its memory".into()))
}

/// User and system time, the 14th and 15th field, and those of the children that were waited for, the next two. The
/// second field, the name, may contain blanks and parentheses.
fn ticks_of(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 1100 23 14 15";
        assert_eq!(ticks_of(stat), Some(1100 + 23 + 14 + 15));
        assert_eq!((ticks_of("7 (x) S 1"), parent_of(stat)), (None, Some(1)));
        assert!(spent_us(&[std::process::id()]).is_ok());
        assert!(spent_us(&[u32::MAX]).is_err());
        assert!(resident_bytes(std::process::id()).is_ok_and(|bytes| bytes > 1 << 16));
        assert!(resident_bytes(u32::MAX).is_err());
    }

    #[test]
    fn a_child_counts_while_it_runs_and_after_its_end() {
        let own = [std::process::id()];
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while spent_us(&[child.id()]).unwrap() < 5 * US_PER_TICK {
            std::thread::yield_now();
        }
        assert!(children_of(&own).contains(&child.id()));
        let with_child = spent_us(&own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children_of(&own).contains(&child.id()));
        assert!(spent_us(&own).unwrap() >= with_child);
    }
}
