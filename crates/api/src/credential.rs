//! The credential of a session.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// `<session id>.<secret as 32 hex digits>`. It gives full control of the session: keep it out of logs. `Debug` hides
/// the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// The session.
    pub session_id: u64,
    /// Drawn by the server when the session was opened.
    pub secret: [u8; 16],
}

/// The text is not a credential.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a session credential is written <id>.<secret>, a number and 32 hex digits")]
pub struct CredentialError;

impl FromStr for Credential {
    type Err = CredentialError;

    fn from_str(text: &str) -> Result<Self, CredentialError> {
        let (id, secret) = text.split_once('.').ok_or(CredentialError)?;
        let digits_only = secret.len() == 32 && secret.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits_only || id.is_empty() || !id.bytes().all(|b| b.is_ascii_digit()) {
            return Err(CredentialError);
        }
        let secret = u128::from_str_radix(secret, 16).map_err(|_| CredentialError)?;
        Ok(Self { session_id: id.parse().map_err(|_| CredentialError)?, secret: secret.to_be_bytes() })
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:032x}", self.session_id, u128::from_be_bytes(self.secret))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({}.…)", self.session_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusal() {
        let credential = Credential { session_id: 42, secret: [7; 16] };
        assert_eq!(credential.to_string().parse(), Ok(credential));
        assert!(!format!("{credential:?}").contains("0707"));
        for bad in [
            "",
            "42",
            "42.",
            ".00",
            "x.07070707070707070707070707070707",
            "42.0707",
            "+4.07070707070707070707070707070707",
        ] {
            assert_eq!(bad.parse::<Credential>(), Err(CredentialError), "{bad}");
        }
    }
}
