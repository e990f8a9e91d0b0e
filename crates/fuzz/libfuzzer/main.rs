//! Fuzzes one target with libFuzzer, guided by coverage. `run` builds and runs it.

#![no_main]

use std::sync::LazyLock;

use lockkeeper_fuzz::{Target, all};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("LOCKKEEPER_FUZZ_TARGET").unwrap_or_default();
    // libFuzzer's panic hook ends the process at any panic, but sled panics at some damage and the store catches it.
    if name == "log-open" {
        drop(std::panic::take_hook());
    }
    all().into_iter().find(|target| target.name == name).expect("LOCKKEEPER_FUZZ_TARGET names a target")
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if TARGET.name == "log-open" {
        lockkeeper_fuzz::runner::examine_or_abort(&TARGET, input);
    } else {
        (TARGET.examine)(input);
    }
});
