//! The label that a session has if nobody chooses one.

use std::ffi::OsStr;
use std::path::Path;

/// Enough for people; the cluster stores it with every session.
const MAX_CHARS: usize = 100;

/// User, host, process id and the name of the program at this path: `shop@db1, 4711, pg_dump`. It never has arguments:
/// command lines carry passwords, and labels are replicated and shown to everybody who may read a queue.
pub fn process_label(program: &OsStr) -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".into());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let program = Path::new(program).file_name().unwrap_or_default();
    format!("{user}@{}, {}, {}", host.trim(), std::process::id(), program.to_string_lossy())
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_CHARS)
        .collect()
}

/// The same of this process.
pub(crate) fn own_label() -> String {
    process_label(&std::env::args_os().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_program_and_is_short_enough_for_the_cluster() {
        let expected = format!(", {}, pg_dump", std::process::id());
        let label = process_label(OsStr::new("/usr/bin/pg_dump"));
        assert!(label.contains('@') && label.ends_with(&expected), "{label}");
        let odd = process_label(OsStr::new(&format!("a\nb\u{1b}{}", "x".repeat(300))));
        assert!(odd.chars().count() == MAX_CHARS && !odd.contains(char::is_control), "{odd}");
        assert!(process_label(OsStr::new("")).ends_with(", "));
    }
}
