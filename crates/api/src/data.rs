//! The bytes of a node in JSON: as text where they are UTF-8, else in base64's place as hex.

use serde::{Deserialize, Serialize};

/// Data of a node. `text` and `hex` exclude each other; neither means empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The data as UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The data as lower-case hex digits, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
}

impl Data {
    /// Chooses the form that fits.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: Some(text.to_owned()), hex: None },
            Err(_) => Self { text: None, hex: Some(bytes.iter().map(|b| format!("{b:02x}")).collect()) },
        }
    }

    /// The bytes meant.
    ///
    /// # Errors
    /// Both forms given, or the hex digits do not make bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        match (&self.text, &self.hex) {
            (Some(_), Some(_)) => Err("data takes 'text' or 'hex', not both".into()),
            (Some(text), None) => Ok(text.clone().into_bytes()),
            (None, Some(hex)) => decode_hex(hex),
            (None, None) => Ok(Vec::new()),
        }
    }
}

fn decode_hex(hex: &str) -> Result<Vec<u8>, String> {
    let bad = || "'hex' takes pairs of hex digits".to_owned();
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad());
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| bad())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_come_back() {
        for bytes in [&b""[..], b"hello", &[0xff, 0x00, 0x7f]] {
            assert_eq!(Data::from_bytes(bytes).to_bytes().unwrap(), bytes);
        }
        assert!(Data { text: Some(String::new()), hex: Some(String::new()) }.to_bytes().is_err());
        assert!(Data { text: None, hex: Some("0".into()) }.to_bytes().is_err());
        assert!(Data { text: None, hex: Some("+1".into()) }.to_bytes().is_err());
    }
}
