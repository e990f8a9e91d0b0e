//! The arguments of requests.
//!
//! | body of the request | arguments |
//! |---|---|
//! | `CreateRequest`, `CreateTtlRequest` | path, data, mode or `flags=N`, `acl=`, `ttl=` |
//! | `PathVersion` | path, `v=N` |
//! | `PathWatch` | path, `watch` |
//! | `SetDataRequest` | path, data, `v=N` |
//! | `String` | path |
//! | `SetAclRequest` | path, `acl=`, `v=N` |
//! | a list | requests separated by `\|`; `times=N` repeats one |
//! | `AuthRequest` | scheme, credentials |
//! | `SetWatchesRequest` | `since=MARK`, then paths separated by commas: `data=`, `exist=`, `child=` |
//! | `SetWatches2Request` | the same, and `persistent=`, `recursive=` |
//! | `AddWatchRequest` | path, `persistent` or `recursive` or a number |
//! | `WatchesRequest` | path, `children`, `data`, `any`, `persistent`, `recursive` or a number |
//! | `ReconfigRequest` | `joining=`, `leaving=`, `members=`, `id=` |
//! | `Bytes` | token |
//! | none | |
//!
//! | instead of a request | arguments |
//! |---|---|
//! | raw | an operation's name or number, then typed fields: `i:5` `l:5` `b:1` `s:text` `x:00ff` |
//! | cut N | any other request, without its last N bytes |
//!
//! Data: `null`, `""`, text, or `text*1000`. ACL entries: `rwcda:scheme:id` separated by commas, `none` for an empty
//! list.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, PathVersion, PathWatch, ReconfigRequest,
    SetAclRequest, SetDataRequest, SetWatches2Request, SetWatchesRequest, WatchesRequest,
};
use lockkeeper_zookeeper::{Acl, Id, MultiOp, MultiReadOp, OpCode, Permissions, Request, Writer};

use super::modes;

const LENGTH_BYTES: usize = 4;

/// Zxids named by the script.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    by_name: BTreeMap<String, i64>,
    anything: bool,
}

impl Marks {
    /// Resolves every name, to check the script before it runs.
    pub(super) fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    pub(crate) fn set(&mut self, name: &str, zxid: i64) {
        self.by_name.insert(name.to_owned(), zxid);
    }

    /// A number, or the zxid of that name.
    pub(crate) fn get(&self, text: &str) -> Result<i64, String> {
        let known = self.by_name.get(text).copied().or_else(|| text.parse().ok());
        known.or(self.anything.then_some(0)).ok_or_else(|| format!("`{text}` is neither a number nor a mark"))
    }
}

/// An encoded request.
#[derive(Debug)]
pub(crate) struct Ask {
    /// The number of its operation.
    pub(crate) opcode: i32,
    /// The reserved xid of this kind of request, if it has one.
    pub(crate) reserved_xid: Option<i32>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Whole(Request),
    /// Bytes cut off at its end.
    Cut(Request, usize),
    Raw(Bytes),
}

impl Ask {
    pub(crate) fn parse(text: &str, marks: &Marks) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match &words[..] {
            ["raw", operation, fields @ ..] => {
                let known = OpCode::from_name(operation).map(OpCode::number);
                let opcode =
                    known.or_else(|| operation.parse().ok()).ok_or_else(|| format!("no operation `{operation}`"))?;
                Ok(Self { opcode, reserved_xid: None, body: Body::Raw(written(fields)?) })
            }
            ["cut", count, words @ ..] => {
                let count = count.parse().map_err(|_| format!("`{count}` is no number of bytes"))?;
                Ok(Self::of(request(words, marks)?, |request| Body::Cut(request, count)))
            }
            words => Ok(Self::of(request(words, marks)?, Body::Whole)),
        }
    }

    fn of(request: Request, body: impl FnOnce(Request) -> Body) -> Self {
        Self { opcode: request.opcode(), reserved_xid: request.reserved_xid(), body: body(request) }
    }

    /// Appends a frame.
    pub(crate) fn encode(&self, xid: i32, out: &mut BytesMut) {
        let mut frame = BytesMut::new();
        match &self.body {
            Body::Whole(request) => request.encode(xid, &mut frame),
            Body::Cut(request, count) => {
                request.encode(xid, &mut frame);
                frame.truncate(frame.len().saturating_sub(*count));
            }
            Body::Raw(body) => {
                let mut writer = Writer::new(&mut frame);
                writer.int(0);
                writer.int(xid);
                writer.int(self.opcode);
                frame.extend_from_slice(body);
            }
        }
        let length = u32::try_from(frame.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
        frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&frame);
    }
}

