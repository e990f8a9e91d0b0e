//! Metrics of the process and of its build, under the names that Prometheus' own client libraries use.

use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::time::{ClockId, clock_gettime};

use crate::exposition::Exposition;

/// Ticks a second in `/proc/PID/stat`: `USER_HZ`, which is 100 on every architecture that Rust's standard library
/// supports on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The commit of the program that this library is part of.
static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// Names the program's commit in the metric of its build.
pub fn note_commit(commit: &'static str) {
    // Only the first one counts: a process has one program.
    let _ = COMMIT.set(commit);
}

/// What `/proc` says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Process {
    threads: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    /// From the boot of the machine to its start.
    started_after_boot_s: Option<f64>,
}

impl Process {
    /// From the texts of `/proc/PID/status` and `/proc/PID/stat`. A size or count that is missing is 0.
    fn parse(status: &str, stat: &str) -> Self {
        let field = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).unwrap_or_default()
        };
        // The program's name is in parentheses and may contain any character. The 20th field after it is the start.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let started_ticks = behind_name.split_whitespace().nth(19).and_then(|word| word.parse::<f64>().ok());
        Self {
            threads: field("Threads:"),
            resident_bytes: field("VmRSS:") * 1024.0,
            virtual_bytes: field("VmSize:") * 1024.0,
            started_after_boot_s: started_ticks.map(|ticks| ticks / TICKS_PER_SECOND),
        }
    }
}

/// Adds the metrics of this process and of its build. Reads some files of `/proc`.
pub(crate) fn add(text: &mut Exposition) {
    let profile = if cfg!(debug_assertions) { "test" } else { "release" };
    let commit = COMMIT.get().copied().unwrap_or("unknown");
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", commit), ("profile", profile)];
    text.set_all("lockkeeper_build_info", [(build.to_vec(), 1.0)]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let process = Process::parse(&read("/proc/self/status"), &read("/proc/self/stat"));
    text.set("process_cpu_seconds_total", cpu_time().as_secs_f64());
    text.set("process_resident_memory_bytes", process.resident_bytes);
    text.set("process_virtual_memory_bytes", process.virtual_bytes);
    text.set("process_threads", process.threads);
    text.set("process_open_fds", open_files());
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    text.set("process_max_fds", most as f64);
    if let Some(started_unix_s) = started_unix_s(&process) {
        text.set("process_start_time_seconds", started_unix_s);
    }
}

/// When this process started, by the wall clock at the first call, so that a clock that is set later does not move it.
/// The time of the boot, in `/proc/stat`, is of no use: `ProcSubset=pid` in a service's unit hides that file.
fn started_unix_s(process: &Process) -> Option<f64> {
    static STARTED_UNIX_S: OnceLock<Option<f64>> = OnceLock::new();
    *STARTED_UNIX_S.get_or_init(|| {
        let since_boot = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
        let age_s = since_boot.as_secs_f64() - process.started_after_boot_s?;
        Some(UNIX_EPOCH.elapsed().ok()?.as_secs_f64() - age_s)
    })
}

fn cpu_time() -> Duration {
    let time = |seconds: i64, micros: i64| {
        Duration::from_secs(seconds.unsigned_abs()) + Duration::from_micros(micros.unsigned_abs())
    };
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| {
        let (user, system) = (usage.user_time(), usage.system_time());
        time(user.tv_sec(), user.tv_usec()) + time(system.tv_sec(), system.tv_usec())
    })
}

fn open_files() -> f64 {
    let directory = "/proc/self/fd";
    // Linux 6.2 and later say how many there are; else they are counted, without the one that reads the directory.
    match std::fs::metadata(directory).map(|found| found.len()) {
        Ok(count @ 1..) => count as f64,
        _ => std::fs::read_dir(directory).map_or(0.0, |files| files.count().saturating_sub(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let status = "Name:\tx\nVmSize:\t    2000 kB\nVmRSS:\t    1000 kB\nThreads:\t7\n";
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 0 4200 99 98\n";
        let process = Process::parse(status, stat);
        let expected = Process {
            threads: 7.0,
            resident_bytes: 1_024_000.0,
            virtual_bytes: 2_048_000.0,
            started_after_boot_s: Some(42.0),
        };
        assert_eq!(process, expected);
        assert_eq!(Process::parse("", ""), Process::default());
    }

    #[test]
    fn this_process_has_threads_files_and_an_age() {
        let before = open_files();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(before >= 1.0 && open_files() > 0.0);
        drop(file);
        let read = |path: &str| std::fs::read_to_string(path).unwrap();
        let process = Process::parse(&read("/proc/self/status"), &read("/proc/self/stat"));
        assert!(process.threads >= 1.0 && process.resident_bytes > 1e6, "{process:?}");
        let started_unix_s = started_unix_s(&process).unwrap();
        let age_s = UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - started_unix_s;
        assert!((-1.0..86_400.0).contains(&age_s), "{process:?} started at {started_unix_s}");
    }
}
