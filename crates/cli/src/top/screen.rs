//! The terminal while `top` draws on it: the alternate screen, without cursor and without line wrap. It is restored
//! when the value is dropped.

use std::io::{self, IsTerminal as _, Write as _};

use terminal_size::{Height, Width, terminal_size};

use super::render::Size;

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// See the module's text.
pub(crate) struct Screen(());

impl Screen {
    /// Whether standard output is a terminal on which it can draw.
    pub(crate) fn is_possible() -> bool {
        io::stdout().is_terminal()
    }

    pub(crate) fn enter() -> io::Result<Self> {
        let screen = Self(());
        write(ENTER)?;
        Ok(screen)
    }

    /// The size as it is now.
    pub(crate) fn size() -> Size {
        let (columns, rows) = terminal_size().map_or((80, 24), |(Width(columns), Height(rows))| (columns, rows));
        Size { columns: columns.into(), rows: rows.into() }
    }

    /// Draws over what is there, so that nothing flickers.
    pub(crate) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut text = HOME.to_owned();
        for (number, line) in lines.iter().enumerate() {
            // No line end behind the last line: it would scroll.
            text.push_str(if number > 0 { "\r\n" } else { "" });
            text.push_str(line);
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_BELOW);
        write(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = write(LEAVE);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
