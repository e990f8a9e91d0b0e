//! Waiting for a member that catches up, with a bar on a terminal and lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper_api::cluster::{Member, Role};
use tokio::time::{Instant, sleep};

use super::view::View;
use super::{Operator, note};
use crate::failure::Failure;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two lines that say the same with other numbers.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// As in the condition for a promotion.
const CAUGHT_UP_ENTRIES: u64 = 1_000;

/// Waits until a learner can be promoted; not for a voter. Returns the membership as it is then.
pub(super) async fn wait(operator: &Operator<'_>, node: u64, within: Duration) -> Result<View, Failure> {
    let give_up_at = Instant::now() + within;
    let mut progress = Progress::new();
    loop {
        let view = operator.view().await?;
        let member = view.member(node).ok_or_else(|| view.no_member(node))?;
        match Step::of(&view, member) {
            Step::Ready => {
                progress.end();
                return Ok(view);
            }
            Step::Front => {
                progress.end();
                return Err(Failure::failed(format!(
                    "node {node} is a front node, which never votes: remove it, and add the machine again under \
                     another id and with an empty data directory"
                )));
            }
            step if Instant::now() >= give_up_at => {
                progress.end();
                return Err(Failure::failed(format!(
                    "node {node} has not caught up within {}: {}; look at its log, and repeat this command",
                    humantime::format_duration(within),
                    step.text(node)
                )));
            }
            step => progress.show(&step, node),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// How far a learner is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Front,
    /// It has not answered the leader.
    Silent,
    /// So many entries of so many.
    At(u64, u64),
    Ready,
}

impl Step {
    fn of(view: &View, member: &Member) -> Self {
        let last = view.status.last_log_index;
        match (member.role, member.matched_index) {
            (Role::Front, _) => Self::Front,
            (Role::Voter, _) => Self::Ready,
            (Role::Learner, Some(matched)) if member.answered_ms_ago.is_some() => {
                let near = last.saturating_sub(matched) <= CAUGHT_UP_ENTRIES;
                if near && member.synced == Some(true) { Self::Ready } else { Self::At(matched.min(last), last) }
            }
            (Role::Learner, _) => Self::Silent,
        }
    }

    fn text(&self, node: u64) -> String {
        match self {
            Self::Front => format!("node {node} is a front node"),
            Self::Silent => format!("node {node} has not answered the leader yet; is it running?"),
            Self::At(matched, last) => format!("node {node} has {matched} of {last} log entries"),
            Self::Ready => format!("node {node} has caught up"),
        }
    }
}

/// Shows the steps on standard error.
enum Progress {
    Bar(ProgressBar),
    Lines { last: Option<(Step, Instant)> },
}

impl Progress {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { last: None };
        }
        let bar = ProgressBar::new(0);
        // The template is right: a test makes it.
        bar.set_style(style().unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(LOOK_EVERY);
        Self::Bar(bar)
    }

    fn show(&mut self, step: &Step, node: u64) {
        match self {
            Self::Bar(bar) => {
                if let Step::At(matched, last) = step {
                    bar.set_length(*last);
                    bar.set_position(*matched);
                }
                bar.set_message(step.text(node));
            }
            Self::Lines { last } => {
                let same = |before: &Step| std::mem::discriminant(before) == std::mem::discriminant(step);
                if !last.as_ref().is_some_and(|(before, at)| same(before) && at.elapsed() < SAY_EVERY) {
                    note(&step.text(node));
                    *last = Some((step.clone(), Instant::now()));
                }
            }
        }
    }

    fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn style() -> Result<ProgressStyle, indicatif::style::TemplateError> {
    ProgressStyle::with_template("{spinner} [{bar:30}] {percent:>3} % {msg}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_of_the_bar_is_right() {
        assert!(super::style().is_ok());
    }
}
