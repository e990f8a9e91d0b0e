//! The label that a session has if nobody chooses one.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Enough for people; the cluster stores it with every session.
const MAX_CHARS: usize = 100;

/// User, host, process id and the name of the program at this path: `shop@db1, 4711, pg_dump`. It never has arguments:
/// command lines carry passwords, and labels are replicated and shown to everybody who may read a queue.
pub fn process_label(program: &OsStr) -> String {
    let user = user(["USER", "LOGNAME"].map(|name| std::env::var(name).ok()), own_uid());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let program = Path::new(program).file_name().unwrap_or_default();
    format!("{user}@{}, {}, {}", host.trim(), std::process::id(), program.to_string_lossy())
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_CHARS)
        .collect()
}

/// The user's name; below cron, systemd and in containers there may be none but the number.
fn user(names: [Option<String>; 2], uid: Option<u32>) -> String {
    let named = names.into_iter().flatten().find(|name| !name.is_empty());
    named.or(uid.map(|uid| format!("uid {uid}"))).unwrap_or_else(|| "unknown user".into())
}

fn own_uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

/// The same of this process.
pub(crate) fn own_label() -> String {
    process_label(&std::env::args_os().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_a_number() {
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(user([name("shop"), name("root")], Some(7)), "shop");
        assert_eq!(user([name(""), name("root")], Some(7)), "root");
        assert_eq!(user([None, None], Some(7)), "uid 7");
        assert!(own_uid().is_some());
    }

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
