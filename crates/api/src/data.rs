//! The data of a node in JSON: text where they are UTF-8, otherwise hex; `null` where there are none.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Data of a node: null, or bytes as `text` or `hex`. Null and empty differ, as in ZooKeeper; `{}` and a field that is
/// left out mean empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "Option<Form>")]
pub enum Data {
    /// None at all.
    Null,
    /// UTF-8 text.
    Text(String),
    /// Hex digits, where it is not UTF-8.
    Hex(String),
}

/// How bytes are written in JSON.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Default for Data {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// Not derived through `Option`, which cannot tell a missing field from null.
impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Forms)
    }
}

struct Forms;

impl<'de> Visitor<'de> for Forms {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null, or an object with 'text' or 'hex'")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Data, A::Error> {
        match Form::deserialize(MapAccessDeserializer::new(fields))? {
            Form { text: None, hex: None } => Ok(Data::default()),
            Form { text: Some(text), hex: None } => Ok(Data::Text(text)),
            Form { text: None, hex: Some(hex) } => Ok(Data::Hex(hex)),
            Form { .. } => Err(serde::de::Error::custom("data takes 'text' or 'hex', not both")),
        }
    }
}

impl From<Data> for Option<Form> {
    fn from(data: Data) -> Self {
        match data {
            Data::Null => None,
            Data::Text(text) => Some(Form { text: Some(text), hex: None }),
            Data::Hex(hex) => Some(Form { text: None, hex: Some(hex) }),
        }
    }
}

impl Data {
    /// Chooses the form that fits.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex(bytes.iter().map(|b| format!("{b:02x}")).collect()),
        }
    }

    /// Chooses the form that fits; null for none.
    pub fn from_optional(bytes: Option<&[u8]>) -> Self {
        bytes.map_or(Self::Null, Self::from_bytes)
    }

    /// The text, where it is given as text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Null | Self::Hex(_) => None,
        }
    }

    /// The bytes meant; none at all for null as well.
    ///
    /// # Errors
    /// The hex digits do not make bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        self.to_optional().map(Option::unwrap_or_default)
    }

    /// The bytes meant; `None` for null.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes).
    pub fn to_optional(&self) -> Result<Option<Vec<u8>>, String> {
        match self {
            Self::Null => Ok(None),
            Self::Text(text) => Ok(Some(text.clone().into_bytes())),
            Self::Hex(hex) => decode_hex(hex).map(Some),
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

#[cfg(feature = "openapi")]
mod openapi {
    use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
    use utoipa::openapi::{RefOr, Schema};

    impl utoipa::PartialSchema for super::Data {
        fn schema() -> RefOr<Schema> {
            let text = ObjectBuilder::new().schema_type(Type::String).description(Some("The data as UTF-8 text"));
            let hex = ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some("^([0-9a-fA-F]{2})*$"))
                .description(Some("The data as pairs of hex digits, lower-case in answers, where it is not UTF-8"));
            ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
                .description(Some(
                    "Data of a node: null, or bytes as `text` or `hex` (at most one of them; neither means empty). \
                     Null and empty differ.",
                ))
                .property("text", text)
                .property("hex", hex)
                .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::FreeForm(false)))
                .max_properties(Some(1))
                .into()
        }
    }

    impl utoipa::ToSchema for super::Data {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_come_back() {
        for bytes in [&b""[..], b"hello", &[0xff, 0x00, 0x7f]] {
            assert_eq!(Data::from_bytes(bytes).to_bytes().unwrap(), bytes);
        }
        assert!(serde_json::from_str::<Data>(r#"{"text": "", "hex": ""}"#).is_err());
        assert!(Data::Hex("0".into()).to_bytes().is_err());
        assert!(Data::Hex("+1".into()).to_bytes().is_err());
    }

    #[test]
    fn null_and_empty_differ_in_json() {
        for (json, data) in
            [("null", Data::Null), (r#"{"text":""}"#, Data::default()), (r#"{"hex":"ff"}"#, Data::Hex("ff".into()))]
        {
            assert_eq!(
                (serde_json::from_str::<Data>(json).unwrap(), serde_json::to_string(&data).unwrap()),
                (data, json.into())
            );
        }
        assert_eq!(serde_json::from_str::<Data>("{}").unwrap(), Data::default());
        assert_eq!((Data::Null.to_optional(), Data::Null.to_bytes()), (Ok(None), Ok(Vec::new())));
        assert_eq!(Data::from_optional(None), Data::Null);
        #[derive(Deserialize)]
        struct Required {
            #[allow(dead_code, reason = "only whether it can be read matters")]
            data: Data,
        }
        assert!(serde_json::from_str::<Required>("{}").is_err(), "left out is not null");
    }
}