/// Encodes typed fields.
pub(crate) fn written(fields: &[&str]) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    for field in fields {
        let wrong = || format!("`{field}` is no field");
        let (kind, value) = field.split_once(':').ok_or_else(wrong)?;
        let mut writer = Writer::new(&mut out);
        match kind {
            "i" => writer.int(value.parse().map_err(|_| wrong())?),
            "l" => writer.long(value.parse().map_err(|_| wrong())?),
            "b" => writer.bool(value == "1"),
            "s" => writer.string(&unescaped(value)?),
            "x" => out.extend_from_slice(&hex(value).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        }
    }
    Ok(out.freeze())
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| if let [high, low] = pair { Some(high * 16 + low) } else { None });
    pairs.collect()
}

/// The words of one request: positional and named arguments.
struct Words<'a> {
    operation: OpCode,
    all: &'a [&'a str],
    placed: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

const NAMES: &[&str] = &[
    "v",
    "flags",
    "acl",
    "ttl",
    "since",
    "data",
    "exist",
    "child",
    "persistent",
    "recursive",
    "joining",
    "leaving",
    "members",
    "id",
];

impl<'a> Words<'a> {
    fn of(operation: OpCode, words: &'a [&'a str]) -> Self {
        let (mut placed, mut named) = (Vec::new(), BTreeMap::new());
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if NAMES.contains(&name) => drop(named.insert(name, value)),
                _ => placed.push(*word),
            }
        }
        Self { operation, all: words, placed, named }
    }

    fn path(&self) -> Result<String, String> {
        unescaped(self.placed.first().ok_or("a path is missing")?)
    }

    fn flag(&self, word: &str) -> bool {
        self.placed.contains(&word)
    }

    fn version(&self) -> Result<i32, String> {
        self.named.get("v").map_or(Ok(-1), |text| text.parse().map_err(|_| format!("`{text}` is no version")))
    }

    fn text(&self, name: &str) -> Result<String, String> {
        self.named.get(name).map_or_else(|| Ok(String::new()), |text| unescaped(text))
    }

    fn paths(&self, name: &str) -> Result<Vec<String>, String> {
        self.named.get(name).map_or_else(|| Ok(Vec::new()), |text| text.split(',').map(unescaped).collect())
    }

    fn acl(&self) -> Result<Vec<Acl>, String> {
        match self.named.get("acl") {
            None => Ok(vec![Acl::open()]),
            Some(&"none") => Ok(Vec::new()),
            Some(entries) => entries.split(',').map(acl).collect(),
        }
    }

    fn data(&self) -> Result<Option<Bytes>, String> {
        data(self.placed.get(1).copied().unwrap_or("\"\""))
    }
}

fn data(word: &str) -> Result<Option<Bytes>, String> {
    if word == "null" {
        return Ok(None);
    }
    if let Some((text, times)) = word.split_once('*') {
        let times = times.parse().map_err(|_| format!("`{word}`: how often?"))?;
        return Ok(Some(Bytes::from(text.repeat(times))));
    }
    Ok(Some(Bytes::from(unescaped(word)?)))
}

