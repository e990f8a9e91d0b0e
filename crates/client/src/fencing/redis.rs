//! Fencing in Redis: a script that runs a command only if the token is not stale.
//!
//! [`FENCED_COMMAND`] compares the token with the largest one that it has seen, remembers it, and runs the command, in
//! one step: Redis executes nothing else meanwhile. It needs no particular client:
//!
//! ```text
//! EVAL <script> 2 {orders}:fence {orders}:state 34 SET {orders}:state shipped
//!               |  |             |              |  the command
//!               |  |             |              the token
//!               |  |             the keys of the command
//!               |  the key that remembers the token
//!               the number of keys
//! ```
//!
//! It returns the result of the command. A stale token is an error that begins with `STALE`; [`refused`] recognizes it.
//! In a cluster all keys of one call must be in one slot, as by the `{…}` above.
//!
//! Pitfalls. The fence is as durable as Redis: a replica that takes over without the last writes, or an instance that
//! restarts empty, has forgotten the token together with the data. The key of the fence must not expire and must not
//! be evicted: give it no time to live, and use no `allkeys-…` policy. A write that does not go through the script is
//! not fenced.

use super::Stale;

/// The script. `KEYS[1]` remembers the token, the other keys are those of the command; `ARGV[1]` is the token, the
/// other arguments are the command.
///
/// Tokens are compared as decimal numbers of any length, since numbers in Lua are exact only up to 2^53. The token is
/// stored before the command runs: if the command fails, the caller still holds the lock, and nothing is lost.
pub const FENCED_COMMAND: &str = r#"
local token = ARGV[1]
if not string.match(token, '^%d+$') or (#token > 1 and string.sub(token, 1, 1) == '0') then
  return redis.error_reply('BADTOKEN the fencing token is not a decimal number')
end
local seen = redis.call('GET', KEYS[1])
if seen and (#seen > #token or (#seen == #token and seen > token)) then
  return redis.error_reply('STALE fencing token ' .. token .. ': ' .. seen .. ' has been here')
end
if seen ~= token then redis.call('SET', KEYS[1], token) end
return redis.call(unpack(ARGV, 2))
"#;

/// Checks the error message of a call of [`FENCED_COMMAND`], with or without the error's code. Other errors are the
/// caller's.
///
/// # Errors
/// The token is stale.
pub fn refused(message: &str, token: u64) -> Result<(), Stale> {
    let Some((_, rest)) = message.split_once(&format!("fencing token {token}: ")) else { return Ok(()) };
    let Some((seen, _)) = rest.split_once(" has been here") else { return Ok(()) };
    Err(Stale { token, seen: seen.parse().ok() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_tokens_are_recognized() {
        let stale = Err(Stale { token: 33, seen: Some(34) });
        assert_eq!(refused("STALE fencing token 33: 34 has been here", 33), stale);
        assert_eq!(refused("fencing token 33: 34 has been here", 33), stale);
        assert_eq!(refused("\"STALE\": fencing token 33: 34 has been here script: f_1, on @user_script:9.", 33), stale);
        for other in ["WRONGTYPE Operation against a key", "READONLY You can't write", ""] {
            assert_eq!(refused(other, 33), Ok(()), "{other}");
        }
    }
}
