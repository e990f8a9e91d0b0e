//! Tests that need more of a machine than Rust and a C compiler.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Names the file to which a skipped test adds a line. `scripts/check` sets it, and prints the lines at its end.
const LIST: &str = "LOCKKEEPER_SKIPPED_TESTS";

/// To be called by a test that returns at once, since the machine has not what it needs: `why` names the packages of
/// Debian, or what is not permitted. The test is listed as skipped.
///
/// # Panics
/// Under `CI=true`, where no test is skipped, and if the list cannot be written.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    skip_in(ci, std::env::var_os(LIST).as_deref(), &test, why);
}

fn skip_in(ci: bool, list: Option<&OsStr>, test: &str, why: &str) {
    assert!(!ci, "{test} cannot run here: {why}; scripts/install-test-tools installs packages");
    eprintln!("skipped {test}: {why}");
    if let Some(list) = list {
        let file = File::options().create(true).append(true).open(Path::new(list));
        // One write, because tests run side by side.
        file.and_then(|mut file| file.write_all(format!("{test} ({why})\n").as_bytes())).expect("the list is written");
    }
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
    fn a_skipped_test_is_listed_and_fails_under_ci() {
        let list = std::env::temp_dir().join(format!("lockkeeper-skipped-{}", std::process::id()));
        skip_in(false, Some(list.as_os_str()), "a::b", "needs redis-server");
        skip_in(false, Some(list.as_os_str()), "c", "needs root");
        let listed = std::fs::read_to_string(&list);
        std::fs::remove_file(&list).unwrap();
        assert_eq!(listed.unwrap(), "a::b (needs redis-server)\nc (needs root)\n");
        let failed = std::panic::catch_unwind(|| skip_in(true, None, "a::b", "needs redis-server"));
        assert!(failed.unwrap_err().downcast::<String>().unwrap().contains("needs redis-server"));
    }

    #[test]
    fn programs_are_looked_for_in_path() {
        assert!(has_programs(&["sh", "cc"]));
        assert!(!has_programs(&["sh", "no-such-program"]));
    }
}
