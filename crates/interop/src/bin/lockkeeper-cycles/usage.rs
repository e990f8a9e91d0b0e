//! How much processes and the machine have used, from `/proc`.

use std::collections::HashMap;

use lockkeeper_bench::{BenchError, US_PER_TICK, children_of, spent_us};

/// What processes and their children have used since they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    cpu_us: u64,
    /// Context switches of each thread, voluntary and not.
    switches: HashMap<String, u64>,
    /// Written to disk, or to be written.
    written_bytes: u64,
}

/// What processes have used in a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu_us: u64,
    /// Without those of threads that have ended.
    pub(crate) switches: u64,
    pub(crate) written_bytes: u64,
    /// Memory at the end.
    pub(crate) resident_bytes: u64,
}

impl Usage {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, BenchError> {
        let mut usage = Self { cpu_us: spent_us(pids)?, ..Self::default() };
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
        self.written_bytes += sum(&std::fs::read_to_string(format!("/proc/{pid}/io"))?, &["write_bytes:"]);
        Ok(())
    }

    /// What these processes have used since then.
    pub(crate) fn since(earlier: &Self, pids: &[u32]) -> Result<Used, BenchError> {
        let now = Self::of(pids)?;
        let of_thread = |(thread, switches): (&String, &u64)| {
            switches.saturating_sub(earlier.switches.get(thread).copied().unwrap_or_default())
        };
        let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        Ok(Used {
            cpu_us: now.cpu_us.saturating_sub(earlier.cpu_us),
            switches: now.switches.iter().map(of_thread).sum(),
            written_bytes: now.written_bytes.saturating_sub(earlier.written_bytes),
            resident_bytes: pids
                .iter()
                .chain(&children_of(pids))
                .map(|pid| sum(&status(pid), &["VmRSS:"]) * 1024)
                .sum(),
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
