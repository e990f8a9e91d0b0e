//! ZooKeeper's order of a session's ephemerals and a connection's identities, which it keeps in hash tables. The
//! protocol leaves the order open, but clients' test suites depend on it, so this is the order of OpenJDK's tables
//! (reference: `HashMap.putVal` and `clone`, `ConcurrentHashMap.putVal`, and the `hashCode` that jute generates for
//! `Id`).
//!
//! A Java table never shrinks. Deleted entries are not known here, so after deletions the order may differ.

/// Initial size of Java's tables.
const FIRST_TABLE: usize = 16;

/// `String.hashCode`.
fn hash_of_text(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// `Id.hashCode` of a scheme and an id.
pub(super) fn hash_of_identity(scheme: &str, id: &str) -> i32 {
    [scheme, id].iter().fold(17_i32, |hash, text| hash.wrapping_mul(37).wrapping_add(hash_of_text(text)))
}

/// The bucket in a table whose size is a power of two.
fn bucket(hash: i32, table: usize) -> usize {
    let hash = hash.cast_unsigned();
    (hash ^ (hash >> 16)) as usize & (table - 1)
}

/// The size of a table after `count` insertions; `is_full` says when it grows.
fn grown(count: usize, is_full: impl Fn(usize, usize) -> bool) -> usize {
    let mut table = FIRST_TABLE;
    while is_full(count, table) {
        table *= 2;
    }
    table
}

/// Sorts paths, each with its insertion time, into the order of a copied `HashSet`: by bucket in the copy, whose table
/// is as large as its contents need; then by bucket in the original; then by insertion.
pub(super) fn sort_paths<K: Ord + Copy>(paths: &mut [(&str, K)]) {
    let table = grown(paths.len(), |count, table| count > table / 4 * 3);
    // Java: capacity = next power of two of (size / 0.75 + 1).
    let copied = (paths.len() * 4 / 3 + 1).next_power_of_two();
    paths.sort_by_cached_key(|(path, since)| {
        let hash = hash_of_text(path);
        (bucket(hash, copied), bucket(hash, table), *since)
    });
}

/// Sorts identities, given in the order of authentication, into the order of a set backed by a `ConcurrentHashMap`.
pub(super) fn sort_identities<T>(identities: &mut [T], hash: impl Fn(&T) -> i32) {
    let table = grown(identities.len(), |count, table| count >= table / 4 * 3);
    identities.sort_by_key(|identity| bucket(hash(identity), table));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!((hash_of_text(""), hash_of_text("hello"), hash_of_text("/e/one")), (0, 99_162_322, 1_440_356_077));
        assert_eq!(hash_of_text("\u{1f600}"), 1_772_899, "UTF-16 units");
    }

    /// Recorded from OpenJDK 17: `new ArrayList<>(set.clone())`.
    #[test]
    fn paths_come_in_the_order_of_a_copied_set() {
        let thirty = "2 3 0 1 6 7 4 5 10 18 17 16 15 14 13 12 11 19 21 20 29 28 8 27 9 26 25 24 23 22";
        for expected in
            ["0", "2 0 1", "2 3 0 1 6 4 5", "2 3 0 1 6 7 4 5 10 8 9 11", "2 3 0 1 6 7 4 5 10 8 9 12 11", thirty]
        {
            let all: Vec<String> = (0..expected.split(' ').count()).map(|number| format!("/e/n-{number}")).collect();
            let mut paths: Vec<(&str, usize)> = all.iter().map(String::as_str).zip(0..).collect();
            sort_paths(&mut paths);
            let numbers: Vec<&str> = paths.iter().map(|(path, _)| &path["/e/n-".len()..]).collect();
            assert_eq!(numbers.join(" "), expected);
        }
    }

    /// Recorded from OpenJDK 17 for one address and several users.
    #[test]
    fn identities_come_in_the_order_of_a_concurrent_set() {
        for (users, expected) in
            [(0, "ip"), (1, "0 ip"), (2, "0 1 ip"), (5, "0 1 4 2 3 ip"), (10, "0 1 4 5 8 2 3 6 7 ip 9")]
        {
            let user = |number: usize| ("digest", format!("user{number}:hash{number}"), number.to_string());
            let mut all = vec![("ip", "127.0.0.1".to_owned(), "ip".to_owned())];
            all.extend((0..users).map(user));
            sort_identities(&mut all, |(scheme, id, _)| hash_of_identity(scheme, id));
            let names: Vec<&str> = all.iter().map(|(.., name)| name.as_str()).collect();
            assert_eq!(names.join(" "), expected);
        }
    }
}
