//! The scripts that decide on the server. Each is one step for Redis: nothing comes between its commands.
//!
//! A key belongs to an owner if its value begins with the 36 characters of the owner's id. Every script may be sent
//! again: it finds its own effect.

use std::sync::LazyLock;

use sha1::{Digest as _, Sha1};

/// A script and the name under which Redis remembers it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) sha: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        let sha = Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { text, sha }
    }
}

/// Sets all keys, or none. Arguments: owner, value, lease in ms. Answers `{1, 0}`, or `{0, ms}` with the time that the
/// first other owner's key still has, negative if it never expires.
pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, key in ipairs(KEYS) do
           local value = redis.call('GET', key)
           if value and string.sub(value, 1, 36) ~= ARGV[1] then
             return {0, redis.call('PTTL', key)}
           end
         end
         for _, key in ipairs(KEYS) do
           if not redis.call('SET', key, ARGV[2], 'NX', 'PX', ARGV[3]) then
             redis.call('PEXPIRE', key, ARGV[3])
           end
         end
         return {1, 0}",
    )
});

/// Renews all keys of the owner, or none. Arguments: owner, lease in ms. Answers 1 or 0.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, key in ipairs(KEYS) do
           local value = redis.call('GET', key)
           if not value or string.sub(value, 1, 36) ~= ARGV[1] then
             return 0
           end
         end
         for _, key in ipairs(KEYS) do
           redis.call('PEXPIRE', key, ARGV[2])
         end
         return 1",
    )
});

/// Deletes the keys that the owner has, the last one first, and tells the waiters of each. Argument: owner. Answers how
/// many there were.
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local released = 0
         for i = #KEYS, 1, -1 do
           local value = redis.call('GET', KEYS[i])
           if value and string.sub(value, 1, 36) == ARGV[1] then
             redis.call('DEL', KEYS[i])
             redis.call('PUBLISH', KEYS[i], 'released')
             released = released + 1
           end
         end
         return released",
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_script_is_its_digest() {
        assert_eq!(Script::new("return 1").sha, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
