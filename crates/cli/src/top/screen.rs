//! The terminal while `top` draws on it: the alternate screen, without cursor and without line wrap. It is restored
//! when the value is dropped.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use terminal_size::{Height, Width, terminal_size};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::render::Size;

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// See the module's text.
pub(crate) struct Screen {
    /// The settings of the terminal before.
    before: Option<Termios>,
}

impl Screen {
    /// Whether standard output is a terminal on which it can draw.
    pub(crate) fn is_possible() -> bool {
        io::stdout().is_terminal()
    }

    pub(crate) fn enter() -> io::Result<Self> {
        let input = io::stdin();
        let before = tcgetattr(&input).ok();
        let screen = Self { before };
        if let Some(mut keys) = screen.before.clone() {
            // Keys come one by one and are not shown. Ctrl-C and Ctrl-Z stay signals.
            keys.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            tcsetattr(&input, SetArg::TCSANOW, &keys)?;
        }
        write(ENTER)?;
        Ok(screen)
    }

    /// The keys that are pressed; none without a terminal as standard input. The thread that reads them ends with the
    /// process: nothing can interrupt it.
    pub(crate) fn keys() -> UnboundedReceiver<u8> {
        let (sender, keys) = unbounded_channel();
        if io::stdin().is_terminal() {
            std::thread::spawn(move || {
                io::stdin().lock().bytes().map_while(Result::ok).try_for_each(|key| sender.send(key))
            });
        }
        keys
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
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
