//! The arguments of requests.
//!
//! | request | arguments |
//! |---|---|
//! | create, create2, createContainer, createTTL | path, data, mode or `flags=N`, `acl=`, `ttl=` |
//! | delete, check | path, `v=N` |
//! | exists, getData, getChildren, getChildren2 | path, `watch` |
//! | setData | path, data, `v=N` |
//! | getACL, sync, getEphemerals, getAllChildrenNumber | path |
//! | setACL | path, `acl=`, `v=N` |
//! | multi, multiRead | requests separated by `\|`; `times=N` repeats one |
//! | auth | scheme, credentials |
//! | setWatches, setWatches2 | `since=MARK`, `data=`, `exist=`, `child=`, `persistent=`, `recursive=`: paths separated by commas |
//! | addWatch | path, `persistent` or `recursive` or a number |
//! | checkWatches, removeWatches | path, `children`, `data`, `any`, `persistent`, `recursive` or a number |
//! | reconfig | `joining=`, `leaving=`, `members=`, `id=` |
//! | sasl | token |
//! | ping, whoAmI, closeSession | |
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

use super::operations;

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
                let known = operations::operation(operation).map(OpCode::number);
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
    fn of(words: &[&'a str]) -> Self {
        let (mut placed, mut named) = (Vec::new(), BTreeMap::new());
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if NAMES.contains(&name) => drop(named.insert(name, value)),
                _ => placed.push(*word),
            }
        }
        Self { placed, named }
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
    if let ("multi" | "multiRead", parts) = (*verb, rest) {
        return list(verb, parts);
    }
    let operation = operations::operation(verb).ok_or_else(|| format!("there is no operation `{verb}`"))?;
    let words = Words::of(rest);
    Ok(match operation {
        OpCode::Create => Request::Create(create(&words, 0)?),
        OpCode::Create2 => Request::Create2(create(&words, 0)?),
        OpCode::CreateContainer => Request::CreateContainer(create(&words, 4)?),
        OpCode::CreateTtl => Request::CreateTtl(create_ttl(&words)?),
        OpCode::Delete => Request::Delete(path_version(&words)?),
        OpCode::Check => Request::Check(path_version(&words)?),
        OpCode::Exists => Request::Exists(path_watch(&words)?),
        OpCode::GetData => Request::GetData(path_watch(&words)?),
        OpCode::GetChildren => Request::GetChildren(path_watch(&words)?),
        OpCode::GetChildren2 => Request::GetChildren2(path_watch(&words)?),
        OpCode::SetData => Request::SetData(set_data(&words)?),
        OpCode::GetAcl => Request::GetAcl(words.path()?),
        OpCode::SetAcl => {
            Request::SetAcl(SetAclRequest { path: words.path()?, acl: words.acl()?, version: words.version()? })
        }
        OpCode::Sync => Request::Sync(words.path()?),
        OpCode::GetEphemerals => Request::GetEphemerals(words.path()?),
        OpCode::GetAllChildrenNumber => Request::GetAllChildrenNumber(words.path()?),
        OpCode::Ping => Request::Ping,
        OpCode::WhoAmI => Request::WhoAmI,
        OpCode::CloseSession => Request::CloseSession,
        OpCode::Auth => Request::Auth(AuthRequest {
            auth_type: 0,
            scheme: words.path()?,
            credentials: words.data()?.unwrap_or_default(),
        }),
        OpCode::SetWatches | OpCode::SetWatches2 => watches(operation, &words, marks)?,
        OpCode::AddWatch => {
            let mode = words.placed.get(1).and_then(|word| operations::watch(word)).ok_or("addWatch has a mode")?;
            Request::AddWatch(AddWatchRequest { path: words.path()?, mode })
        }
        OpCode::CheckWatches | OpCode::RemoveWatches => {
            let kind = words.placed.get(1).and_then(|word| operations::watcher(word)).ok_or("a watch has a type")?;
            let body = WatchesRequest { path: words.path()?, watcher_type: kind };
            if operation == OpCode::CheckWatches { Request::CheckWatches(body) } else { Request::RemoveWatches(body) }
        }
        OpCode::Reconfig => Request::Reconfig(ReconfigRequest {
            joining_servers: words.text("joining")?,
            leaving_servers: words.text("leaving")?,
            new_members: words.text("members")?,
            current_config_id: words.named.get("id").and_then(|text| text.parse().ok()).unwrap_or(-1),
        }),
        OpCode::Sasl => Request::Sasl(Bytes::from(words.path()?)),
        OpCode::Multi | OpCode::MultiRead => return Err("a list cannot stand in a list".into()),
        OpCode::Notification | OpCode::DeleteContainer | OpCode::CreateSession | OpCode::Error => {
            Request::Unknown { opcode: operation.number() }
        }
    })
}

