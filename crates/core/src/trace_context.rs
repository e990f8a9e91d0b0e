//! The position of a request in a distributed trace, as a batch carries it to the replicas
//! ([W3C Trace Context](https://www.w3.org/TR/trace-context/)).
//!
//! It is for observers only: the state never reads it, and no outcome depends on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a span of a trace: the parent of spans to come, or the target of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceContext {
    /// The trace; never all zeros.
    pub trace_id: [u8; 16],
    /// The span; never all zeros.
    pub span_id: [u8; 8],
    /// The flags of W3C Trace Context; the lowest bit means *sampled*.
    pub flags: u8,
}

/// Most requests of a batch whose traces it carries.
pub const MAX_TRACED_REQUESTS: usize = 32;

/// The traces of a batch. Every replica needs them: the span of the batch as the parent of what the replica does for
/// it, those of the requests as targets of links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTrace {
    /// The span of the batch.
    pub span: TraceContext,
    /// The spans of recorded requests, each with the index of its command; ascending, and at most
    /// [`MAX_TRACED_REQUESTS`].
    pub requests: Vec<(u32, TraceContext)>,
}

impl BatchTrace {
    /// The span of the request that this command is for, if it is recorded.
    pub fn of_command(&self, index: usize) -> Option<TraceContext> {
        let index = u32::try_from(index).ok()?;
        let found = self.requests.binary_search_by_key(&index, |(command, _)| *command).ok()?;
        Some(self.requests[found].1)
    }

    /// Whether it can belong to a batch of so many commands. If not, says what is wrong.
    pub(crate) fn check(&self, commands: usize) -> Result<(), &'static str> {
        if self.requests.len() > MAX_TRACED_REQUESTS {
            return Err("too many requests");
        }
        if self.requests.last().is_some_and(|(last, _)| *last as usize >= commands) {
            return Err("a request without a command");
        }
        if !self.requests.is_sorted_by(|(before, _), (after, _)| before < after) {
            return Err("requests out of order");
        }
        if !self.span.is_valid() || !self.requests.iter().all(|(_, request)| request.is_valid()) {
            return Err("an id of zeros");
        }
        Ok(())
    }
}

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The length of a header of version 00.
const HEADER_BYTES: usize = 55;

impl TraceContext {
    /// Reads the header `traceparent`. As the standard has it, a malformed one counts as none, and of a later version
    /// the fields of version 00 are read.
    pub fn parse(header: &str) -> Option<Self> {
        let bytes = header.as_bytes();
        let version = hex::<1>(bytes.get(..2)?)?[0];
        let ends_well = match version {
            0 => bytes.len() == HEADER_BYTES,
            0xff => false,
            _ => bytes.len() == HEADER_BYTES || bytes.get(HEADER_BYTES) == Some(&b'-'),
        };
        if !ends_well || [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
            return None;
        }
        let context =
            Self { trace_id: hex(&bytes[3..35])?, span_id: hex(&bytes[36..52])?, flags: hex::<1>(&bytes[53..55])?[0] };
        context.is_valid().then_some(context)
    }

    /// Whether both ids name something.
    pub fn is_valid(&self) -> bool {
        self.trace_id != [0; 16] && self.span_id != [0; 8]
    }

    /// Whether the caller records the trace.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// The header `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

/// Reads lower-case digits, as the standard demands.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_comes_back_as_it_was() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.trace_id[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(context.span_id[6..], [0x33, 0x31]);
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), GOOD);
        let unsampled = TraceContext::parse(&format!("{}00", &GOOD[..53])).unwrap();
        assert!(!unsampled.is_sampled());
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for header in [format!("cc{}", &GOOD[2..]), format!("01{}-what-the-future-brings", &GOOD[2..])] {
            assert_eq!(TraceContext::parse(&header), TraceContext::parse(GOOD), "{header}");
        }
    }

    #[test]
    fn a_malformed_header_is_none() {
        let zeros = |range: std::ops::Range<usize>| {
            let mut header = GOOD.to_owned();
            header.replace_range(range.clone(), &"0".repeat(range.len()));
            header
        };
        for header in [
            String::new(),
            "00".into(),
            "é".repeat(30),
            zeros(3..35),
            zeros(36..52),
            format!("ff{}", &GOOD[2..]),
            format!("{GOOD}-more"),
            format!("01{}.more", &GOOD[2..]),
            GOOD.to_uppercase(),
            GOOD.replace('-', "_"),
            GOOD[..54].to_owned(),
            GOOD.replacen('0', "g", 1),
        ] {
            assert_eq!(TraceContext::parse(&header), None, "{header:?}");
        }
    }
}
