//! A parser of server-sent events (HTML standard, section 9.2.6): bytes in pieces of any size in, events out. No IO.
//!
//! It keeps the fields that Lockkeeper sends: name, data and id. The longest accepted event bounds its memory.

use thiserror::Error;

/// Longest accepted event; the server's are a few hundred bytes.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The event's name; empty if it has none.
    pub name: String,
    /// The event's data, lines joined by `\n`.
    pub data: String,
    /// The last id in the stream up to this event.
    pub id: String,
}

/// An event is too long to come from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an event of the stream is longer than {MAX_EVENT_BYTES} bytes")]
pub struct SseTooLong;

/// Parses a stream of events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The last byte was a carriage return; a line feed right after it belongs to the same line end.
    after_return: bool,
    begun: bool,
    event: SseEvent,
    has_data: bool,
    id: String,
}

impl SseParser {
    /// A parser at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the next piece and returns the events that it completes.
    ///
    /// # Errors
    /// An event is too long; the rest of the stream cannot be parsed.
    pub fn feed(&mut self, piece: &[u8]) -> Result<Vec<SseEvent>, SseTooLong> {
        let mut events = Vec::new();
        for &byte in piece {
            let pairs = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                _ if pairs => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ => {
                    self.line.push(byte);
                    if self.line.len() + self.event.data.len() > MAX_EVENT_BYTES {
                        return Err(SseTooLong);
                    }
                }
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let mut line: &str = &text;
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            // Comments (an empty field name) only keep the connection alive; `retry` and other fields are not used.
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let mut event = std::mem::take(&mut self.event);
        event.id.clone_from(&self.id);
        std::mem::take(&mut self.has_data).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "\u{feff}: hello\n\nid: 7\r\nevent: change\r\ndata: {\"a\":\r\ndata:  1}\r\n\r\n",
        "event: nothing\n\nid:8\rdata\r\r: ping\ndata: last\n\n",
    );

    fn expected() -> Vec<SseEvent> {
        let event = |name: &str, data: &str, id: &str| SseEvent { name: name.into(), data: data.into(), id: id.into() };
        vec![event("change", "{\"a\":\n 1}", "7"), event("", "", "8"), event("", "last", "8")]
    }

    #[test]
    fn pieces_of_every_size_make_the_same_events() {
        let bytes = STREAM.as_bytes();
        for size in 1..=bytes.len() {
            let mut parser = SseParser::new();
            let mut events = Vec::new();
            for piece in bytes.chunks(size) {
                events.extend(parser.feed(piece).unwrap());
            }
            assert_eq!(events, expected(), "pieces of {size}");
        }
    }

    #[test]
    fn a_character_may_be_split_between_pieces() {
        let mut parser = SseParser::new();
        let bytes = "data: grün\n\n".as_bytes();
        let middle = bytes.iter().position(|b| *b > 127).unwrap() + 1;
        assert!(parser.feed(&bytes[..middle]).unwrap().is_empty());
        assert_eq!(parser.feed(&bytes[middle..]).unwrap()[0].data, "grün");
    }

    #[test]
    fn an_unfinished_event_is_not_given() {
        let mut parser = SseParser::new();
        assert!(parser.feed(b"id: 9\ndata: half\n").unwrap().is_empty());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = SseParser::new();
        let piece = vec![b'x'; MAX_EVENT_BYTES];
        assert!(parser.feed(&piece).is_ok());
        assert_eq!(parser.feed(&piece), Err(SseTooLong));
    }
}
