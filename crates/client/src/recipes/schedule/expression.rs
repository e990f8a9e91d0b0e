//! Cron expressions in a time zone, as ticks of UTC.
//!
//! `croner` knows the language; it is asked about civil times alone (written as if they were UTC), and this module says
//! what they are in a zone. So the rules for the days on which clocks are put are stated in one place:
//!
//! - **Hours with `*`** (`*/5 * * * *`, `0 */2 * * *`, `@hourly`) follow the clock on the wall: nothing ticks in the
//!   hour that is skipped, and the hour that comes twice ticks twice.
//! - **Fixed hours** (`30 2 * * *`, `0 8-18 * * *`) tick once for each civil time: one in the skipped hour ticks at the
//!   first instant after it (several together), one in the repeated hour ticks the first time only.
//!
//! Pure: reads no clock. The rules of a zone come from the system's database (`/usr/share/zoneinfo`), or from a POSIX
//! description such as `CET-1CEST,M3.5.0,M10.5.0/3`, which needs no database.

use std::fmt;

use chrono::{DateTime, Utc};
use croner::Cron;
use jiff::Timestamp;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};

use crate::recipes::error::RecipeError;

/// Longest expression, and longest name of a zone.
const MAX_TEXT_BYTES: usize = 128;
/// The first window in which [`Expression::due`] looks back.
const FIRST_WINDOW_S: i64 = 60;
/// From here on an expression must tick at least once (2024-01-01): the first leap day is in it.
const PROBE: Tick = Tick(1_704_067_200);

/// The time at which a schedule is due: a second of UTC. Shown as RFC 3339, such as `2026-11-25T23:05:00Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tick(pub(super) i64);

impl Tick {
    /// Milliseconds since 1970.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0).unwrap_or_default().saturating_mul(1_000)
    }

    /// The second in which that millisecond since 1970 is.
    pub fn at_millis(ms: u64) -> Self {
        Self(i64::try_from(ms / 1_000).unwrap_or(i64::MAX))
    }

    fn timestamp(self) -> Option<Timestamp> {
        Timestamp::from_second(self.0).ok()
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timestamp() {
            Some(timestamp) => timestamp.fmt(f),
            None => write!(f, "{} s since 1970", self.0),
        }
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Tick> for String {
    fn from(tick: Tick) -> Self {
        tick.to_string()
    }
}

impl TryFrom<String> for Tick {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed: Timestamp = text.parse().map_err(|e| format!("'{text}' is not a time of RFC 3339: {e}"))?;
        Ok(Self(parsed.as_second()))
    }
}

/// The ticks of a time span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DueTicks {
    /// The first and the last of those before `ticks`, which were too many to name.
    pub(super) omitted: Option<(Tick, Tick)>,
    pub(super) ticks: Vec<Tick>,
}

