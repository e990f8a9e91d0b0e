//! The replicated clock against clocks made by hand.

use super::*;

const HOUR: u64 = 3_600_000;
const YEAR: u64 = 365 * 24 * HOUR;
/// Where the wall clocks of these tests begin.
const WALL: u64 = 50 * YEAR;

fn of_three(node: u64) -> ReplicatedClock {
    let mut clock = ReplicatedClock::new(node);
    clock.set_voters(BTreeSet::from([1, 2, 3]));
    clock
}

fn report(wall_ms: u64, clock_ms: Option<u64>) -> ClockReport {
    ClockReport { wall_ms, clock_ms }
}

#[test]
fn a_new_leader_goes_on_where_the_old_one_was_whatever_its_wall_clock_shows() {
    for wall_ms in [0, WALL, WALL + 30 * YEAR] {
        let mut clock = of_three(1);
        clock.applied(WALL, 1_000);
        clock.follow(WALL + 5_000, 6_000);
        assert_eq!(clock.report(wall_ms, 6_500), report(wall_ms, Some(WALL + 5_500)));
        let led = clock.lead(wall_ms, 8_000);
        assert!(led.abs_diff(WALL + 7_000) <= 10, "{led}");
        // An hour of entries: at most a hundredth faster or slower, and never back.
        clock.reported(2, report(wall_ms, None), 8_000);
        let mut last = led;
        for now_ms in (8_000..HOUR).step_by(50) {
            clock.reported(2, report(wall_ms.saturating_add(now_ms - 8_000), None), now_ms);
            let led = clock.lead(wall_ms.saturating_add(now_ms - 8_000), now_ms);
            assert!(led >= last, "{led} after {last}");
            last = led;
        }
        let passed = last - (WALL + 7_000);
        assert!(passed.abs_diff(HOUR - 8_050) <= HOUR / 100 + 10, "{passed} with the wall clock at {wall_ms}");
    }
}

#[test]
fn one_wall_clock_of_three_pulls_nowhere() {
    let mut clock = of_three(1);
    clock.follow(WALL, 0);
    for now_ms in (0..HOUR).step_by(100) {
        clock.reported(2, report(WALL + now_ms, None), now_ms);
        clock.reported(3, report(WALL + now_ms, None), now_ms);
        assert!(clock.lead(WALL + 20 * YEAR, now_ms).abs_diff(WALL + now_ms) <= 2, "at {now_ms}");
    }
}

#[test]
fn without_word_of_a_majority_it_goes_by_its_own_pace() {
    let mut clock = of_three(1);
    clock.follow(WALL, 0);
    assert_eq!(clock.lead(WALL + YEAR, HOUR), WALL + HOUR);
    // An old report does not count, nor does one of a node that is no voter.
    clock.reported(2, report(WALL + YEAR, None), HOUR);
    clock.reported(9, report(WALL + YEAR, None), HOUR + 20_000);
    assert_eq!(clock.lead(WALL + YEAR, HOUR + 20_000), WALL + HOUR + 20_000);
}

#[test]
fn after_a_restart_of_all_it_steps_to_what_a_majority_has_reached_and_no_further_than_a_bound() {
    let restarted = |walls: [u64; 2], known: Option<u64>| {
        let mut clock = of_three(1);
        clock.applied(WALL, 1_000);
        assert_eq!(clock.time_to_send(walls[0], 2_000), 0, "nobody has reported yet");
        assert_eq!(clock.lead(walls[0], 2_000), WALL + 1_000);
        clock.reported(2, report(walls[1], known), 2_000);
        clock.lead(walls[0], 2_000)
    };
    let week = 7 * 24 * HOUR;
    assert_eq!(restarted([WALL + week, WALL + week + 5], None), WALL + week);
    assert_eq!(restarted([WALL + 30 * YEAR, WALL + week], None), WALL + week);
    assert_eq!(restarted([WALL + week, 0], None), WALL + 1_000, "never back");
    assert_eq!(restarted([WALL + YEAR, WALL + YEAR], None), WALL + 1_000 + MAX_STEP_MS);
    // One voter was up all the time and knows.
    assert_eq!(restarted([WALL + YEAR, WALL + YEAR], Some(WALL + 60_000)), WALL + 60_000);
    // The third reports a little later: two of three are right.
    let mut clock = of_three(1);
    clock.applied(WALL, 1_000);
    clock.reported(2, report(0, None), 2_000);
    assert_eq!(clock.lead(WALL + week, 2_000), WALL + 1_000);
    clock.reported(3, report(WALL + week, Some(WALL + 1_500)), 2_500);
    assert_eq!(clock.lead(WALL + week + 500, 2_500), WALL + week);
    // All have reported: a majority that jumps is too late, although the step was just taken.
    clock.reported(3, report(WALL + 2 * week, None), 3_000);
    assert!(clock.lead(WALL + 2 * week, 3_000) <= WALL + week + 500 + 10);
    // Much later it is only pulled.
    let mut clock = of_three(1);
    clock.applied(WALL, 1_000);
    clock.reported(2, report(0, None), 2_000);
    clock.lead(WALL + week, 2_000);
    clock.reported(3, report(WALL + week, None), 20_000);
    assert!(clock.lead(WALL + week, 20_000) <= WALL + 19_000 + 10);
    // Alone.
    let mut clock = ReplicatedClock::new(1);
    clock.set_voters(BTreeSet::from([1]));
    clock.applied(WALL, 1_000);
    assert_eq!(clock.lead(WALL + YEAR, 1_000), WALL + MAX_STEP_ALONE_MS);
    assert!(clock.lead(WALL + YEAR, 2_000).abs_diff(WALL + MAX_STEP_ALONE_MS + 1_000) <= 10, "once");
}

