//! What names mean, read in the plainest way.

use lockkeeper_core::limits::*;

/// A request in a queue: sequence, name, what it asks for.
pub(crate) type Place = (u64, String, Wish);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    Alone,
    Shared,
    Permits(u16),
}

/// A request's name: something, one of Curator's three infixes, kazoo's two or that of a permit, ten digits.
pub(crate) fn read_name(name: &str) -> Option<(u64, Wish)> {
    if name.len() < 10 || !name.is_char_boundary(name.len() - 10) {
        return None;
    }
    let (stem, digits) = name.split_at(name.len() - 10);
    if !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let permits = || {
        let number = stem.strip_suffix('-')?.rsplit('-').next()?;
        let permits: u16 = number.parse().ok().filter(|permits| (1..=MAX_PERMITS).contains(permits))?;
        stem.ends_with(&format!("permit-{permits}-")).then_some(permits)
    };
    let wish = if ["lock-", "__WRIT__", "__lock__"].iter().any(|infix| stem.ends_with(infix)) {
        Wish::Alone
    } else if is_reader(stem) {
        Wish::Shared
    } else {
        Wish::Permits(permits()?)
    };
    Some((digits.parse().unwrap(), wish))
}

pub(crate) fn is_reader(stem: &str) -> bool {
    stem.ends_with("__READ__") || stem.ends_with("__rlock__")
}

/// The lock delay in the name of a request: `_c_`, a uuid, `-delay-`, milliseconds, `-`, and what it asks for.
pub(crate) fn delay_asked(name: &str) -> Option<(u32, String)> {
    read_name(name)?;
    let parts: Vec<&str> = name.strip_prefix("_c_")?.splitn(8, '-').collect();
    let [a, b, c, d, e, "delay", delay_ms, rest] = parts[..] else { return None };
    let delay_ms: u32 = delay_ms.parse().ok().filter(|ms| *ms > 0 && *ms <= MAX_DELAY_MS)?;
    let uuid = [a, b, c, d, e].join("-");
    let rest = &rest[..rest.len() - 10];
    let wishes = ["lock-", "__READ__", "__WRIT__", "__lock__", "__rlock__"];
    let is_wish = wishes.contains(&rest)
        || rest.strip_prefix("permit-").and_then(|n| n.strip_suffix('-')).is_some_and(|n| n.parse::<u16>().is_ok());
    (uuid.len() == 36 && is_wish).then(|| (delay_ms, rest.to_string()))
}

/// Whether the name is that of a place kept free: `delay-`, milliseconds, token, and what kind of place.
pub(crate) fn is_delay(name: &str) -> bool {
    let parts: Vec<&str> = name.splitn(4, '-').collect();
    let ["delay", delay_ms, token, rest] = parts[..] else { return false };
    let is_whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    is_whole(delay_ms)
        && is_whole(token)
        && delay_ms.parse().is_ok_and(|ms: u32| ms <= MAX_DELAY_MS)
        && token.parse::<u64>().is_ok()
        && rest.len() > 10
        && read_name(rest).is_some()
        && ["lock-", "__READ__", "__WRIT__", "__lock__", "__rlock__", "permit-"]
            .iter()
            .any(|wish| rest.starts_with(wish))
        && rest.matches("permit-").count() <= 1
}

/// Whether this is the directory of a lock: below `/locks`, and short enough for requests.
pub(crate) fn is_lock_directory(at: &str) -> bool {
    at.starts_with("/locks/") && at.len() + 80 <= MAX_PATH_BYTES
}
