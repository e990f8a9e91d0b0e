//! Checks fencing tokens as the clients saw them: unique, and rising in real time, per lock (promise P1).

use std::collections::BTreeMap;
use std::time::Instant;

/// One acknowledged grant.
#[derive(Clone, Debug)]
pub struct TokenGrant<T = Instant> {
    /// The lock.
    pub lock: String,
    /// Its fencing token.
    pub token: u64,
    /// When the request was sent.
    pub asked: T,
    /// When the grant was there.
    pub granted: T,
    /// When the holder began to give it back, or what is known of it as still held.
    pub released: Option<T>,
}

/// What is wrong with the grants, if anything.
///
/// # Errors
/// Two grants of a lock carry the same token, or a grant acknowledged before another was asked for has the larger
/// token, or two holders overlapped.
pub fn check<T: Copy + Ord>(grants: &[TokenGrant<T>]) -> Result<(), String> {
    let mut locks: BTreeMap<&str, Vec<&TokenGrant<T>>> = BTreeMap::new();
    for grant in grants {
        locks.entry(&grant.lock).or_default().push(grant);
    }
    locks.into_iter().try_for_each(|(lock, grants)| check_lock(lock, grants))
}

fn check_lock<T: Copy + Ord>(lock: &str, mut grants: Vec<&TokenGrant<T>>) -> Result<(), String> {
    grants.sort_by_key(|grant| grant.token);
    // In token order no grant may have been acknowledged before one with a smaller token was even asked for.
    let mut latest_asked: Option<&TokenGrant<T>> = None;
    for grant in &grants {
        if let Some(before) = latest_asked.filter(|before| grant.granted < before.asked) {
            return Err(format!(
                "lock {lock}: token {} was granted before the request for token {} was sent: tokens went back",
                grant.token, before.token
            ));
        }
        if latest_asked.is_none_or(|before| grant.asked > before.asked) {
            latest_asked = Some(grant);
        }
    }
    for pair in grants.windows(2) {
        let (earlier, later) = (pair[0], pair[1]);
        if earlier.token == later.token {
            return Err(format!("lock {lock}: token {} was granted twice", earlier.token));
        }
        if earlier.released.is_some_and(|released| later.granted < released) {
            return Err(format!(
                "lock {lock}: token {} was granted while token {} was still held",
                later.token, earlier.token
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn grant(token: u64, asked: u64, granted: u64, released: u64) -> TokenGrant {
        let base = Instant::now() - Duration::from_secs(1000);
        static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let at = |seconds| *BASE.get_or_init(|| base) + Duration::from_secs(seconds);
        TokenGrant { lock: "l".into(), token, asked: at(asked), granted: at(granted), released: Some(at(released)) }
    }

    #[test]
    fn rising_is_fine() {
        assert_eq!(check(&[grant(5, 0, 1, 2), grant(9, 0, 3, 4), grant(11, 4, 5, 6)]), Ok(()));
    }

    #[test]
    fn repeated_falling_and_overlapping_tokens_are_caught() {
        assert!(check(&[grant(5, 0, 1, 2), grant(5, 3, 4, 5)]).unwrap_err().contains("twice"));
        assert!(check(&[grant(9, 0, 1, 2), grant(5, 3, 4, 5)]).unwrap_err().contains("went back"));
        assert!(check(&[grant(5, 0, 1, 4), grant(9, 2, 3, 5)]).unwrap_err().contains("still held"));
        // The one that fell is not next to the one it fell behind.
        assert!(check(&[grant(9, 0, 1, 2), grant(3, 0, 1, 1), grant(5, 3, 4, 5)]).unwrap_err().contains("went back"));
    }
}
