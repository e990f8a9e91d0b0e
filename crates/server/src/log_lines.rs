//! Limits of the log: how many lines of one kind, how long a line, which characters.
//!
//! Outsiders cause many log lines: a stranger at the peer port, a client over a limit. They must not fill the disk,
//! bury other lines, or send escape sequences to the operator's terminal. So one place in the code writes at most
//! [`LINES`] lines within [`WINDOW`]; the log says that further ones are left out, then how many were, and a metric
//! counts them. `debug` and `trace`, which somebody asked for, are not limited, nor is the audit log, where every line
//! counts.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use lockkeeper_api::text::is_obeyed;
use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;

/// Lines of one place in the code within a window.
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Longest line; a longer one is cut at its end.
const LINE_BYTES: usize = 8 * 1024;

/// A notice of the limit, written before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It is the last of its kind for a while.
    Last,
    /// So many of its kind were left out.
    LeftOut(u64),
}

thread_local! {
    /// From the limit to the writer: one event is formatted and written on the thread that it came on.
    static NOTICE: Cell<Option<Notice>> = const { Cell::new(None) };
}

/// Leaves out lines of one place in the code beyond the limit.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    windows: Mutex<HashMap<Identifier, Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl RateLimit {
    /// Whether a line is written, and the notice before it.
    fn admit(&self, kind: &Metadata<'_>, now: Instant) -> (bool, Option<Notice>) {
        if *kind.level() > Level::INFO || kind.target() == "audit" {
            return (true, None);
        }
        let mut windows = self.windows.lock();
        let fresh = Window { since: now, lines: 0, left_out: 0 };
        let window = windows.entry(kind.callsite()).or_insert(fresh);
        let mut notice = None;
        if now.saturating_duration_since(window.since) >= WINDOW {
            notice = (window.left_out > 0).then_some(Notice::LeftOut(window.left_out));
            *window = Window { since: now, lines: 0, left_out: 0 };
        }
        window.lines = window.lines.saturating_add(1);
        if window.lines > LINES {
            window.left_out += 1;
            return (false, None);
        }
        (true, notice.or((window.lines == LINES).then_some(Notice::Last)))
    }
}

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let (admitted, notice) = self.admit(event.metadata(), Instant::now());
        if admitted {
            NOTICE.set(notice);
        } else {
            metrics::counter!("lockkeeper_log_lines_left_out_total").increment(1);
        }
        admitted
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Text.
    Text,
    /// Text with the escape sequences of colours.
    Colour,
    /// One JSON object a line.
    Json,
}

/// Makes writers that limit each line.
#[derive(Clone, Debug)]
pub(crate) struct MakeLineWriter<M> {
    to: M,
    form: LineFormat,
}

impl<M> MakeLineWriter<M> {
    pub(crate) fn new(to: M, form: LineFormat) -> Self {
        Self { to, form }
    }
}

impl<'m, M: MakeWriter<'m>> MakeWriter<'m> for MakeLineWriter<M> {
    type Writer = LineWriter<M::Writer>;

    fn make_writer(&'m self) -> Self::Writer {
        LineWriter { to: self.to.make_writer(), form: self.form, level: Level::INFO }
    }

    fn make_writer_for(&'m self, kind: &Metadata<'_>) -> Self::Writer {
        LineWriter { to: self.to.make_writer_for(kind), form: self.form, level: *kind.level() }
    }
}

