//! Says on standard error what a command waits for, and who keeps it waiting: after a second, when the holder changes,
//! and otherwise rarely. On a terminal it is one line that is kept up to date, and cleared at the end.
//!
//! The look-ups must cost the cluster little and never disturb the wait: they come more rarely the longer the queue is,
//! and their errors are ignored. Those of queues and gates are answered by one replica.

use std::convert::Infallible;
use std::time::Duration;

use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Request;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Hold;
use crate::args::HoldArgs;
use crate::failure::{print_error, print_error_json, wants_json};
use crate::output::{escaped, now_ms, seconds_since, until};
use crate::status_line::StatusLine;

/// A shorter wait is not reported.
const SILENT: Duration = Duration::from_secs(1);
/// How often the line on a terminal is drawn.
const REDRAW: Duration = Duration::from_secs(1);
/// Changes of the holder are reported at most so often.
const BETWEEN_CHANGES: Duration = Duration::from_secs(5);
/// Without a change of the holder.
const BETWEEN_REPEATS: Duration = Duration::from_secs(60);
/// Pause between look-ups, and what each waiter adds to it: all waiters of a lock together ask at most 20 times a
/// second.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_PER_WAITER: Duration = Duration::from_millis(50);

/// What a wait is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Waiting {
    #[serde(rename = "for")]
    pub(crate) name: String,
    /// From 1; `None` outside a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<Holder>,
    /// Holders beside that one.
    pub(crate) more_holders: usize,
    /// How many wait, for the pause before the next look-up.
    #[serde(skip)]
    pub(crate) waiters: u64,
}

/// Who keeps a wait waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Holder {
    pub(crate) label: String,
    pub(crate) token: u64,
    /// Since when it holds or, if it came before this wait, stands in the queue.
    pub(crate) since_ms: u64,
    /// Whether that is when it entered the queue. Nobody knows when it came to hold.
    #[serde(skip)]
    pub(crate) is_queued_since: bool,
    /// For a dead holder whose lock stays closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delayed_until_ms: Option<u64>,
}

impl From<&Request> for Holder {
    fn from(request: &Request) -> Self {
        let Request { token, since_ms, delayed_until_ms, .. } = *request;
        Self { label: request.label.clone(), token, since_ms, is_queued_since: true, delayed_until_ms }
    }
}

/// `held by LABEL for TIME (token N)`, or `held by LABEL, queued TIME ago (token N)` where the grant was not seen, and
/// how many more hold.
pub(crate) fn held_by(holder: &Holder, more_holders: usize) -> String {
    let token = holder.token;
    let held = match holder.delayed_until_ms {
        Some(until_ms) => {
            format!("closed for another {} after the loss of its holder (token {token})", until(until_ms))
        }
        None => {
            let (label, time) = (escaped(&holder.label), seconds_since(holder.since_ms));
            let since = if holder.is_queued_since { format!(", queued {time} ago") } else { format!(" for {time}") };
            format!("held by {label}{since} (token {token})")
        }
    };
    if more_holders > 0 { format!("{held} and {more_holders} more") } else { held }
}

impl Waiting {
    /// A wait for something about which nothing more is known.
    pub(crate) fn unknown(name: String) -> Self {
        Self { name, place: None, holder: None, more_holders: 0, waiters: 0 }
    }

    fn text(&self) -> String {
        let place = self.place.map(|place| format!("place {place}"));
        let held = self.holder.as_ref().map(|holder| held_by(holder, self.more_holders));
        let parts = [Some(format!("waiting for {}", escaped(&self.name))), place, held];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn token(&self) -> Option<u64> {
        self.holder.as_ref().map(|holder| holder.token)
    }

    fn pause(&self) -> Duration {
        if self.place.is_none() {
            // Outside of a queue nobody knows how many wait.
            return BETWEEN_CHANGES;
        }
        let waiters = u32::try_from(self.waiters).unwrap_or(u32::MAX);
        PAUSE.saturating_add(PAUSE_PER_WAITER.saturating_mul(waiters)).min(BETWEEN_REPEATS)
    }
}

/// Decides what of the look-ups is printed where standard error is no terminal. Pure.
#[derive(Default)]
struct Lines {
    /// The holder in the latest look-up, and since when it holds if it became the holder during this wait.
    seen: Option<(u64, Option<u64>)>,
    /// When the latest line was printed, and the holder in it.
    printed: Option<(Instant, Option<u64>)>,
}

impl Lines {
    /// Corrects since when the holder holds: one that waited before has been in the queue for longer.
    fn note_holder(&mut self, waiting: &mut Waiting, now_ms: u64) {
        let Some(holder) = &mut waiting.holder else { return };
        let since_ms = match self.seen {
            Some((token, since_ms)) if token == holder.token => since_ms,
            Some(_) => Some(now_ms),
            None => None,
        };
        self.seen = Some((holder.token, since_ms));
        if let Some(since_ms) = since_ms.filter(|since_ms| *since_ms > holder.since_ms) {
            (holder.since_ms, holder.is_queued_since) = (since_ms, false);
        }
    }