fn acl(entry: &str) -> Result<Acl, String> {
    let wrong = || format!("`{entry}` is no entry of an ACL");
    let [permissions, scheme, id] = entry.splitn(3, ':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let letter = |letter| {
        Some(match letter {
            'r' => Permissions::READ,
            'w' => Permissions::WRITE,
            'c' => Permissions::CREATE,
            'd' => Permissions::DELETE,
            'a' => Permissions::ADMIN,
            _ => return None,
        })
    };
    let permissions = match permissions.parse() {
        Ok(number) => Permissions(number),
        Err(_) => {
            permissions.chars().try_fold(Permissions::NONE, |sum, each| Some(sum | letter(each)?)).ok_or_else(wrong)?
        }
    };
    Ok(Acl { permissions, id: Id { scheme: unescaped(scheme)?, id: unescaped(id)? } })
}

fn unescaped(text: &str) -> Result<String, String> {
    if text == "\"\"" {
        return Ok(String::new());
    }
    let (mut out, mut rest) = (String::new(), text);
    while let Some((plain, escaped)) = rest.split_once('\\') {
        out.push_str(plain);
        rest = match escaped.chars().next() {
            Some('_') => {
                out.push(' ');
                &escaped[1..]
            }
            Some('n') => {
                out.push('\n');
                &escaped[1..]
            }
            Some('a') => {
                let (count, behind) = escaped[1..].split_once('}').ok_or("an escape without its end")?;
                let count = count.trim_start_matches('{').parse().map_err(|_| "an escape without its number")?;
                out.push_str(&"a".repeat(count));
                behind
            }
            Some('u') => {
                let (code, behind) = escaped[1..].split_once('}').ok_or("an escape without its end")?;
                let code = u32::from_str_radix(code.trim_start_matches('{'), 16).ok().and_then(char::from_u32);
                out.push(code.ok_or("an escape of no character")?);
                behind
            }
            _ => return Err(format!("`{text}` has an escape that means nothing")),
        };
    }
    Ok(out + rest)
}

fn request(words: &[&str], marks: &Marks) -> Result<Request, String> {
    let [verb, rest @ ..] = words else { return Err("there is no request".into()) };
    let operation = OpCode::from_name(verb).ok_or_else(|| format!("there is no operation `{verb}`"))?;
    of_operation(operation, &Words::of(operation, rest), marks)
}

/// The body that a request's words describe.
trait FromWords: Sized {
    fn from_words(words: &Words<'_>, marks: &Marks) -> Result<Self, String>;
}

macro_rules! define {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $operation:ident = $number:literal $name:literal $abbreviation:literal
        $($field:ident: $body:ty,)?
        -> $reply:ident
        { $($rules:tt)* }
    )* })*) => {
        fn of_operation(operation: OpCode, words: &Words<'_>, marks: &Marks) -> Result<Request, String> {
            Ok(match operation {
                $($(OpCode::$operation => Request::$operation $((<$body>::from_words(words, marks)?))?,)*)*
                OpCode::Notification | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Error => {
                    Request::Unknown { opcode: operation.number() }
                }
            })
        }
    };
}

lockkeeper_zookeeper::each_operation!(define);

macro_rules! from_words {
    ($($body:ty: |$words:ident, $marks:pat_param| $read:expr,)*) => {
        $(impl FromWords for $body {
            fn from_words($words: &Words<'_>, $marks: &Marks) -> Result<Self, String> {
                $read
            }
        })*
    };
}

