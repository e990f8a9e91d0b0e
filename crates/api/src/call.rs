//! A call, whichever way it travels: over HTTP, or as a message of the session stream.
//!
//! On the stream a [`Call`] is its JSON. Over HTTP it is a method, a path, a query and a body, which this module writes
//! and reads. Both follow from the rows of the table in `calls.rs`. What a call means is decided in one place of the
//! server.

use std::fmt::{self, Display, Write};
use std::marker::PhantomData;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::level::Level;

// What the rows name.
use crate::row::{Needs::*, Retry::*, *};
use crate::{access::*, cluster::*, gates::*, locks::*, nodes::*, rates::*, sessions::*};

/// The query of a reading without more to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// What a frontend reads the parts of a call from.
pub trait CallSource {
    /// What a part is that is not as the call has it.
    type Error;

    /// The part of the path with this name.
    ///
    /// # Errors
    /// It is not of this type.
    fn part<T: FromStr>(&mut self, name: &str) -> Result<T, Self::Error>;

    /// The query.
    ///
    /// # Errors
    /// It is not of this type.
    fn query<T: DeserializeOwned>(&mut self) -> impl Future<Output = Result<T, Self::Error>> + Send;

    /// The body.
    ///
    /// # Errors
    /// It is not of this type.
    fn body<T: DeserializeOwned + Send + 'static>(&mut self) -> impl Future<Output = Result<T, Self::Error>> + Send;
}

/// What the query and the body of a call are written to.
trait CallSink {
    fn query<T: Serialize>(&mut self, _: &T) {}

    fn body<T: Serialize>(&mut self, _: &T) {}
}

macro_rules! define {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $call:ident $function:ident = $method:ident $route:literal
        $({ $part:ident } $kind:ident $about:literal)*
        $($input:ident : $type:ident $(= $default:ident)? ,)*
        -> $status:literal $answer:ident $done:literal
        { $($rules:tt)* }
    )* })*) => {
        /// Everything that can be asked for and has one answer. The fields are the parts of its path, its query and its
        /// body.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        #[allow(missing_docs, reason = "the fields are the parameters of the operation, described with their types")]
        pub enum Call {
            $($(
                $(#[doc = $line])*
                $call {
                    $($part: $kind,)*
                    $(
                        #[serde($($default, skip_serializing_if = "is_default",)? deserialize_with = "object")]
                        $input: $type,
                    )*
                },
            )*)*
        }

        /// The answer to the [`Call`] of the same name; as JSON it is what it holds.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs, reason = "described with the types that they hold")]
        pub enum Answer {
            $($($call(Box<$answer>),)*)*
        }

        /// A [`Call`] without its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum CallKind {
            $($($(#[doc = $line])* $call,)*)*
        }

        static ROWS: &[Row] = &[$($(Row {
            name: stringify!($function),
            group: stringify!($group),
            text: concat!($($line, "\n",)*),
            method: stringify!($method),
            route: $route,
            parts: &[$(PathPart { name: stringify!($part), kind: stringify!($kind), about: $about },)*],
            status: $status,
            done: $done,
            rules: Rules { $($rules)* },
        },)*)*];

        impl CallKind {
            /// All, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$call,)*)*];

            /// Reads the parameters of such a call.
            ///
            /// # Errors
            /// As the source has it.
            pub async fn read<S: CallSource>(self, source: &mut S) -> Result<Call, S::Error> {
                Ok(match self {
                    $($(Self::$call => Call::$call {
                        $($part: source.part(stringify!($part))?,)*
                        $($input: source.$input().await?,)*
                    },)*)*
                })
            }

            /// The types of such a call, for `/openapi.json`.
            #[cfg(feature = "openapi")]
            pub fn types(self) -> crate::openapi::Types {
                let mut types = crate::openapi::Types::default();
                match self {
                    $($(Self::$call => {
                        $(types.$input::<$type>();)*
                        types.answer::<$answer>();
                    })*)*
                }
                types
            }
        }

        impl Call {
            /// Which call it is.
            pub fn kind(&self) -> CallKind {
                match self {
                    $($(Self::$call { .. } => CallKind::$call,)*)*
                }
            }

            /// The parts of its path, in the order of its row.
            pub fn parts(&self) -> Vec<PartValue<'_>> {
                match self {
                    $($(Self::$call { $($part,)* .. } => vec![$($part.into(),)*],)*)*
                }
            }

            /// Writes its query and its body.
            fn write(&self, sink: &mut impl CallSink) {
                match self {
                    $($(Self::$call { $($input,)* .. } => {
                        $(sink.$input($input);)*
                    })*)*
                }
            }
        }
    };
}

crate::each_call!(define);

/// The value of a part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartValue<'a> {
    /// A name.
    Name(&'a str),
    /// A number.
    Number(u64),
}

impl<'a> From<&'a String> for PartValue<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

impl From<&u64> for PartValue<'_> {
    fn from(number: &u64) -> Self {
        Self::Number(*number)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads an object and nothing else: serde would fill a struct from an array as well, by position.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    from.deserialize_map(Object(PhantomData))
}

impl CallKind {
    /// The rows of all calls, in the order of the table.
    pub fn rows() -> impl Iterator<Item = &'static Row> {
        ROWS.iter()
    }

    /// The call with this method and route.
    pub fn at(method: &str, route: &str) -> Option<&'static Row> {
        Self::rows().find(|row| row.method == method && row.route == route)
    }

    /// Its row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}