    fn is_due(&mut self, waiting: &Waiting, now: Instant) -> bool {
        let is_due = match self.printed {
            None => true,
            // A look-up without a holder may have met the moment between two.
            Some(_) if waiting.holder.is_none() => false,
            Some((at, token)) if token == waiting.token() => now >= at + BETWEEN_REPEATS,
            Some((at, _)) => now >= at + BETWEEN_CHANGES,
        };
        if is_due {
            self.printed = Some((now, waiting.token()));
        }
        is_due
    }
}

/// Reports the wait for `hold` until it is dropped.
pub(super) async fn report(args: &HoldArgs, hold: &impl Hold, session: &Session) -> Infallible {
    if args.quiet {
        std::future::pending::<()>().await;
    }
    let mut lines = Lines::default();
    let mut line = StatusLine::default();
    sleep(SILENT).await;
    loop {
        let mut waiting = hold.waiting(session).await.unwrap_or_else(|| Waiting::unknown(hold.name()));
        lines.note_holder(&mut waiting, now_ms());
        let look_again_at = Instant::now() + waiting.pause();
        loop {
            let text = format!("lockkeeper {}: {}", hold.command(), waiting.text());
            if wants_json() || !line.draw(&text) {
                line.clear();
                if lines.is_due(&waiting, Instant::now()) {
                    match wants_json() {
                        true => print_error_json(&json!({ "waiting": waiting })),
                        false => print_error(&text),
                    }
                }
            }
            let left = look_again_at.saturating_duration_since(Instant::now());
            sleep(left.min(REDRAW)).await;
            if left <= REDRAW {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(token: Option<u64>) -> Waiting {
        let label = || "deploy@db1".into();
        let of = |token| Holder { label: label(), token, since_ms: 1, is_queued_since: true, delayed_until_ms: None };
        Waiting { place: Some(2), holder: token.map(of), ..Waiting::unknown("jobs/nightly".into()) }
    }

    #[test]
    fn a_line_comes_at_once_at_each_change_and_otherwise_rarely() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let mut printed = Vec::new();
        for second in 0..200 {
            // The lock is handed over at 30, and each second from 100 to 110.
            let token = if second < 30 { 1 } else { 2 + (second.clamp(100, 110) - 100) };
            // At the moment of the hand-over nobody holds it.
            let token = (second != 30).then_some(token);
            if lines.is_due(&waiting(token), start + Duration::from_secs(second)) {
                printed.push(second);
            }
        }
        assert_eq!(printed, [0, 31, 91, 101, 106, 111, 171]);
    }

    #[test]
    fn a_holder_that_waited_holds_since_its_predecessor_went() {
        let mut lines = Lines::default();
        let mut since = |token, now_ms| {
            let mut seen = waiting(Some(token));
            lines.note_holder(&mut seen, now_ms);
            seen.holder.map(|holder| (holder.since_ms, holder.is_queued_since)).unwrap()
        };
        assert_eq!([since(1, 500), since(1, 600)], [(1, true), (1, true)], "it came before this wait");
        assert_eq!([since(2, 700), since(2, 900)], [(700, false), (700, false)]);
    }

    #[test]
    fn the_line_has_place_holder_time_and_token() {
        let mut seen = waiting(Some(998));
        seen.holder.as_mut().unwrap().since_ms = now_ms() - 6_500;
        let queued = "waiting for jobs/nightly, place 2, held by deploy@db1, queued 6s ago (token 998)";
        assert_eq!(seen.text(), queued);
        seen.holder.as_mut().unwrap().is_queued_since = false;
        let text = "waiting for jobs/nightly, place 2, held by deploy@db1 for 6s (token 998)";
        assert_eq!(seen.text(), text);
        seen.more_holders = 3;
        assert_eq!(seen.text(), format!("{text} and 3 more"));
        assert_eq!(Waiting::unknown("a\n".into()).text(), "waiting for a\\n");
    }

    #[test]
    fn long_queues_are_looked_at_rarely() {
        let pause = |waiters| Waiting { waiters, ..waiting(None) }.pause();
        assert_eq!(pause(0), Duration::from_secs(1));
        assert_eq!(pause(1_000), Duration::from_secs(51));
        assert_eq!(pause(u64::MAX), Duration::from_secs(60));
    }
}
