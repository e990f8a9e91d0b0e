//! Who asks, for people who look at the queue.

use std::path::Path;

use crate::args::Holding;

const MAX_CHARS: usize = 100;

/// As told, or user, host, process id and the program's name. Never its arguments: labels are replicated and shown to everybody who may
/// look at the queue, and command lines carry passwords.
pub(crate) fn label(args: &Holding) -> String {
    args.label.clone().unwrap_or_else(|| {
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".into());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let program = args.command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
        format!("{user}@{}, {}, {}", host.trim(), std::process::id(), program.to_string_lossy())
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(MAX_CHARS)
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(label: Option<&str>, command: &[&str]) -> String {
        let command = command.iter().map(Into::into).collect();
        super::label(&Holding { ttl: Duration::from_secs(10), grace: None, label: label.map(Into::into), command })
    }

    #[test]
    fn the_default_label_names_the_program_and_none_of_its_arguments() {
        let label = of(None, &["/usr/bin/pg_dump", "--dbname", "postgres://shop:s3cret@db/shop"]);
        let expected = format!(", {}, pg_dump", std::process::id());
        assert!(label.contains('@') && label.ends_with(&expected), "{label}");
        assert!(!label.contains("s3cret") && !label.contains("dbname"), "{label}");
        assert_eq!(of(Some("backup"), &["pg_dump"]), "backup");
    }
}
