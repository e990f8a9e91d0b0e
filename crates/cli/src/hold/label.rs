//! Who asks, for people who look at the queue.

use crate::args::Holding;

const MAX_CHARS: usize = 100;

/// As told, or user, host and command.
pub(crate) fn label(args: &Holding) -> String {
    args.label.clone().unwrap_or_else(|| {
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".into());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let command: Vec<_> = args.command.iter().map(|part| part.to_string_lossy()).collect();
        format!("{user}@{} {}: {}", host.trim(), std::process::id(), command.join(" "))
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(MAX_CHARS)
            .collect()
    })
}
