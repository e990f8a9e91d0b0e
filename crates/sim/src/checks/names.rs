//! Reads the names of the nodes in a lock's queue, as Apache Curator writes them: on purpose not with the product's own reader.

/// What a request's or a delay's name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its place.
    pub sequence: u64,
    /// How many may hold beside each other: none for readers, who do not count.
    pub room: Room,
    /// The lock delay that it asks for, or is.
    pub delay_ms: u64,
    /// Under which uuid it was made; none for the place of a dead holder.
    pub uuid: Option<String>,
    /// For the place of a dead holder: the token that died.
    pub stands_for: Option<u64>,
}

/// Who may hold beside a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nobody.
    Alone,
    /// Other readers.
    Readers,
    /// So many in all.
    Permits(u64),
}

/// The lock in whose queue this path would stand, and the last part.
pub fn lock_and_name(path: &str) -> Option<(&str, &str)> {
    let below = path.strip_prefix("/locks/")?;
    below.rsplit_once('/')
}

/// Reads a name; none if it is no place in a queue.
pub fn read(name: &str) -> Option<Name> {
    let digits = name.len().checked_sub(10)?;
    let (stem, sequence) = (name.get(..digits)?, name.get(digits..)?);
    if !sequence.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let sequence = sequence.parse().ok()?;
    let (room, rest) = room_of(stem)?;
    if let Some(delay) = rest.strip_prefix("delay-") {
        let (delay_ms, token) = delay.strip_suffix('-')?.split_once('-')?;
        let (delay_ms, token) = (delay_ms.parse().ok()?, token.parse().ok()?);
        return Some(Name { sequence, room, delay_ms, uuid: None, stands_for: Some(token) });
    }
    let own = rest.strip_prefix("_c_")?;
    let (uuid, asked) = (own.get(..36)?, own.get(36..)?);
    let delay_ms = match asked.strip_prefix("-delay-") {
        Some(delay) => delay.strip_suffix('-')?.parse().ok()?,
        None => 0,
    };
    Some(Name { sequence, room, delay_ms, uuid: Some(uuid.to_owned()), stands_for: None })
}

fn room_of(stem: &str) -> Option<(Room, &str)> {
    if let Some(rest) = stem.strip_suffix("lock-").or_else(|| stem.strip_suffix("__WRIT__")) {
        return Some((Room::Alone, rest));
    }
    if let Some(rest) = stem.strip_suffix("__READ__") {
        return Some((Room::Readers, rest));
    }
    let (rest, permits) = stem.strip_suffix('-')?.rsplit_once("permit-")?;
    Some((Room::Permits(permits.parse().ok()?), rest))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::lock::RequestForm;
    use lockkeeper_core::{LockMode, RequestId};

    use super::*;

    #[test]
    fn reads_what_the_product_writes() {
        let uuid = RequestId(77);
        for (mode, room) in [
            (LockMode::Exclusive, Room::Alone),
            (LockMode::Write, Room::Alone),
            (LockMode::Shared, Room::Readers),
            (LockMode::Permit(3), Room::Permits(3)),
        ] {
            for delay_ms in [0, 500] {
                let form = RequestForm { mode, delay_ms };
                let name = read(&format!("{}{:010}", form.prefix(uuid), 12)).unwrap();
                assert_eq!((name.sequence, name.room, name.delay_ms), (12, room, u64::from(delay_ms)));
                assert_eq!((name.uuid, name.stands_for), (Some(uuid.to_string()), None));
            }
        }
        for (kept, room) in
            [("delay-500-4-lock-0000000009", Room::Alone), ("delay-500-4-permit-3-0000000009", Room::Permits(3))]
        {
            let kept = read(kept).unwrap();
            assert_eq!((kept.sequence, kept.delay_ms, kept.room), (9, 500, room));
            assert_eq!((kept.uuid, kept.stands_for), (None, Some(4)));
        }
        for other in ["", "n_0000000001", "lock-00000001", "0000000001", "ä000000001"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(lock_and_name("/locks/a/b/x"), Some(("a/b", "x")));
        assert_eq!(lock_and_name("/other/a"), None);
    }
}
