//! Disks that lose what was not synced: data directories rebuilt from a trace of system calls.