/// An expression in a zone.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    cron: Cron,
    /// With one space between fields.
    pub(super) text: String,
    zone: TimeZone,
    pub(super) zone_name: String,
    /// Whether the field of hours begins with `*`.
    every_hour: bool,
}

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, RecipeError> {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let refused = |why: &str| {
            RecipeError::BadArgument(format!(
                "'{text}' is not a cron expression: {why}; write 5 fields (minute, hour, day of month, month, day of \
                 week) or 6 with seconds before them, such as '*/5 * * * *'"
            ))
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(refused(&format!("it is longer than {MAX_TEXT_BYTES} bytes")));
        }
        let cron = Cron::new(&text).with_seconds_optional().parse().map_err(|e| refused(&e.to_string()))?;
        let fields: Vec<&str> = text.split(' ').collect();
        let every_hour = match fields[..] {
            [nickname] => nickname.eq_ignore_ascii_case("@hourly"),
            [_, hour, _, _, _] | [_, _, hour, _, _, _] => hour.starts_with(['*', '?']),
            _ => return Err(refused(&format!("it has {} fields", fields.len()))),
        };
        let expression = Self { cron, text, zone: TimeZone::UTC, zone_name: "UTC".into(), every_hour };
        match expression.next_after(PROBE) {
            Some(_) => Ok(expression),
            None => Err(RecipeError::BadArgument(format!("'{}' never ticks: no such day exists", expression.text))),
        }
    }

    /// In that zone instead of UTC.
    pub(super) fn in_zone(self, name: &str) -> Result<Self, RecipeError> {
        let name = name.trim();
        if name.is_empty() || name.len() > MAX_TEXT_BYTES {
            return Err(RecipeError::BadArgument("a time zone has a name, such as Europe/Berlin".into()));
        }
        let zone = if name.eq_ignore_ascii_case("UTC") {
            TimeZone::UTC
        } else {
            TimeZone::get(name).or_else(|why| TimeZone::posix(name).map_err(|_| why)).map_err(|why| {
                RecipeError::BadArgument(format!(
                    "no time zone '{name}' ({why}); use a name of the IANA database, such as Europe/Berlin, install \
                     the package tzdata where /usr/share/zoneinfo is missing, or give the zone's rules, such as \
                     CET-1CEST,M3.5.0,M10.5.0/3"
                ))
            })?
        };
        // As the database writes it: names are found whatever their case.
        let zone_name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Self { zone, zone_name, ..self })
    }

    /// The first tick after that time.
    pub(super) fn next_after(&self, after: Tick) -> Option<Tick> {
        if self.every_hour { self.next_on_the_wall(after) } else { self.next_of_civil_times(after) }
    }

    /// The ticks after `after`, up to and including `until`: the latest `most` of them.
    pub(super) fn due(&self, after: Tick, until: Tick, most: usize) -> DueTicks {
        let Some(first) = self.next_after(after).filter(|first| *first <= until) else { return DueTicks::default() };
        let mut window = FIRST_WINDOW_S;
        loop {
            // Only as far back as needed: after years without a worker, a tick each second would be millions.
            let from = after.max(Tick(until.0.saturating_sub(window)));
            let mut ticks: Vec<Tick> = std::iter::successors(self.next_after(from), |tick| self.next_after(*tick))
                .take_while(|tick| *tick <= until)
                .collect();
            if from == after || ticks.len() > most {
                let omitted = ticks.len().saturating_sub(most);
                let through = omitted.checked_sub(1).and_then(|last| ticks.get(last).copied());
                return DueTicks { omitted: through.map(|through| (first, through)), ticks: ticks.split_off(omitted) };
            }
            window = window.saturating_mul(4);
        }
    }

    /// Each stretch of time between two changes of the offset is searched by itself.
    fn next_on_the_wall(&self, after: Tick) -> Option<Tick> {
        // The next stretch begins with `from`, and so does the search there.
        let mut from = Tick(after.0.checked_add(1)?);
        loop {
            let timestamp = from.timestamp()?;
            let offset = i64::from(self.zone.to_offset(timestamp).seconds());
            let tick = Tick(self.civil_from(from.0 + offset)? - offset);
            match self.zone.following(timestamp).next().map(|change| change.timestamp().as_second()) {
                Some(change) if tick.0 >= change => from = Tick(change),
                _ => return Some(tick),
            }
        }
    }

    fn next_of_civil_times(&self, after: Tick) -> Option<Tick> {
        let timestamp = after.timestamp()?;
        let mut civil = after.0 + i64::from(self.zone.to_offset(timestamp).seconds());
        loop {
            civil = self.civil_from(civil + 1)?;
            // In the second pass of a repeated hour, its civil times have ticked in the first.
            match self.instant_of(civil)? {
                tick if tick > after => return Some(tick),
                _ => {}
            }
        }
    }

    /// The first civil time from that one on that the expression matches, in seconds as if it were UTC.
    fn civil_from(&self, civil: i64) -> Option<i64> {
        let from: DateTime<Utc> = DateTime::from_timestamp(civil, 0)?;
        self.cron.find_next_occurrence(&from, true).ok().map(|next| next.timestamp())
    }

    /// When a civil time is.
    fn instant_of(&self, civil: i64) -> Option<Tick> {
        let as_utc = Timestamp::from_second(civil).ok()?;
        let local = TimeZone::UTC.to_datetime(as_utc);
        Some(match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                Tick(civil - i64::from(offset.seconds()))
            }
            AmbiguousOffset::Gap { before, .. } => {
                // The clocks were put between the last civil time that exists and this one.
                let beyond = Timestamp::from_second(civil - i64::from(before.seconds()) + 1).ok()?;
                Tick(self.zone.preceding(beyond).next()?.timestamp().as_second())
            }
        })
    }
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
