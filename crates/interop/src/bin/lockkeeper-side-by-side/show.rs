//! Formats a reply or an event as a line, with names in place of values that differ between runs.

use bytes::Bytes;
use lockkeeper_zookeeper::{Acl, ErrorCode, MultiResult, OpCode, Reply, ReplyHeader, Stat, WatcherEvent};

use crate::names::Names;

/// Larger owners mark containers and TTL nodes.
const TTL_MARK: u64 = 0xff << 56;

/// A reply to `operation`, including its header.
pub(crate) fn answer(names: &mut Names, operation: Option<OpCode>, header: ReplyHeader, body: Bytes) -> String {
    if header.error != 0 {
        return error(header.error);
    }
    let Some(operation) = operation else { return format!("ok, {} bytes", body.len()) };
    let length = body.len();
    match Reply::decode(operation, body) {
        Ok(decoded) => {
            let mut text = reply(names, &decoded);
            if operation.row().rules.transaction && !failed(&decoded) {
                text.push_str(&format!(" at {}", names.zxid(header.zxid)));
            }
            text
        }
        Err(error) => format!("an answer of {length} bytes that cannot be read: {error}"),
    }
}

fn error(number: i32) -> String {
    ErrorCode::from_number(number).map_or_else(|| format!("error {number}"), |code| format!("{code:?}"))
}

fn failed(reply: &Reply) -> bool {
    matches!(reply, Reply::Multi(results) if results.iter().any(|result| matches!(result, MultiResult::Error(_))))
}

fn reply(names: &mut Names, reply: &Reply) -> String {
    match reply {
        Reply::Empty => "ok".into(),
        Reply::Path(path) => format!("ok {}", text(path)),
        Reply::Created { path, stat } => format!("ok {} {}", text(path), self::stat(names, stat)),
        Reply::Stat(stat) => format!("ok {}", self::stat(names, stat)),
        Reply::Data { data, stat } => format!("ok {} {}", self::data(data.as_ref()), self::stat(names, stat)),
        Reply::Acl { acl, stat } => format!("ok {} {}", self::acl(acl), self::stat(names, stat)),
        Reply::Children(children) => format!("ok {}", set(children)),
        Reply::ChildrenAndStat { children, stat } => format!("ok {} {}", set(children), self::stat(names, stat)),
        Reply::Multi(results) => {
            let results: Vec<String> = results.iter().map(|each| result(names, each)).collect();
            format!("ok [{}]", results.join(" | "))
        }
        Reply::Error(number) => format!("ok, {number} in the body"),
        Reply::Ephemerals(paths) => format!("ok {}", list(paths)),
        Reply::ChildrenNumber(number) => format!("ok {number}"),
        Reply::Identities(identities) => {
            let each: Vec<String> =
                identities.iter().map(|info| format!("{}:{}", info.auth_scheme, info.user)).collect();
            format!("ok {}", list(&each))
        }
        Reply::Token(token) => format!("ok token of {} bytes", token.len()),
    }
}

fn result(names: &mut Names, result: &MultiResult) -> String {
    match result {
        MultiResult::Create(path) => format!("create {}", text(path)),
        MultiResult::Create2 { path, stat } => format!("create2 {} {}", text(path), self::stat(names, stat)),
        MultiResult::Delete => "delete".into(),
        MultiResult::SetData(stat) => format!("setData {}", self::stat(names, stat)),
        MultiResult::Check => "check".into(),
        MultiResult::GetChildren(children) => format!("getChildren {}", set(children)),
        MultiResult::GetData { data, stat } => {
            format!("getData {} {}", self::data(data.as_ref()), self::stat(names, stat))
        }
        MultiResult::Error(number) => error(*number),
    }
}

/// All eleven fields.
fn stat(names: &mut Names, stat: &Stat) -> String {
    let (czxid, mzxid, pzxid) = (names.zxid(stat.czxid), names.zxid(stat.mzxid), names.zxid(stat.pzxid));
    let times = if stat.mtime_ms < stat.ctime_ms {
        " mtime before ctime!"
    } else if !names.is_time_of(stat.czxid, stat.ctime_ms) || !names.is_time_of(stat.mzxid, stat.mtime_ms) {
        " a time that is not that of its zxid!"
    } else {
        ""
    };
    format!(
        "{{czxid={czxid} mzxid={mzxid} pzxid={pzxid} version={} cversion={} aversion={} owner={} length={} \
         children={}{times}}}",
        stat.version,
        stat.cversion,
        stat.aversion,
        owner(names, stat.ephemeral_owner),
        stat.data_length,
        stat.num_children,
    )
}

fn owner(names: &Names, owner: i64) -> String {
    match owner {
        0 => "0".into(),
        i64::MIN => "container".into(),
        _ if owner.cast_unsigned() >= TTL_MARK => format!("ttl:{}", owner.cast_unsigned() & !TTL_MARK),
        session => names.session(session).to_owned(),
    }
}

fn data(data: Option<&Bytes>) -> String {
    match data {
        None => "null".into(),
        // The configuration has ports, which differ in each run.
        Some(data) if data.starts_with(b"server.") => without_ports(&String::from_utf8_lossy(data)),
        Some(data) if data.len() > 100 => format!("{} bytes from {:?}", data.len(), &data[..1]),
        Some(data) => text(&String::from_utf8_lossy(data)),
    }
}

/// Each number of four digits and more as `#`.
fn without_ports(text: &str) -> String {
    let mut out = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.trim_end_matches(|c: char| !c.is_ascii_digit());
        let (digits, behind) = piece.split_at(digits.len());
        out.push_str(if digits.len() < 4 { digits } else { "#" });
        out.push_str(behind);
    }
    self::text(&out)
}

fn acl(acl: &[Acl]) -> String {
    let entry = |entry: &Acl| format!("{}:{}:{}", entry.permissions.0, entry.id.scheme, entry.id.id);
    let entries: Vec<String> = acl.iter().map(entry).collect();
    format!("({})", entries.join(","))
}

/// A list without a defined order.
fn set(texts: &[String]) -> String {
    let mut sorted = texts.to_vec();
    sorted.sort();
    list(&sorted)
}

/// A list in the received order.
fn list(texts: &[String]) -> String {
    let each: Vec<String> = texts.iter().map(|each| text(each)).collect();
    format!("[{}]", each.join(","))
}

/// A value in the script's notation.
fn text(plain: &str) -> String {
    if plain.is_empty() {
        "\"\"".into()
    } else {
        plain.replace(' ', "\\_").escape_debug().to_string().replace("\\\\_", "\\_")
    }
}

/// An event without its zxid, which ZooKeeper sends only since 3.9.
pub(crate) fn event(event: &WatcherEvent) -> String {
    format!("{:?} {:?} {}", event.event_type, event.state, text(&event.path))
}