impl Call {
    /// Its row.
    pub fn row(&self) -> &'static Row {
        self.kind().row()
    }

    /// The method and the route of the call over HTTP, the route as `/openapi.json` has it.
    pub fn route(&self) -> (&'static str, &'static str) {
        (self.row().method, self.row().route)
    }

    /// The name in its path, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.parts().into_iter().find_map(|part| match part {
            PartValue::Name(name) => Some(name),
            PartValue::Number(_) => None,
        })
    }

    /// Path and query of the call over HTTP. URLs resolve `.` and `..` before they are sent, even when encoded: do not
    /// send a name that has such a part.
    pub fn target(&self) -> String {
        let (row, values) = (self.row(), self.parts());
        let mut target = row.path(|part| {
            let value = row.parts.iter().zip(&values).find(|(known, _)| known.name == part.name);
            match value {
                Some((_, PartValue::Name(path))) if part.name == "path" => encode_parts(path),
                Some((_, PartValue::Name(name))) => encode(name),
                Some((_, PartValue::Number(number))) => number.to_string(),
                None => String::new(),
            }
        });
        let mut query = Query::default();
        self.write(&mut query);
        target.push_str(&query.0);
        target
    }

    /// The body of the call over HTTP, for calls that have one.
    ///
    /// # Errors
    /// A body cannot be written as JSON.
    pub fn body(&self) -> serde_json::Result<Option<Vec<u8>>> {
        let mut body = JsonBody(None);
        self.write(&mut body);
        body.0.transpose()
    }
}

struct JsonBody(Option<serde_json::Result<Vec<u8>>>);

impl CallSink for JsonBody {
    fn body<T: Serialize>(&mut self, body: &T) {
        self.0 = Some(serde_json::to_vec(body));
    }
}

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

fn encode_parts(path: &str) -> String {
    let parts: Vec<String> = path.split('/').map(encode).collect();
    parts.join("/")
}

/// Text as one part of a URL.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Collects `key=value` pairs.
#[derive(Debug, Default)]
pub struct Query(String);

impl Query {
    /// Adds a pair, if there is a value.
    pub fn add(&mut self, key: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            let mark = if self.0.is_empty() { '?' } else { '&' };
            // Writing to a String cannot fail.
            let _ = write!(self.0, "{mark}{key}={}", encode(&value.to_string()));
        }
        self
    }
}