/// Writes one line, which comes in one piece.
pub(crate) struct LineWriter<W> {
    to: W,
    form: LineFormat,
    level: Level,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let mut out = NOTICE.take().map(|notice| self.notice(notice)).unwrap_or_default();
        out.push_str(&self.bounded(text.trim_end_matches('\n')));
        out.push('\n');
        self.to.write_all(out.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W> LineWriter<W> {
    fn notice(&self, notice: Notice) -> String {
        let seconds = WINDOW.as_secs();
        let message = match notice {
            Notice::Last => format!("after the next line, more of its kind are left out for up to {seconds} s"),
            Notice::LeftOut(1) => "1 line of the kind of the next one was left out".to_owned(),
            Notice::LeftOut(lines) => format!("{lines} lines of the kind of the next one were left out"),
        };
        match self.form {
            LineFormat::Json => self.json(&message, None) + "\n",
            LineFormat::Text | LineFormat::Colour => format!("{} {message}\n", self.level),
        }
    }

    fn bounded(&self, line: &str) -> String {
        let line = self.printable(line);
        if line.len() <= LINE_BYTES {
            return line;
        }
        let end = (0..=LINE_BYTES).rev().find(|end| line.is_char_boundary(*end)).unwrap_or_default();
        let (begin, bytes) = (&line[..end], line.len());
        match self.form {
            // A part of an object is none.
            LineFormat::Json => self.json(&format!("a line of {bytes} bytes is cut"), Some(begin)),
            // What was cut off may have ended the colour.
            LineFormat::Colour => format!("{begin}\x1b[0m … ({bytes} bytes in all)"),
            LineFormat::Text => format!("{begin} … ({bytes} bytes in all)"),
        }
    }

    fn json(&self, message: &str, begin: Option<&str>) -> String {
        let mut object = serde_json::json!({ "level": self.level.as_str(), "message": message });
        if let Some(begin) = begin {
            object["begin"] = begin.into();
        }
        object.to_string()
    }

    /// The line with what a terminal would obey written out, but for colours where there are colours.
    fn printable(&self, line: &str) -> String {
        line.char_indices().fold(String::with_capacity(line.len()), |mut out, (at, c)| {
            match self.form {
                _ if !is_obeyed(c) => out.push(c),
                LineFormat::Json => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                LineFormat::Colour if is_colour(&line[at..]) => out.push(c),
                LineFormat::Text | LineFormat::Colour => out.extend(c.escape_default()),
            }
            out
        })
    }
}

/// Whether an escape sequence begins here that changes colour or weight and nothing else (ECMA-48, SGR).
fn is_colour(line: &str) -> bool {
    let numbers =
        line.strip_prefix("\x1b[").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
    numbers.is_some_and(|rest| rest.starts_with('m'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `logging` leaves in the log.
    fn logged(form: LineFormat, logging: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let made = kept.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(MakeLineWriter::new(move || made.clone(), form));
        let lines = match form {
            LineFormat::Json => lines.json().flatten_event(true).boxed(),
            LineFormat::Text | LineFormat::Colour => lines.with_ansi(form == LineFormat::Colour).boxed(),
        };
        let subscriber = tracing_subscriber::registry().with(RateLimit::default()).with(lines);
        tracing::subscriber::with_default(subscriber, logging);
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_flood_of_one_kind_leaves_room_for_the_rest() {
        let lines = logged(LineFormat::Text, || {
            for number in 0..1_000 {
                tracing::warn!(number, "a stranger at the door");
                tracing::debug!(number, "asked for");
            }
            tracing::warn!("something else");
        });
        let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(count("a stranger at the door"), LINES as usize);
        assert_eq!(count("more of its kind are left out"), 1);
        assert_eq!((count("asked for"), count("something else")), (1_000, 1));
    }

    #[test]
    fn the_audit_log_is_whole() {
        let lines = logged(LineFormat::Text, || {
            for number in 0..3_000 {
                tracing::info!(target: "audit", number, "forced release");
            }
        });
        assert_eq!(lines.len(), 3_000);
    }

    #[test]
    fn after_a_while_it_is_told_how_many_were_left_out() {
        static KIND: std::sync::OnceLock<&'static Metadata<'static>> = std::sync::OnceLock::new();
        struct Keeper;
        impl<S: Subscriber> Layer<S> for Keeper {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                KIND.get_or_init(|| event.metadata());
            }
        }
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Keeper), || tracing::info!("a line"));
        let (kind, limit, start) = (*KIND.get().unwrap(), RateLimit::default(), Instant::now());
        let admitted = (0..LINES + 7).filter(|_| limit.admit(kind, start).0).count();
        assert_eq!(admitted, LINES as usize);
        assert_eq!(limit.admit(kind, start + WINDOW), (true, Some(Notice::LeftOut(7))));
        assert_eq!(limit.admit(kind, start + WINDOW), (true, None));
    }

    #[test]
    fn a_line_stays_one_line_and_is_bounded() {
        let (long, sly) = ("x".repeat(100_000), "a\nERROR forged\u{202e}\x1b[2J\u{9b}");
        for form in [LineFormat::Text, LineFormat::Colour, LineFormat::Json] {
            let lines = logged(form, || {
                tracing::warn!(name = %sly, "sly {sly}");
                tracing::warn!(%long, "long");
            });
            assert_eq!(lines.len(), 2, "{form:?}: {lines:?}");
            assert!(!lines[0].contains(['\u{202e}', '\u{9b}']), "{form:?}: {}", lines[0]);
            assert!(form == LineFormat::Colour || !lines[0].contains('\x1b'), "{form:?}: {}", lines[0]);
            assert!(!lines[0].contains("\x1b[2J"), "{form:?}: {}", lines[0]);
            assert!(lines[1].len() < LINE_BYTES + 200, "{form:?}: {}", lines[1].len());
            assert!(lines[1].contains("100") && lines[1].contains("xxx"), "{form:?}");
            if form == LineFormat::Json {
                let object: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
                assert_eq!(object["name"], sly);
                serde_json::from_str::<serde_json::Value>(&lines[1]).unwrap();
            }
        }
    }
}
