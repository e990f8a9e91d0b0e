//! How much processes and the machine have used, from `/proc`.

use lockkeeper_bench::{BenchError, spent_us};

/// What the servers of a system have used, of which differences are figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_us: u64,
    /// Context switches of all threads, voluntary and not.
    pub(crate) switches: u64,
    /// Written to disk, or to be written.
    pub(crate) written_bytes: u64,
}

impl Usage {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, BenchError> {
        let mut usage = Self { cpu_us: spent_us(pids)?, ..Self::default() };
        for &pid in pids {
            let failed = |error: std::io::Error| BenchError::Process { pid, why: error.to_string() };
            for thread in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
                // A thread may end meanwhile.
                let status = std::fs::read_to_string(thread.map_err(failed)?.path().join("status")).unwrap_or_default();
                usage.switches += sum(&status, &["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]);
            }
            // Only the owner of a process may read it.
            let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            usage.written_bytes += sum(&io, &["write_bytes:"]);
        }
        Ok(usage)
    }

    /// What was used since then.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            switches: self.switches.saturating_sub(earlier.switches),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// Memory of processes that is resident now.
pub(crate) fn resident_bytes(pids: &[u32]) -> u64 {
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    pids.iter().map(|pid| sum(&status(pid), &["VmRSS:"]) * 1024).sum()
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

/// `/proc` counts in ticks of 10 ms (`USER_HZ` is part of Linux's ABI).
const US_PER_TICK: f64 = 10_000.0;

impl Machine {
    /// All of it so far; nothing if it cannot be read.
    pub(crate) fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
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
        let busy = self.busy.saturating_sub(earlier.busy) as f64 - these_us as f64 / US_PER_TICK;
        if all > 0.0 { (busy / all).max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let own = [std::process::id()];
        let earlier = Usage::of(&own).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let later = Usage::of(&own).unwrap();
        assert!(later.switches > 0 && later.since(earlier).switches < later.switches);
        assert!(resident_bytes(&own) > 1 << 20);
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
