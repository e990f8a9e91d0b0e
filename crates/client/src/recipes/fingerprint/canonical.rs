//! A serializer whose output is the canonical JSON of a value.

use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant,
};
use serde::{Serialize, Serializer};

use super::FingerprintError;
use super::number::float;

type Written = Result<String, FingerprintError>;

/// Names under which `serde_json` hides JSON text and numbers as text.
const PRIVATE: &str = "$serde_json::private::";

/// The serializer. Its output is text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canonical;

fn quoted(text: &str) -> Written {
    // Its escapes are those of RFC 8785: short forms, and \u00xx in lower case for other control characters.
    serde_json::to_string(text).map_err(|error| FingerprintError::Failed(error.to_string()))
}

/// An object with one entry, as serde_json writes a variant with contents.
fn tagged(variant: &'static str, contents: &str) -> Written {
    Ok(format!("{{{}:{contents}}}", quoted(variant)?))
}

macro_rules! integers {
    ($($function:ident: $type:ty),* $(,)?) => {
        $(fn $function(self, value: $type) -> Written {
            Ok(value.to_string())
        })*
    };
}

impl Serializer for Canonical {
    type Ok = String;
    type Error = FingerprintError;
    type SerializeSeq = Sequence;
    type SerializeTuple = Sequence;
    type SerializeTupleStruct = Sequence;
    type SerializeTupleVariant = Sequence;
    type SerializeMap = Object;
    type SerializeStruct = Object;
    type SerializeStructVariant = Object;

    integers! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
    }

    fn serialize_f32(self, value: f32) -> Written {
        float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Written {
        float(value)
    }

    fn serialize_char(self, value: char) -> Written {
        quoted(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Written {
        quoted(value)
    }

    fn serialize_bytes(self, value: &[u8]) -> Written {
        let numbers: Vec<String> = value.iter().map(ToString::to_string).collect();
        Ok(format!("[{}]", numbers.join(",")))
    }

    fn serialize_none(self) -> Written {
        Ok("null".into())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        Ok("null".into())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Written {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Written {
        quoted(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Written {
        tagged(variant, &value.serialize(self)?)
    }

    fn serialize_seq(self, _length: Option<usize>) -> Result<Sequence, FingerprintError> {
        Ok(Sequence { variant: None, items: Vec::new() })
    }

    fn serialize_tuple(self, length: usize) -> Result<Sequence, FingerprintError> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _name: &'static str, length: usize) -> Result<Sequence, FingerprintError> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Sequence, FingerprintError> {
        Ok(Sequence { variant: Some(variant), items: Vec::new() })
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Object, FingerprintError> {
        Ok(Object::default())
    }

    fn serialize_struct(self, name: &'static str, _length: usize) -> Result<Object, FingerprintError> {
        if name.starts_with(PRIVATE) { Err(FingerprintError::RawJson(name)) } else { Ok(Object::default()) }
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Object, FingerprintError> {
        Ok(Object { variant: Some(variant), ..Object::default() })
    }
}

/// An array under construction.
#[derive(Debug)]
pub(super) struct Sequence {
    variant: Option<&'static str>,
    items: Vec<String>,
}

impl Sequence {
    fn add<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), FingerprintError> {
        self.items.push(item.serialize(Canonical)?);
        Ok(())
    }

    fn write(self) -> Written {
        let array = format!("[{}]", self.items.join(","));
        self.variant.map_or(Ok(array.clone()), |variant| tagged(variant, &array))
    }
}

/// An object under construction.
#[derive(Debug, Default)]
pub(super) struct Object {
    variant: Option<&'static str>,
    /// Keys as they are, values as JSON.
    entries: Vec<(String, String)>,
    /// The key whose value comes next.
    key: Option<String>,
}

impl Object {
    fn add<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), FingerprintError> {
        self.entries.push((key, value.serialize(Canonical)?));
        Ok(())
    }

    fn write(mut self) -> Written {
        // RFC 8785 compares keys by their UTF-16 units.
        self.entries.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
        if let Some(pair) = self.entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(FingerprintError::RepeatedKey(pair[0].0.clone()));
        }
        let entries: Result<Vec<String>, FingerprintError> =
            self.entries.iter().map(|(key, value)| Ok(format!("{}:{value}", quoted(key)?))).collect();
        let object = format!("{{{}}}", entries?.join(","));
        self.variant.map_or(Ok(object.clone()), |variant| tagged(variant, &object))
    }
}

macro_rules! sequences {
    ($($kind:ident: $add:ident),* $(,)?) => {
        $(impl $kind for Sequence {
            type Ok = String;
            type Error = FingerprintError;

            fn $add<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), FingerprintError> {
                self.add(item)
            }

            fn end(self) -> Written {
                self.write()
            }
        })*
    };
}

sequences! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

impl SerializeMap for Object {
    type Ok = String;
    type Error = FingerprintError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FingerprintError> {
        self.key = Some(text_of_key(key)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FingerprintError> {
        let key = self.key.take().ok_or_else(|| FingerprintError::Failed("a map has a value before its key".into()))?;
        self.add(key, value)
    }

    fn end(self) -> Written {
        self.write()
    }
}

impl SerializeStruct for Object {
    type Ok = String;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), FingerprintError> {
        self.add(key.into(), value)
    }

    fn end(self) -> Written {
        self.write()
    }
}

impl SerializeStructVariant for Object {
    type Ok = String;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), FingerprintError> {
        self.add(key.into(), value)
    }

    fn end(self) -> Written {
        self.write()
    }
}

/// The text of a key: what serde_json accepts as one.
fn text_of_key<T: Serialize + ?Sized>(key: &T) -> Written {
    let json = key.serialize(Canonical)?;
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(&json).map_err(|error| FingerprintError::Failed(error.to_string())),
        Some(b'{') => Err(FingerprintError::BadKey("an object")),
        Some(b'[') => Err(FingerprintError::BadKey("an array")),
        Some(b'n') => Err(FingerprintError::BadKey("null")),
        _ => Ok(json),
    }
}
