//! Expressions against a model that looks at every minute.

use proptest::prelude::*;

use super::*;

/// Berlin's rules since 1996, without a database.
const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
/// Clocks are put by half an hour only.
const LORD_HOWE: &str = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0";

fn tick(text: &str) -> Tick {
    text.to_owned().try_into().unwrap()
}

fn expression(text: &str, zone: &str) -> Expression {
    Expression::parse(text).unwrap().in_zone(zone).unwrap()
}

fn following(text: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let expression = expression(text, zone);
    std::iter::successors(expression.next_after(tick(after)), |tick| expression.next_after(*tick))
        .take(count)
        .map(|tick| tick.to_string())
        .collect()
}

#[test]
fn ticks_in_utc() {
    assert_eq!(
        following("*/20 * * * *", "UTC", "2026-11-25T23:20:00Z", 3),
        ["2026-11-25T23:40:00Z", "2026-11-26T00:00:00Z", "2026-11-26T00:20:00Z"]
    );
    assert_eq!(
        following("*/30 * * * * *", "UTC", "2026-11-25T23:20:01Z", 2),
        ["2026-11-25T23:20:30Z", "2026-11-25T23:21:00Z"]
    );
    assert_eq!(
        following("0 0 29 2 *", "UTC", "2026-11-25T23:20:01Z", 2),
        ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]
    );
    assert_eq!(following("@daily", "UTC", "2026-11-25T23:20:01Z", 1), ["2026-11-26T00:00:00Z"]);
}

