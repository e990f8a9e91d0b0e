//! An ordinary build of the program has no mutants, and a release build no clock that can be put wrong.
#![cfg(not(mutants))]

#[test]
fn the_program_has_no_mutants() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_lockkeeper")).unwrap();
    let has = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("LOCKKEEPER_ENDPOINTS"), "this looks where nothing is to be found");
    for text in ["LOCKKEEPER_MUTANT", "MUTANT BUILD", "ack-before-barrier", "lockkeeper_mutants"] {
        assert!(!has(text), "{text} is in it");
    }
    // The fault suite puts the clocks of debug builds wrong; see `clock_control` of the server.
    assert_eq!(has("LOCKKEEPER_CLOCK_CONTROL"), cfg!(debug_assertions), "the injected clock");
}
