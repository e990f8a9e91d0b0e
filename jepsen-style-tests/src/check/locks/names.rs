//! What the name of a request says of it, by the grammar that the documentation gives: `…lock-`, `…__READ__`, `…__WRIT__` or
//! `…permit-<n>-` and ten digits; before that `_c_<uuid>-`, `_c_<uuid>-delay-<ms>-` for one with a delay, or `delay-<ms>-<token>-` for the
//! place of a dead holder. Written here once more: what is on trial must not read its own names to its judge.

/// How a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
    /// Alone, beside readers.
    Write,
    /// One of so many permits.
    Permit(u16),
}

impl LockMode {
    /// How many may hold at a time, of a semaphore.
    pub fn permits(self) -> Option<u16> {
        if let Self::Permit(permits) = self { Some(permits) } else { None }
    }
}

/// A request, as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its place among the children of its directory.
    pub sequence: u64,
    /// How it asks.
    pub mode: LockMode,
    /// The delay that it asked for, or that is kept.
    pub delay_ms: u32,
    /// For the place of a dead holder: its token.
    pub keeps_place_of: Option<u64>,
}

/// Reads a name; none where it is that of another child.
pub fn parse(name: &str) -> Option<Name> {
    let (stem, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let sequence = digits.parse().ok()?;
    let (front, mode) = mode(stem)?;
    let mut words = front.split('-');
    if words.next() == Some("delay")
        && let (Some(delay_ms), Some(dead)) = (words.next(), words.next())
        && let (Ok(delay_ms), Ok(dead)) = (delay_ms.parse(), dead.parse())
    {
        return Some(Name { sequence, mode, delay_ms, keeps_place_of: Some(dead) });
    }
    let asked = front.trim_end_matches('-').rsplit_once("-delay-").and_then(|(_, ms)| ms.parse().ok());
    Some(Name { sequence, mode, delay_ms: asked.unwrap_or(0), keeps_place_of: None })
}

fn mode(stem: &str) -> Option<(&str, LockMode)> {
    if let Some(front) = stem.strip_suffix("__READ__") {
        return Some((front, LockMode::Shared));
    }
    if let Some(front) = stem.strip_suffix("__WRIT__") {
        return Some((front, LockMode::Write));
    }
    if let Some(front) = stem.strip_suffix("lock-") {
        return Some((front, LockMode::Exclusive));
    }
    let (front, permits) = stem.strip_suffix('-')?.rsplit_once("permit-")?;
    Some((front, LockMode::Permit(permits.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let uuid = "00000000-0000-4000-8000-000000000007";
        let plain = |mode| Name { sequence: 12, mode, delay_ms: 0, keeps_place_of: None };
        for (infix, mode) in [
            ("lock-", LockMode::Exclusive),
            ("__READ__", LockMode::Shared),
            ("__WRIT__", LockMode::Write),
            ("permit-3-", LockMode::Permit(3)),
        ] {
            assert_eq!(parse(&format!("_c_{uuid}-{infix}0000000012")), Some(plain(mode)));
            let delayed = Name { delay_ms: 500, ..plain(mode) };
            assert_eq!(parse(&format!("_c_{uuid}-delay-500-{infix}0000000012")), Some(delayed));
            let kept = Name { keeps_place_of: Some(77), ..delayed };
            assert_eq!(parse(&format!("delay-500-77-{infix}0000000012")), Some(kept));
        }
        for other in
            ["lock-", "lock-123", "n_0000000001", "lock-00000000-1", "t7-c1-3", "permit--0000000001", "ä000000001"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