impl CallSink for Query {
    fn query<T: Serialize>(&mut self, query: &T) {
        // Words, numbers and flags: writing them does not fail.
        let Ok(Value::Object(fields)) = serde_json::to_value(query) else { return };
        for (key, value) in &fields {
            match value {
                Value::String(word) => self.add(key, Some(word)),
                value => self.add(key, Some(value)),
            };
        }
    }
}

/// With its question mark; nothing if there are no pairs.
impl Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listener finds the calls that nobody's load may have refused by their paths.
    #[test]
    fn every_row_has_a_resource_and_one_of_an_own_lane_is_found_by_its_path() {
        for row in CallKind::rows() {
            row.resource();
            assert!(!row.rules.own_lane || row.matches(&row.path(|_| "7".into())), "{}", row.name);
        }
    }

    #[test]
    fn names_paths_and_queries_survive_the_url() {
        let lock = |name: &str| Call::GetLock { name: name.into(), query: ReadQuery::default() };
        assert_eq!(lock("orders/42 ü?#").target(), "/v1/locks/orders%2F42%20%C3%BC%3F%23");
        let node = |path: &str, version| Call::DeleteNode { path: path.into(), query: VersionQuery { version } };
        assert_eq!(node("/a b/ü%", Some(7)).target(), "/v1/nodes/a%20b/%C3%BC%25?version=7");
        assert_eq!(node("/", None).target(), "/v1/nodes/");
        let query = NodeQuery {
            children: Some(true),
            children_after: Some("a&b".into()),
            consistency: Some(Level::Stale),
            ..NodeQuery::default()
        };
        let call = Call::GetNode { path: "/x".into(), query };
        assert_eq!(call.target(), "/v1/nodes/x?children=true&children_after=a%26b&consistency=stale");
        let call = Call::BreakLock { name: "a/b".into(), token: 7 };
        assert_eq!((call.row().method, call.target()), ("DELETE", "/v1/locks/a%2Fb/holders/7".into()));
    }

    /// The name of the row, which operations have too, is that of the call, and its parameters are those of the row.
    #[test]
    fn json_is_as_the_rows_have_it() {
        for (row, kind) in CallKind::rows().zip(CallKind::ALL) {
            let call = format!(r#"{{"{}":{{"surprise":1}}}}"#, row.name);
            let error = serde_json::from_str::<Call>(&call).unwrap_err().to_string();
            assert!(error.starts_with("unknown field `surprise`"), "{}: {error}", row.name);
            assert!(row.parts.iter().all(|part| error.contains(&format!("`{}`", part.name))), "{error}");
            assert_eq!(kind.row().name, row.name);
        }
    }

    #[test]
    fn json_is_exact() {
        let call = Call::AcquireLock { name: "a".into(), body: Acquire { wait_ms: 5, ..Acquire::default() } };
        let json = serde_json::to_string(&call).unwrap();
        assert_eq!(json, r#"{"acquire_lock":{"name":"a","body":{"mode":"exclusive","wait_ms":5}}}"#);
        assert_eq!(serde_json::from_str::<Call>(&json).unwrap(), call);
        let short: Call = serde_json::from_str(r#"{"acquire_lock":{"name":"a"}}"#).unwrap();
        assert_eq!(short, Call::AcquireLock { name: "a".into(), body: Acquire::default() });
        assert_eq!(
            serde_json::to_string(&Call::GetCluster { query: ClusterQuery::default() }).unwrap(),
            r#"{"get_cluster":{}}"#
        );
        for bad in [
            r#"{"brew_coffee":{}}"#,
            r#"{"acquire_lock":{"name":"a","surprise":1}}"#,
            r#"{"acquire_lock":{"name":"a","body":{"surprise":1}}}"#,
            r#"{"acquire_lock":{"name":"a","body":[]}}"#,
            r#"{"acquire_lock":{"name":"a","body":null}}"#,
            r#"{"release_lock":{"name":"a"}}"#,
            r#"{"get_cluster":{},"get_node":{"path":"/"}}"#,
        ] {
            assert!(serde_json::from_str::<Call>(bad).is_err(), "{bad}");
        }
    }
}
