//! The order in which ZooKeeper answers what it keeps in hash tables: the ephemerals of a session and the identities of a connection. The
//! protocol leaves it open, and yet clients' suites and people who compare two answers see it, so it is that of OpenJDK's tables
//! (reference: `HashMap.putVal` and `clone`, `ConcurrentHashMap.putVal`, and the `hashCode` that jute generates for `Id`).
//!
//! A table that was larger once keeps its size in Java; what was deleted since is not known here, so that then the order may differ.

/// What Java's tables start with.
const FIRST_TABLE: usize = 16;

/// `String.hashCode`.
fn hash_of_text(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// `Id.hashCode`, of a scheme and what it knows somebody by.
pub(super) fn hash_of_identity(scheme: &str, id: &str) -> i32 {
    [scheme, id].iter().fold(17_i32, |hash, text| hash.wrapping_mul(37).wrapping_add(hash_of_text(text)))
}

/// The place in a table, whose size is a power of two.
fn bucket(hash: i32, table: usize) -> usize {
    let hash = hash.cast_unsigned();
    (hash ^ (hash >> 16)) as usize & (table - 1)
}

/// The size of a table into which so many have been put one by one; `is_full` says when it grows.
fn grown(count: usize, is_full: impl Fn(usize, usize) -> bool) -> usize {
    let mut table = FIRST_TABLE;
    while is_full(count, table) {
        table *= 2;
    }
    table
}

/// Paths, each with when it was put there, as a copy of a `HashSet` gives them: by the copy's table, which is as large as its contents need;
/// in one place of it by that of the set; in one place of that as they were put there.
pub(super) fn sort_paths<K: Ord + Copy>(paths: &mut [(&str, K)]) {
    let table = grown(paths.len(), |count, table| count > table / 4 * 3);
    // Java divides by three quarters, adds one, rounds down, and takes the next power of two.
    let copied = (paths.len() * 4 / 3 + 1).next_power_of_two();
    paths.sort_by_cached_key(|(path, since)| {
        let hash = hash_of_text(path);
        (bucket(hash, copied), bucket(hash, table), *since)
    });
}

/// Identities, given in the order in which they were proved, as a set upon a `ConcurrentHashMap` gives them.
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
        assert_eq!(hash_of_text("\u{1f600}"), 1_772_899, "in units of UTF-16");
    }

    /// As OpenJDK 17 gave them, asked for `new ArrayList<>(set.clone())` of so many.
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

    /// As OpenJDK 17 gave those of one address and so many users.
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