#[test]
fn a_fixed_hour_that_is_skipped_ticks_right_after_it_and_a_repeated_one_ticks_once() {
    // 2026-03-29: 02:00 is followed by 03:00 (01:00 UTC).
    assert_eq!(
        following("30 2 * * *", BERLIN, "2026-03-28T00:00:00Z", 3),
        ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    );
    // Several of them tick together, and 03:00 itself is the same tick.
    assert_eq!(
        following("0,15,30 2-3 * * *", BERLIN, "2026-03-28T23:00:00Z", 4),
        ["2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"]
    );
    // 2026-10-25: 03:00 is followed by 02:00 (01:00 UTC).
    assert_eq!(
        following("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
    // Asked in the middle of the second pass.
    assert_eq!(following("30 2 * * *", BERLIN, "2026-10-25T01:10:00Z", 1), ["2026-10-26T01:30:00Z"]);
}

#[test]
fn every_hour_follows_the_clock_on_the_wall() {
    assert_eq!(
        following("*/30 * * * *", BERLIN, "2026-03-29T00:00:00Z", 3),
        ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
    );
    assert_eq!(
        following("30 * * * *", BERLIN, "2026-10-24T23:45:00Z", 3),
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]
    );
    // At even hours of the wall: 00, (02 is skipped), 04.
    assert_eq!(
        following("0 */2 * * *", BERLIN, "2026-03-28T22:00:00Z", 3),
        ["2026-03-28T23:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T04:00:00Z"]
    );
}

#[test]
fn what_is_no_expression_or_never_ticks_is_refused_with_the_remedy() {
    let refused = |text: &str| match Expression::parse(text) {
        Err(RecipeError::BadArgument(why)) => why,
        other => panic!("{text}: {other:?}"),
    };
    for bad in ["", "* * * *", "61 * * * *", "* 24 * * *", "* * * * mondays", "* * * * * * * *", "@often"] {
        assert!(refused(bad).contains("5 fields"), "{bad}");
    }
    assert!(refused("0 0 31 2 *").contains("never ticks"));
    assert!(refused(&format!("{} * * * *", "1,".repeat(100))).contains("longer than 128"));
    let error = Expression::parse("* * * * *").unwrap().in_zone("Europe/Atlantis").unwrap_err().to_string();
    assert!(error.contains("tzdata") && error.contains("Europe/Atlantis"), "{error}");
    assert_eq!(Expression::parse("  1  2 * *  * ").unwrap().text, "1 2 * * *");
}

#[test]
fn the_latest_ticks_of_a_long_span_are_found_without_walking_through_it() {
    let every_second = expression("* * * * * *", "UTC");
    let (after, until) = (tick("1999-01-01T00:00:00Z"), tick("2026-01-01T00:00:00Z"));
    let due = every_second.due(after, until, 100);
    assert_eq!(due.omitted, Some((tick("1999-01-01T00:00:01Z"), tick("2025-12-31T23:58:20Z"))));
    assert_eq!((due.ticks.len(), due.ticks[99]), (100, until));
    let rare = expression("0 0 1 1 *", "UTC");
    let due = rare.due(after, until, 100);
    assert_eq!((due.ticks.len(), due.omitted), (27, None));
    assert_eq!(rare.due(until, until, 100), DueTicks::default());
    assert_eq!(rare.due(until, after, 100), DueTicks::default());
    let two = rare.due(after, until, 2);
    assert_eq!(two.ticks, [tick("2025-01-01T00:00:00Z"), until]);
    assert_eq!(two.omitted, Some((tick("2000-01-01T00:00:00Z"), tick("2024-01-01T00:00:00Z"))));
}

#[test]
fn a_tick_is_written_as_rfc_3339() {
    let written = serde_json::to_string(&tick("2026-11-25T23:05:00Z")).unwrap();
    assert_eq!(written, "\"2026-11-25T23:05:00Z\"");
    assert_eq!(serde_json::from_str::<Tick>("\"2026-11-26T00:05:00+01:00\"").unwrap(), tick("2026-11-25T23:05:00Z"));
    assert!(serde_json::from_str::<Tick>("\"yesterday\"").is_err());
}

/// The ticks of each minute of a span, by the rules' words.
fn by_the_minute(expression: &Expression, from: Tick, until: Tick) -> Vec<Tick> {
    let civil = |second: i64| {
        let timestamp = Tick(second).timestamp().unwrap();
        second + i64::from(expression.zone.to_offset(timestamp).seconds())
    };
    let matches = |civil: i64| expression.cron.is_time_matching(&DateTime::from_timestamp(civil, 0).unwrap()).unwrap();
    // A day before the span too: a civil time before it may tick in it.
    let minutes: Vec<i64> = (from.0 / 60 - 1_440..=until.0 / 60).map(|minute| minute * 60).collect();
    let mut ticks: Vec<Tick> = if expression.every_hour {
        minutes.into_iter().filter(|minute| matches(civil(*minute))).map(Tick).collect()
    } else {
        let civils = civil(minutes[0]) / 60 + 60..=civil(minutes[minutes.len() - 1]) / 60;
        civils
            .map(|minute| minute * 60)
            .filter(|at| matches(*at))
            .filter_map(|at| {
                let exactly = minutes.iter().find(|minute| civil(**minute) == at);
                exactly.or_else(|| minutes.iter().find(|minute| civil(**minute) > at)).copied().map(Tick)
            })
            .collect()
    };
    ticks.sort();
    ticks.dedup();
    ticks.retain(|tick| *tick > from && *tick <= until);
    ticks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn ticks_are_those_that_looking_at_every_minute_finds(
        minute in prop_oneof![Just("*"), Just("*/7"), Just("0"), Just("30"), Just("5,35,59")],
        hour in prop_oneof![Just("*"), Just("*/2"), Just("1-3"), Just("2"), Just("0,2,3"), Just("1")],
        day in prop_oneof![Just("*"), Just("29"), Just("24-26")],
        zone in prop_oneof![Just("UTC"), Just(BERLIN), Just(LORD_HOWE)],
        // Around the days on which clocks are put in 2026, and any other.
        about in prop_oneof![
            Just("2026-03-29T01:00:00Z"), Just("2026-10-25T01:00:00Z"),
            Just("2026-04-04T15:00:00Z"), Just("2026-10-03T15:30:00Z"), Just("2026-07-01T00:00:00Z")
        ],
        before_m in 0_i64..300,
    ) {
        let expression = expression(&format!("{minute} {hour} {day} * *"), zone);
        let from = Tick(tick(about).0 - before_m * 60);
        let until = Tick(tick(about).0 + 8 * 3_600);
        let due = expression.due(from, until, usize::MAX);
        prop_assert_eq!(due.ticks, by_the_minute(&expression, from, until));
        prop_assert_eq!(due.omitted, None);
    }
}
