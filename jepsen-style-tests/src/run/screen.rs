//! Progress on the terminal: one line that is kept up to date, or a plain line now and then where standard output is no
//! terminal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::history::EventKind;
use crate::record;

const LOOK: Duration = Duration::from_millis(500);
const PLAIN_LINE: Duration = Duration::from_secs(10);

/// Shows how a run goes.
#[derive(Clone, Debug)]
pub struct Screen {
    bar: Option<ProgressBar>,
    phase: Arc<Mutex<String>>,
    /// Says nothing but what it is told to say: for the cells of a matrix.
    terse: bool,
}

/// Counts what clients tell while they tell it.
#[derive(Debug, Default)]
pub struct ProgressTally {
    places: BTreeMap<PathBuf, u64>,
    /// Carried out, certainly not, unknown.
    pub ended: [u64; 3],
}

#[derive(Deserialize)]
struct Brief {
    kind: EventKind,
}

impl ProgressTally {
    /// Reads what was added to the histories in a directory.
    pub fn look(&mut self, dir: &Path) {
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            let place = self.places.entry(path.clone()).or_default();
            // The whole history is read, and complained of, at the end.
            let Ok((events, next)) = record::read_from::<Brief>(&path, *place) else { continue };
            *place = next;
            for event in events {
                match event.kind {
                    EventKind::Ok => self.ended[0] += 1,
                    EventKind::Fail => self.ended[1] += 1,
                    EventKind::Info => self.ended[2] += 1,
                    EventKind::Invoke | EventKind::Note => {}
                }
            }
        }
    }
}

impl Screen {
    /// Where standard error is a terminal, a line that is kept up to date; else plain lines, or none where `terse`.
    pub fn new(terse: bool) -> Self {
        let bar = std::io::IsTerminal::is_terminal(&std::io::stderr()).then(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            bar.set_style(style);
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, phase: Arc::default(), terse }
    }

    /// Says a line that stays, unless the screen is terse.
    pub fn say(&self, line: &str) {
        if !self.terse {
            self.print(line);
        }
    }

    /// Says a line that stays.
    pub fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    /// What goes on now.
    pub fn phase(&self, phase: &str) {
        phase.clone_into(&mut self.phase.lock());
        if let Some(bar) = &self.bar {
            bar.set_message(phase.to_owned());
        }
    }

    /// Takes the line off.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Follows the clients' histories until the task is dropped.
    pub fn follow(&self, dir: PathBuf, time: Duration) -> Following {
        let screen = self.clone();
        Following(tokio::spawn(async move { screen.watch(&dir, time).await }))
    }

    async fn watch(&self, dir: &Path, time: Duration) {
        let (begun, mut said) = (Instant::now(), Instant::now());
        let mut tally = ProgressTally::default();
        let mut last = (begun, 0);
        let mut rate = 0.0;
        loop {
            tokio::time::sleep(LOOK).await;
            tally.look(dir);
            let [ok, fail, info] = tally.ended;
            if last.0.elapsed() >= Duration::from_secs(1) {
                rate = (ok - last.1) as f64 / last.0.elapsed().as_secs_f64();
                last = (Instant::now(), ok);
            }
            let phase = self.phase.lock().clone();
            let line = format!(
                "[{:5.1} of {} s] ok {ok}  fail {fail}  unknown {info}  {rate:.0}/s  {phase}",
                begun.elapsed().as_secs_f64(),
                time.as_secs()
            );
            match &self.bar {
                Some(bar) => bar.set_message(line),
                None if !self.terse && said.elapsed() >= PLAIN_LINE => {
                    said = Instant::now();
                    println!("{line}");
                }
                None => {}
            }
        }
    }
}

/// The following of histories; ends when dropped.
#[derive(Debug)]
pub struct Following(tokio::task::JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_added_to_histories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let line = |kind: &str| format!("{{\"at_us\":1,\"client\":1,\"op\":1,\"kind\":\"{kind}\",\"what\":\"x\"}}\n");
        std::fs::write(&path, line("invoke") + &line("ok") + &line("told")).unwrap();
        let mut tally = ProgressTally::default();
        tally.look(dir.path());
        assert_eq!(tally.ended, [1, 0, 0]);
        let more = std::fs::read_to_string(&path).unwrap() + &line("info") + &line("fail") + "{\"torn";
        std::fs::write(&path, more).unwrap();
        std::fs::write(dir.path().join("a.log"), "not a history").unwrap();
        tally.look(dir.path());
        tally.look(dir.path());
        assert_eq!(tally.ended, [1, 1, 1]);
    }
}
