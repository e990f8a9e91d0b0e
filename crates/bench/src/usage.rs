//! What processes and the machine have used, from `/proc`.

use std::collections::HashMap;

use crate::BenchError;

/// Microseconds in a tick, in which `/proc` counts (`USER_HZ` is part of Linux's ABI).
const US_PER_TICK: u64 = 10_000;

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

/// What processes and their children have used since they began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    cpu_us: u64,
    /// Context switches of each thread, voluntary and not.
    switches: HashMap<String, u64>,
    /// Written to disk, or to be written; `None` if the user of a process does not let others see that.
    written_bytes: Option<u64>,
}

/// What processes have used in a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// CPU time, user and system.
    pub cpu_us: u64,
    /// Context switches, without those of threads that have ended.
    pub switches: u64,
    /// Written to disk, or to be written, where that can be seen.
    pub written_bytes: Option<u64>,
    /// Resident memory at the end.
    pub resident_bytes: u64,
}

impl Usage {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, BenchError> {
        let mut usage = Self { cpu_us: spent_us(pids)?, written_bytes: Some(0), ..Self::default() };
        for &pid in pids {
            usage.add(pid).map_err(|error| BenchError::Process { pid, why: error.to_string() })?;
        }
        for child in children_of(pids) {
            // It may end meanwhile.
            let _ = usage.add(child);
        }
        Ok(usage)
    }

    fn add(&mut self, pid: u32) -> std::io::Result<()> {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?;
            // A thread may end meanwhile.
            let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
            let switches = sum(&status, &["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]);
            self.switches.insert(thread.file_name().to_string_lossy().into_owned(), switches);
        }
        let written = std::fs::read_to_string(format!("/proc/{pid}/io")).ok().map(|io| sum(&io, &["write_bytes:"]));
        self.written_bytes = self.written_bytes.zip(written).map(|(all, more)| all + more);
        Ok(())
    }

    /// What these processes have used since then.
    pub(crate) fn since(earlier: &Self, pids: &[u32]) -> Result<Used, BenchError> {
        let now = Self::of(pids)?;
        let of_thread = |(thread, switches): (&String, &u64)| {
            switches.saturating_sub(earlier.switches.get(thread).copied().unwrap_or_default())
        };
        let written = now.written_bytes.zip(earlier.written_bytes);
        let resident: u64 = pids.iter().chain(&children_of(pids)).flat_map(|pid| resident_bytes(*pid)).sum();
        Ok(Used {
            cpu_us: now.cpu_us.saturating_sub(earlier.cpu_us),
            switches: now.switches.iter().map(of_thread).sum(),
            written_bytes: written.map(|(now, earlier)| now.saturating_sub(earlier)),
            resident_bytes: resident,
        })
    }
}

/// The sum of the lines with these names.
fn sum(text: &str, names: &[&str]) -> u64 {
    let value = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|name| names.contains(name));
        name.and_then(|_| words.next()?.parse::<u64>().ok())
    };
    text.lines().filter_map(value).sum()
}

/// CPU time of the machine, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Since the machine was started.
    pub(crate) fn now() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/stat").map(|stat| Self::read(&stat))
    }

    /// From the first line: user, nice, system, idle, iowait, irq, softirq, steal; what guests use is part of user.
    fn read(stat: &str) -> Self {
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = first.split_ascii_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        let all = ticks.iter().sum();
        let waiting: u64 = ticks.iter().skip(3).take(2).sum();
        Self { busy: all - waiting, all }
    }

    /// The share of the machine's CPU time since then that something else than these used.
    pub(crate) fn others_since(self, earlier: Self, these_us: u64) -> f64 {
        let all = self.all.saturating_sub(earlier.all) as f64;
        let busy = self.busy.saturating_sub(earlier.busy) as f64 - these_us as f64 / US_PER_TICK as f64;
        if all > 0.0 { (busy / all).max(0.0) } else { 0.0 }
    }
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

    #[test]
    fn this_process_has_used_something() {
        let own = [std::process::id()];
        let earlier = Usage::of(&own).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let used = Usage::since(&earlier, &own).unwrap();
        assert!(used.switches > 0 && used.resident_bytes > 1 << 20, "{used:?}");
        assert!(used.switches < earlier.switches.values().sum::<u64>() + 1_000_000);
        assert!(Machine::now().unwrap().all > 0);
        assert!(Usage::of(&[u32::MAX]).is_err());
    }

    #[test]
    fn others_are_all_that_is_busy_without_these() {
        let earlier = Machine::read("cpu  100 0 100 1000 50 0 0 0 0 0\ncpu0 1 1 1 1");
        assert_eq!(earlier, Machine { busy: 200, all: 1250 });
        // Two cores for a second: a half busy, of which these used 60 ticks of 100. Stolen time is busy.
        let later = Machine::read("cpu  180 0 110 1080 70 0 0 10 0 0");
        assert!((later.others_since(earlier, 600_000) - 0.2).abs() < 1e-9);
        assert!(later.others_since(earlier, 5_000_000).abs() < 1e-9);
        assert!(earlier.others_since(earlier, 0).abs() < 1e-9);
    }
}