fn create(words: &Words<'_>, flags: i32) -> Result<CreateRequest, String> {
    let named = words.named.get("flags").map(|text| text.parse().map_err(|_| format!("`{text}` are no flags")));
    let placed = words.placed.iter().skip(1).find_map(|word| operations::flags(word)).unwrap_or(flags);
    let data = if words.placed.get(1).is_some_and(|word| operations::flags(word).is_some()) {
        Some(Bytes::new())
    } else {
        words.data()?
    };
    Ok(CreateRequest { path: words.path()?, data, acl: words.acl()?, flags: named.unwrap_or(Ok(placed))? })
}

fn create_ttl(words: &Words<'_>) -> Result<CreateTtlRequest, String> {
    let CreateRequest { path, data, acl, flags } = create(words, 5)?;
    let ttl_ms = words.named.get("ttl").and_then(|text| text.parse().ok()).ok_or("createTTL has a ttl=")?;
    Ok(CreateTtlRequest { path, data, acl, flags, ttl_ms })
}

fn path_version(words: &Words<'_>) -> Result<PathVersion, String> {
    Ok(PathVersion { path: words.path()?, version: words.version()? })
}

fn path_watch(words: &Words<'_>) -> Result<PathWatch, String> {
    Ok(PathWatch { path: words.path()?, watch: words.flag("watch") })
}

fn set_data(words: &Words<'_>) -> Result<SetDataRequest, String> {
    Ok(SetDataRequest { path: words.path()?, data: words.data()?, version: words.version()? })
}

fn watches(operation: OpCode, words: &Words<'_>, marks: &Marks) -> Result<Request, String> {
    let relative_zxid = marks.get(words.named.get("since").copied().unwrap_or("0"))?;
    let (data_watches, exist_watches, child_watches) =
        (words.paths("data")?, words.paths("exist")?, words.paths("child")?);
    if operation == OpCode::SetWatches {
        return Ok(Request::SetWatches(SetWatchesRequest {
            relative_zxid,
            data_watches,
            exist_watches,
            child_watches,
        }));
    }
    Ok(Request::SetWatches2(SetWatches2Request {
        relative_zxid,
        data_watches,
        exist_watches,
        child_watches,
        persistent_watches: words.paths("persistent")?,
        persistent_recursive_watches: words.paths("recursive")?,
    }))
}

fn list(verb: &str, words: &[&str]) -> Result<Request, String> {
    let mut parts: Vec<&[&str]> = Vec::new();
    for part in words.split(|word| *word == "|").filter(|part| !part.is_empty()) {
        let (times, part) = match part {
            [part @ .., last] if last.starts_with("times=") => (last["times=".len()..].parse().unwrap_or(1), part),
            part => (1, part),
        };
        parts.extend(std::iter::repeat_n(part, times));
    }
    let parts = parts.into_iter();
    if verb == "multiRead" {
        return parts.map(read_part).collect::<Result<_, _>>().map(Request::MultiRead);
    }
    parts.map(part).collect::<Result<_, _>>().map(Request::Multi)
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
