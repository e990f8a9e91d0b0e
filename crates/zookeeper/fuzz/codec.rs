//! Any bytes at all, guided by which branches of the codec they reach. `fuzz/run` builds and runs it.

#![no_main]

mod oracle;

libfuzzer_sys::fuzz_target!(|input: &[u8]| oracle::examine(input));
