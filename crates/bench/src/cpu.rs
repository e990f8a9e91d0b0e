//! CPU time and memory of processes, from `/proc/<pid>`.

use crate::BenchError;

/// Microseconds in a tick, in which `/proc` counts (`USER_HZ` is part of Linux's ABI).
pub const US_PER_TICK: u64 = 10_000;

/// Total CPU time of these processes so far, user and system, over all threads, in microseconds.
///
/// # Errors
/// A process does not exist or its file cannot be read.
pub fn spent_us(pids: &[u32]) -> Result<u64, BenchError> {
    let mut ticks = 0;
    for &pid in pids {
        let failed = |why: String| BenchError::Process { pid, why };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| failed(e.to_string()))?;
        ticks += ticks_of(&stat).ok_or_else(|| failed("unexpected format of its stat file".into()))?;
    }
    Ok(ticks * US_PER_TICK)
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

/// User and system time, the 14th and 15th field. The second field, the name, may contain blanks and parentheses.
fn ticks_of(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 1100 23 14 15";
        assert_eq!(ticks_of(stat), Some(1123));
        assert_eq!(ticks_of("7 (x) S 1"), None);
        assert!(spent_us(&[std::process::id()]).is_ok());
        assert!(spent_us(&[u32::MAX]).is_err());
        assert!(resident_bytes(std::process::id()).is_ok_and(|bytes| bytes > 1 << 16));
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
