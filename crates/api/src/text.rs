//! Makes text from outside safe to print.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal or a log viewer would obey this character instead of showing it: control characters, and those
/// that change the direction of text or end its line (Unicode's Bidi_Control, U+2028 and U+2029).
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with such characters written out, as Rust does: `\n`, `\u{202e}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().fold(String::with_capacity(text.len() + 16), |mut escaped, c| {
        if is_obeyed(c) {
            // A string takes all that is written to it.
            let _ = write!(escaped, "{}", c.escape_default());
        } else {
            escaped.push(c);
        }
        escaped
    });
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_obeyed_is_shown() {
        assert_eq!(printable("a\x1b[31mü\n"), "a\\u{1b}[31mü\\n");
        assert_eq!(printable("pay\u{202e}42\u{2028}"), "pay\\u{202e}42\\u{2028}");
        assert!(matches!(printable("あ orders/42 \u{200d}"), Cow::Borrowed(_)));
    }
}
