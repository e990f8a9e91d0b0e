//! The program that people run knows nothing of planted bugs or of clocks put wrong.
#![cfg(not(feature = "planted"))]

#[test]
fn the_program_has_no_bug_that_could_be_planted() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_lockkeeper")).unwrap();
    let has = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("LOCKKEEPER_ENDPOINTS"), "this looks where nothing is to be found");
    for text in ["LOCKKEEPER_PLANTED", "LOCKKEEPER_CLOCK_CONTROL", "ack-before-barrier", "lockkeeper_planted"] {
        assert!(!has(text), "{text} is in it");
    }
}
