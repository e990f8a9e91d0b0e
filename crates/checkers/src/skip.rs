//! Tests that need more of a machine than Rust and a C compiler.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Write as _, stderr};

/// With `1`, and under `CI=true`, the tests that need a server or tool of others run, and what is missing is an error.
/// Otherwise they are skipped. `scripts/check test` sets it.
const SERVERS: &str = "LOCKKEEPER_TEST_SERVERS";

/// Names the file that lists what is missing, which is then no error but under `CI=true`. `scripts/check` sets it and
/// prints the lines at its end.
const LIST: &str = "LOCKKEEPER_SKIPPED_TESTS";

/// What a test needs of others, if it is to run: `packages` of Debian, which `found` looks for. A test that gets `None`
/// returns at once, and is listed as skipped.
///
/// # Panics
/// As [`skip`].
#[must_use]
pub fn needs<T>(packages: &str, found: impl FnOnce() -> Option<T>) -> Option<T> {
    let found = if wanted() { found() } else { None };
    if found.is_none() {
        skip(packages);
    }
    found
}

/// [`needs`] for what is there or not.
#[must_use]
pub fn has(packages: &str, found: impl FnOnce() -> bool) -> bool {
    needs(packages, || found().then_some(())).is_some()
}

/// To be called by a test that returns at once, since the machine does not permit or have what it needs. The test is
/// listed as skipped, in a line that the test harness does not capture.
///
/// # Panics
/// What is missing is an error, or the list cannot be written.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let list = std::env::var_os(LIST).filter(|_| !is_ci());
    skip_in(wanted(), list.as_deref(), &test, why);
}

fn wanted() -> bool {
    is_ci() || std::env::var_os(SERVERS).is_some_and(|value| value == "1")
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

fn skip_in(wanted: bool, list: Option<&OsStr>, test: &str, why: &str) {
    if let Some(list) = list {
        let file = File::options().create(true).append(true).open(list);
        // One write, because tests run side by side.
        file.and_then(|mut file| file.write_all(format!("{test} ({why})\n").as_bytes())).expect("the list is written");
    } else {
        assert!(!wanted, "{test} cannot run here: {why}; scripts/install-test-tools installs packages");
    }
    let hint = if wanted { "" } else { " (LOCKKEEPER_TEST_SERVERS=1 and scripts/install-test-tools)" };
    // Whoever reads the result has this line in it or elsewhere.
    let _ = stderr().write_all(format!("SKIPPED {test}: needs {why}{hint}\n").as_bytes());
}

/// Whether each of these programs is in `PATH`.
#[must_use]
pub fn has_programs(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    names.iter().all(|name| std::env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_listed_and_fails_where_the_servers_are_asked_for() {
        let list = std::env::temp_dir().join(format!("lockkeeper-skipped-{}", std::process::id()));
        skip_in(false, Some(list.as_os_str()), "a::b", "redis-server");
        skip_in(true, Some(list.as_os_str()), "c", "root");
        let listed = std::fs::read_to_string(&list);
        std::fs::remove_file(&list).unwrap();
        assert_eq!(listed.unwrap(), "a::b (redis-server)\nc (root)\n");
        skip_in(false, None, "a::b", "redis-server");
        let failed = std::panic::catch_unwind(|| skip_in(true, None, "a::b", "redis-server"));
        assert!(failed.unwrap_err().downcast::<String>().unwrap().contains("redis-server"));
    }

    #[test]
    fn programs_are_looked_for_in_path() {
        assert!(has_programs(&["sh", "cc"]));
        assert!(!has_programs(&["sh", "no-such-program"]));
    }
}
