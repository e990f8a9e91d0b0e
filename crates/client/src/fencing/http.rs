//! Fencing over HTTP: the header in which a writer shows its token, for a service that is the resource.
//!
//! The service must check the token and do the write in **one** step. A middleware can: it keeps other requests of the
//! same resource out until its handler is done. It must remember the token where the data are: a service that forgets
//! it in a restart accepts a stale one. `crates/client/examples/support/fence.rs` is such a middleware for axum, of 22
//! lines.
//!
//! | the request's token | answer |
//! |---|---|
//! | none | 428 Precondition Required |
//! | not one decimal number | 400 Bad Request |
//! | stale | 412 Precondition Failed, and nothing was written |

use thiserror::Error;

/// The header, as a client sends it: `Lockkeeper-Token: 34`.
pub const TOKEN_HEADER: &str = "lockkeeper-token";

/// The status of a refusal because of a stale token.
pub const STALE_STATUS: u16 = 412;

/// Why a request has no usable token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenHeaderError {
    /// The header is missing.
    #[error("the request needs the header Lockkeeper-Token with the fencing token of the lock")]
    Missing,
    /// The header is not one decimal number.
    #[error("the header Lockkeeper-Token must be one fencing token, a decimal number")]
    Invalid,
}

impl TokenHeaderError {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        match self {
            Self::Missing => 428,
            Self::Invalid => 400,
        }
    }
}

/// The token in the values of that header, which must be there once.
///
/// # Errors
/// There is none, or it is invalid.
pub fn token<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<u64, TokenHeaderError> {
    let mut values = values.into_iter();
    let value = values.next().ok_or(TokenHeaderError::Missing)?;
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (digits.and_then(|digits| digits.parse().ok()), values.next()) {
        (Some(token), None) => Ok(token),
        _ => Err(TokenHeaderError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_requests() {
        assert_eq!(token([&b"34"[..]]), Ok(34));
        assert_eq!(token([]), Err(TokenHeaderError::Missing));
        let too_large = format!("{}0", u64::MAX);
        for invalid in [&b""[..], b"-1", b"+1", b"3 4", b"3,4", b"x", b"\xff", too_large.as_bytes()] {
            assert_eq!(token([invalid]), Err(TokenHeaderError::Invalid), "{invalid:?}");
        }
        assert_eq!(token([&b"34"[..], b"35"]), Err(TokenHeaderError::Invalid), "two may be the doing of a proxy");
    }
}