from_words! {
    String: |words, _| words.path(),
    Bytes: |words, _| words.path().map(Bytes::from),
    CreateRequest: |words, _| create(words, if words.operation == OpCode::CreateContainer { 4 } else { 0 }),
    CreateTtlRequest: |words, _| {
        let CreateRequest { path, data, acl, flags } = create(words, 5)?;
        let ttl_ms = words.named.get("ttl").and_then(|text| text.parse().ok()).ok_or("createTTL has a ttl=")?;
        Ok(Self { path, data, acl, flags, ttl_ms })
    },
    PathVersion: |words, _| Ok(Self { path: words.path()?, version: words.version()? }),
    PathWatch: |words, _| Ok(Self { path: words.path()?, watch: words.flag("watch") }),
    SetDataRequest: |words, _| Ok(Self { path: words.path()?, data: words.data()?, version: words.version()? }),
    SetAclRequest: |words, _| Ok(Self { path: words.path()?, acl: words.acl()?, version: words.version()? }),
    AuthRequest: |words, _| {
        Ok(Self { auth_type: 0, scheme: words.path()?, credentials: words.data()?.unwrap_or_default() })
    },
    SetWatchesRequest: |words, marks| Ok(Self {
        relative_zxid: marks.get(words.named.get("since").copied().unwrap_or("0"))?,
        data_watches: words.paths("data")?,
        exist_watches: words.paths("exist")?,
        child_watches: words.paths("child")?,
    }),
    SetWatches2Request: |words, marks| {
        let SetWatchesRequest { relative_zxid, data_watches, exist_watches, child_watches } =
            FromWords::from_words(words, marks)?;
        Ok(Self {
            relative_zxid,
            data_watches,
            exist_watches,
            child_watches,
            persistent_watches: words.paths("persistent")?,
            persistent_recursive_watches: words.paths("recursive")?,
        })
    },
    AddWatchRequest: |words, _| {
        let mode = words.placed.get(1).and_then(|word| modes::watch(word)).ok_or("addWatch has a mode")?;
        Ok(Self { path: words.path()?, mode })
    },
    WatchesRequest: |words, _| {
        let watcher_type = words.placed.get(1).and_then(|word| modes::watcher(word)).ok_or("a watch has a type")?;
        Ok(Self { path: words.path()?, watcher_type })
    },
    ReconfigRequest: |words, _| Ok(Self {
        joining_servers: words.text("joining")?,
        leaving_servers: words.text("leaving")?,
        new_members: words.text("members")?,
        current_config_id: words.named.get("id").and_then(|text| text.parse().ok()).unwrap_or(-1),
    }),
    Vec<MultiOp>: |words, _| parts(words.all).map(part).collect(),
    Vec<MultiReadOp>: |words, _| parts(words.all).map(read_part).collect(),
}

fn create(words: &Words<'_>, flags: i32) -> Result<CreateRequest, String> {
    let named = words.named.get("flags").map(|text| text.parse().map_err(|_| format!("`{text}` are no flags")));
    let placed = words.placed.iter().skip(1).find_map(|word| modes::flags(word)).unwrap_or(flags);
    let data = if words.placed.get(1).is_some_and(|word| modes::flags(word).is_some()) {
        Some(Bytes::new())
    } else {
        words.data()?
    };
    Ok(CreateRequest { path: words.path()?, data, acl: words.acl()?, flags: named.unwrap_or(Ok(placed))? })
}

/// The words of each part of a list.
fn parts<'w>(words: &'w [&'w str]) -> impl Iterator<Item = &'w [&'w str]> {
    words.split(|word| *word == "|").filter(|part| !part.is_empty()).flat_map(|part| {
        let (times, part) = match part {
            [part @ .., last] if last.starts_with("times=") => (last["times=".len()..].parse().unwrap_or(1), part),
            part => (1, part),
        };
        std::iter::repeat_n(part, times)
    })
}

fn part(words: &[&str]) -> Result<MultiOp, String> {
    Ok(match request(words, &Marks::anything())? {
        Request::Create(body) => MultiOp::Create(body),
        Request::Create2(body) => MultiOp::Create2(body),
        Request::CreateContainer(body) => MultiOp::CreateContainer(body),
        Request::CreateTtl(body) => MultiOp::CreateTtl(body),
        Request::Delete(body) => MultiOp::Delete(body),
        Request::SetData(body) => MultiOp::SetData(body),
        Request::Check(body) => MultiOp::Check(body),
        _ => return Err(format!("`{}` cannot stand in a multi", words.join(" "))),
    })
}

fn read_part(words: &[&str]) -> Result<MultiReadOp, String> {
    Ok(match request(words, &Marks::anything())? {
        Request::GetData(body) => MultiReadOp::GetData(body),
        Request::GetChildren(body) => MultiReadOp::GetChildren(body),
        _ => return Err(format!("`{}` cannot stand in a multiRead", words.join(" "))),
    })
}
