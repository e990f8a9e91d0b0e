//! Key order and the type of a map do not matter; different values differ.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::canonical::Canonical;
use super::*;

fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<String, FingerprintError> {
    value.serialize(Canonical)
}

/// Any JSON. An object writes its entries in the order in which they stand here.
#[derive(Clone, Debug)]
enum Any {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Array(Vec<Any>),
    Object(Vec<(String, Any)>),
}

impl Serialize for Any {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Integer(value) => to.serialize_i128(*value),
            Self::Float(value) => to.serialize_f64(*value),
            Self::Text(text) => to.serialize_str(text),
            Self::Array(items) => items.serialize(to),
            Self::Object(entries) => {
                let mut map = to.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl Any {
    /// Whether both are the same value.
    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Integer(one), Self::Integer(other)) => one == other,
            (Self::Float(one), Self::Float(other)) => one == other,
            (Self::Integer(one), Self::Float(other)) | (Self::Float(other), Self::Integer(one)) => {
                other.fract() == 0.0 && other.abs() < 1e38 && *other as i128 == *one
            }
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Array(one), Self::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.equals(other))
            }
            (Self::Object(one), Self::Object(other)) => {
                let others: HashMap<&String, &Self> = other.iter().map(|(key, value)| (key, value)).collect();
                one.len() == other.len()
                    && one.iter().all(|(key, value)| others.get(key).is_some_and(|other| value.equals(other)))
            }
            _ => false,
        }
    }

    /// The same value with the entries of each object in another order.
    fn reversed(&self) -> Self {
        match self {
            Self::Array(items) => Self::Array(items.iter().map(Self::reversed).collect()),
            Self::Object(entries) => {
                Self::Object(entries.iter().rev().map(|(key, value)| (key.clone(), value.reversed())).collect())
            }
            other => other.clone(),
        }
    }
}

fn values() -> impl Strategy<Value = Any> {
    let leaf = prop_oneof![
        Just(Any::Null),
        any::<bool>().prop_map(Any::Bool),
        any::<i128>().prop_map(Any::Integer),
        (-20_i128..20).prop_map(Any::Integer),
        (-20_i32..20).prop_map(|value| Any::Float(f64::from(value) / 4.0)),
        any::<f64>().prop_filter("JSON has only finite numbers", |value| value.is_finite()).prop_map(Any::Float),
        // Neighbours of the same shortest digits.
        (1_i128 << 53..1_i128 << 56).prop_map(|value| Any::Float(value as f64)),
        "[a-c\"\\\\\u{e9}\u{1f600}\u{fb33}]{0,3}".prop_map(Any::Text),
        Just(Any::Text("null".into())),
        Just(Any::Text("1".into())),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Any::Array),
            prop::collection::btree_map("[a-c\u{1f600}\u{fb33}]{0,2}", inner, 0..3)
                .prop_map(|entries| Any::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_order_of_keys_does_not_matter(value in values()) {
        prop_assert_eq!(Fingerprint::of(&value), Fingerprint::of(&value.reversed()));
    }

    #[test]
    fn different_values_differ_and_equal_ones_do_not(one in values(), other in values()) {
        prop_assert_eq!(canonical(&one) == canonical(&other), one.equals(&other), "{:?} {:?}", one, other);
        prop_assert_eq!(Fingerprint::of(&one) == Fingerprint::of(&other), one.equals(&other));
    }

    #[test]
    fn the_type_of_a_map_does_not_matter(entries in prop::collection::hash_map("[a-z\u{20ac}]{0,4}", any::<i64>(), 0..8)) {
        let sorted: BTreeMap<String, i64> = entries.clone().into_iter().collect();
        let parsed: serde_json::Value = serde_json::to_value(&entries).unwrap();
        let of_map = Fingerprint::of(&entries).unwrap();
        prop_assert_eq!(&of_map, &Fingerprint::of(&sorted).unwrap());
        prop_assert_eq!(&of_map, &Fingerprint::of(&parsed).unwrap());
    }

    #[test]
    fn what_is_canonical_is_json_of_the_same_value(value in values()) {
        let text = canonical(&value).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        // Only where serde_json keeps every number exactly.
        if serde_json::to_value(&value).is_ok_and(|value| value == parsed) {
            prop_assert_eq!(canonical(&parsed).unwrap(), text);
        }
    }
}

#[derive(Serialize)]
struct Payment<'a> {
    to: &'a str,
    cents: u64,
    note: Option<&'a str>,
}