/// Neither its own wall clock nor that of another voter may set it behind a voter that received the time.
#[test]
fn a_restarted_leader_steps_to_what_the_told_ones_show() {
    let restarted = |wall_ms, known_ms, reported_ms| {
        let mut clock = of_three(1);
        clock.applied(WALL, 1_000);
        clock.reported(3, report(WALL + YEAR, Some(known_ms)), reported_ms);
        clock.reported(2, report(wall_ms, None), 20_000);
        clock.lead(wall_ms, 20_000)
    };
    assert_eq!(restarted(0, WALL + HOUR, 20_000), WALL + HOUR);
    assert_eq!(restarted(WALL + 2 * HOUR, WALL + HOUR, 19_000), WALL + HOUR + 1_000, "wall clocks do not count then");
    assert_eq!(restarted(0, WALL + YEAR, 20_000), WALL + 19_000 + MAX_STEP_MS, "bounded");
    // An old report does not count, and does not keep later reports from counting.
    assert_eq!(restarted(WALL + 2 * HOUR, WALL + HOUR, 1_000), WALL + 2 * HOUR);
    let mut clock = of_three(1);
    clock.applied(WALL, 1_000);
    clock.reported(3, report(0, Some(WALL)), 1_000);
    clock.reported(2, report(0, None), 20_000);
    assert_eq!(clock.lead(WALL + HOUR, 20_000), WALL + 19_000);
    clock.reported(3, report(WALL + HOUR, None), 20_500);
    assert_eq!(clock.lead(WALL + HOUR, 20_500), WALL + HOUR);
}

/// One message must not take the clock to the end of time.
#[test]
fn a_leader_that_is_impossibly_far_ahead_is_not_followed() {
    let mut clock = of_three(1);
    clock.applied(WALL, 0);
    assert!(clock.follow(WALL + YEAR, 0), "it has no time yet, and cannot judge");
    let shows = clock.shows(1_000);
    assert!(!clock.follow(1 << 48, 1_000));
    assert!(!clock.follow(shows + MAX_STEP_MS + FOLLOW_SLACK_MS + 1, 1_000));
    assert_eq!(clock.shows(1_000), shows);
    assert!(clock.follow(shows + MAX_STEP_MS, 1_000), "a leader that has just started may step so far");
    assert_eq!(clock.shows(1_000), shows + MAX_STEP_MS);
    // A committed time counts, and from then on the leader's time.
    clock.applied(WALL + 30 * YEAR, 2_000);
    assert!(clock.follow(WALL + 30 * YEAR + 5, 2_000));
    assert_eq!(clock.shows(2_000), WALL + 30 * YEAR + 5);
}

#[test]
fn a_new_cluster_begins_with_its_wall_clocks() {
    let mut clock = of_three(1);
    assert_eq!(clock.lead(WALL + YEAR, 0), WALL + YEAR, "no better clock is known");
    assert_eq!(clock.time_to_send(WALL + YEAR, 0), 0);
    clock.reported(3, report(WALL, None), 10);
    assert_eq!(clock.lead(WALL + YEAR, 20), WALL + 10);
    assert_eq!(clock.time_to_send(WALL + YEAR, 20), WALL + 10);
}

/// A cluster that was once ahead goes on at its pace, and a follower takes no time earlier than the applied one.
#[test]
fn a_clock_that_is_ahead_goes_on() {
    let mut clock = of_three(2);
    clock.applied(WALL + 30 * YEAR, 0);
    clock.follow(WALL, 10);
    assert_eq!(clock.shows(20), WALL + 30 * YEAR + 10);
    clock.reported(1, report(WALL, None), 20);
    let began = clock.lead(WALL, 20);
    let mut last = began;
    for now_ms in (100..HOUR).step_by(100) {
        clock.reported(1, report(WALL + now_ms, None), now_ms);
        last = clock.lead(WALL + now_ms, now_ms);
    }
    assert!((last - began).abs_diff(HOUR) <= HOUR / 100 + 200, "{}", last - began);
}
