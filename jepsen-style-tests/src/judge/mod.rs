//! Judges: pure functions from a history to a verdict. The tests of each feed it histories that it must reject.
//!
//! There are two kinds of history: what the log did to nodes ([`lockkeeper_checkers::lives`], from watches) and what
//! clients were told ([`grants`], [`gates`], [`pauses`], [`streaks`]). A judge reads no clock and no network, and
//! trusts the client library on trial only for what the library told its caller.

pub mod counts;
pub mod gates;
pub mod grants;
pub mod pauses;
pub mod streaks;

/// Checks that something happened no earlier than one moment and no later than another; all three are milliseconds of
/// one clock.
///
/// # Errors
/// Says by how much it was early or late.
pub fn in_time(what: &str, at_ms: u64, earliest_ms: u64, latest_ms: u64) -> Result<(), String> {
    if at_ms < earliest_ms {
        return Err(format!("{what} came {} ms too early", earliest_ms - at_ms));
    }
    if at_ms > latest_ms {
        return Err(format!("{what} came {} ms later than it had to", at_ms - latest_ms));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::in_time;

    #[test]
    fn early_and_late_are_caught() {
        assert_eq!(in_time("it", 10, 10, 20), Ok(()));
        assert_eq!(in_time("it", 20, 10, 20), Ok(()));
        assert!(in_time("it", 9, 10, 20).unwrap_err().contains("1 ms too early"));
        assert!(in_time("it", 25, 10, 20).unwrap_err().contains("5 ms later"));
    }
}