#[derive(Serialize)]
enum Order {
    Cancel,
    Pay(u64),
    Move { to: u64, from: u64 },
    Swap(u64, u64),
}

#[test]
fn types_are_written_as_serde_json_writes_them() {
    let payment = Payment { to: "Ann", cents: u64::MAX, note: None };
    assert_eq!(canonical(&payment).unwrap(), r#"{"cents":18446744073709551615,"note":null,"to":"Ann"}"#);
    for (order, text) in [
        (Order::Cancel, r#""Cancel""#),
        (Order::Pay(1), r#"{"Pay":1}"#),
        (Order::Move { to: 1, from: 2 }, r#"{"Move":{"from":2,"to":1}}"#),
        (Order::Swap(1, 2), r#"{"Swap":[1,2]}"#),
    ] {
        assert_eq!(canonical(&order).unwrap(), text);
    }
    assert_eq!(canonical(&('x', (), [true], HashSet::from([7_u8]))).unwrap(), r#"["x",null,[true],[7]]"#);
    assert_eq!(canonical(&HashMap::from([(7_u8, -1)])).unwrap(), r#"{"7":-1}"#);
    assert_eq!(canonical(&u128::MAX).unwrap(), u128::MAX.to_string());
}

/// The examples of RFC 8785, sections 3.2.2 and 3.2.3.
#[test]
fn the_examples_of_the_rfc() {
    let value = json!({
        "numbers": [333_333_333.333_333_3, 1e30, 4.50, 2e-3, 0.000_000_000_000_000_000_000_000_001],
        "string": "\u{20ac}$\u{f}\u{a}A'\u{42}\u{22}\u{5c}\\\"/",
        "literals": [null, true, false],
    });
    let text = canonical(&value).unwrap();
    // 1e30 is an integer, and those are written in full here.
    let expected = concat!(
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1000000000000000019884624838656,4.5,0.002,1e-27],"#,
        r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(text, expected);
    let keys = json!({ "\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7 });
    let expected = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}";
    assert_eq!(canonical(&keys).unwrap(), expected);
}

#[test]
fn what_has_no_single_form_is_refused() {
    let twice = Any::Object(vec![("a".into(), Any::Null), ("a".into(), Any::Null)]);
    assert_eq!(Fingerprint::of(&twice), Err(FingerprintError::RepeatedKey("a".into())));
    assert!(matches!(Fingerprint::of(&[f64::NAN]), Err(FingerprintError::NotFinite(_))));
    assert!(matches!(Fingerprint::of(&HashMap::from([((1, 2), 3)])), Err(FingerprintError::BadKey("an array"))));
    assert!(matches!(Fingerprint::of(&HashMap::from([((), 3)])), Err(FingerprintError::BadKey("null"))));

    struct Fails;
    impl Serialize for Fails {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }
    let error = Fingerprint::of(&Fails).unwrap_err();
    assert!(error.to_string().contains("not today"), "{error}");
}

/// Fingerprints outlive programs: the cluster keeps them for a year, or for ever.
#[test]
fn a_fingerprint_stays_what_it_is() {
    let of_payment = Fingerprint::of(&json!({ "to": "Ann", "cents": 1_000 })).unwrap();
    let digest: String = Sha256::digest(br#"{"cents":1000,"to":"Ann"}"#).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(of_payment.as_str(), format!("sha256:{digest}"));
    assert_eq!((of_payment.len(), of_payment.to_string()), (71, of_payment.as_str().to_owned()));
}
