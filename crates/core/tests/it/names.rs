//! The product's reader of request names against the checkers' own, over every combination of what names are made of.

use lockkeeper_checkers::name;
use lockkeeper_core::lock::{LockMode, parse_name};
use lockkeeper_core::{RequestId, limits};

const UUID: &str = "_c_00000000-0000-0000-0000-000000000007";
const FRONTS: [&str; 24] = [
    "",
    "x",
    "x-",
    "_c_",
    "_c_-",
    "_c_00000000-0000-0000-0000-000000000007",
    "_c_00000000-0000-0000-0000-000000000007-",
    "_c_00000000-0000-0000-0000-000000000007-x",
    "_c_8f14e45fceea4672a0b1c8e5d3f90ab1abcd-",
    "_c_ä8f14e45fceea4672a0b1c8e5d3f90ab1ab-",
    "8f14e45fceea4672a0b1c8e5d3f90ab1",
    "delay-5-7-x-",
    "delay-5-7-8-",
    "delay-5-18446744073709551615-",
    "delay-5-18446744073709551616-",
    "xdelay-5-7-",
    "delay-",
    "delay--",
    "delay-5-",
    "delay-5--",
    "lock-",
    "delay-5-7-lock-foo-",
    "permit-3-",
    "ä",
];
const DELAYS: [&str; 12] = [
    "",
    "-delay-5-",
    "-delay-05-",
    "-delay-0-",
    "-delay-600000-",
    "-delay-600001-",
    "-delay--",
    "-delay-+5-",
    "delay-5-",
    "-delay-5",
    "-delay-5-6-",
    "delay-5-7-",
];
const INFIXES: [&str; 14] = [
    "lock-",
    "__READ__",
    "__WRIT__",
    "__lock__",
    "__rlock__",
    "permit-3-",
    "permit-1000-",
    "permit-1001-",
    "permit-0-",
    "permit-03-",
    "permit-+3-",
    "permit--",
    "latch-",
    "",
];
const SEQUENCES: [&str; 5] = ["0000000012", "9999999999", "000000012", "00000000-1", "000000001ä"];

#[test]
fn both_readers_read_the_same() {
    assert_eq!((name::MAX_PERMITS, name::MAX_DELAY_MS), (limits::MAX_PERMITS, limits::MAX_DELAY_MS));
    let mut read = 0;
    for front in FRONTS {
        for delay in DELAYS {
            for infix in INFIXES {
                for sequence in SEQUENCES {
                    let text = format!("{front}{delay}{infix}{sequence}");
                    read += usize::from(read_alike(&text));
                }
            }
        }
    }
    assert!(read > 2_000, "{read} names are requests");
}

/// Whether it is a request's name.
fn read_alike(text: &str) -> bool {
    let (Some(own), Some(expected)) = (parse_name(text), name::parse(text)) else {
        assert_eq!(parse_name(text).is_some(), name::parse(text).is_some(), "{text}");
        return false;
    };
    let mode = match own.form.mode {
        LockMode::Exclusive => name::LockMode::Exclusive,
        LockMode::Shared => name::LockMode::Shared,
        LockMode::Write => name::LockMode::Write,
        LockMode::Permit(permits) => name::LockMode::Permit(permits),
    };
    assert_eq!(
        (own.sequence, mode, own.form.delay_ms),
        (expected.sequence, expected.mode, expected.delay_ms),
        "{text}"
    );
    assert_eq!(own.keeps_place_of.map(|token| token.0), expected.keeps_place_of, "{text}");
    let given = format!("{}{:010}", own.form.prefix(RequestId(7)), own.sequence);
    if text.starts_with(UUID) {
        assert_eq!(expected.uuid.as_deref(), (given == *text).then_some(&UUID[3..]), "{text}");
    }
    true
}
