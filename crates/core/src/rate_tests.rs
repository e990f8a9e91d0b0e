use super::*;

fn rate(limit: u32, per_ms: u64) -> Rate {
    Rate { limit, per_ms }
}

fn taken(rate: Rate, permits: u32) -> Bucket {
    let mut bucket = Bucket::full(rate, 0);
    assert!(bucket.take(permits));
    bucket
}

#[test]
fn names_and_paths() {
    let name = RateName::parse("mails/welcome").unwrap();
    assert_eq!(name.path().as_str(), "/rates/mails/welcome");
    assert_eq!(RateName::of_node(&name.path()), Some("mails/welcome"));
    for bad in ["", "/", "a/", "/a", "a/../b", &"x".repeat(256), &"x/".repeat(600)] {
        assert!(RateName::parse(bad).is_err(), "{bad:?} was taken");
    }
}

#[test]
fn permits_come_back_one_by_one() {
    let mut bucket = taken(rate(10, 1_000), 10);
    assert!(!bucket.take(1));
    assert_eq!((bucket.ms_until(1), bucket.ms_until(10)), (100, 1_000));
    bucket.advance(99);
    assert_eq!(bucket.available(), 0);
    bucket.advance(100);
    assert_eq!(bucket.available(), 1);
    bucket.advance(50);
    assert_eq!((bucket.as_of_ms, bucket.available()), (100, 1), "time does not run back");
    bucket.advance(5_000);
    assert!(bucket.is_full());
    assert_eq!(bucket.available(), 10);
}

/// A rate that no number of milliseconds divides evenly loses and gains nothing, however it is looked at.
#[test]
fn there_is_no_drift() {
    let (mut often, mut seldom) = (taken(rate(7, 86_400_000), 7), taken(rate(7, 86_400_000), 7));
    for day in 0..400_u64 {
        for look in 0..1_000 {
            often.advance(day * 86_400_000 + look * 86_399);
        }
        let end = (day + 1) * 86_400_000;
        often.advance(end);
        seldom.advance(end);
        assert_eq!(often, seldom);
        assert!(often.take(7) && seldom.take(7), "day {day}");
        assert!(!often.take(1));
    }
}

#[test]
fn the_largest_bucket_overflows_nowhere() {
    let largest = rate(MAX_RATE_LIMIT, MAX_RATE_PER_MS);
    let mut bucket = taken(largest, MAX_RATE_LIMIT);
    assert_eq!(bucket.ms_until(MAX_RATE_LIMIT), MAX_RATE_PER_MS);
    let smallest = bucket.reconfigured(rate(1, 1));
    assert_eq!((smallest.available(), smallest.ms_until(1)), (0, 1));
    assert_eq!(taken(rate(1, 1), 1).reconfigured(largest).available(), MAX_RATE_LIMIT - 1);
    bucket.advance(u64::MAX);
    assert!(bucket.is_full());
    assert!(bucket.take(1));
    assert_eq!(bucket.lease(u32::MAX), largest.longest_lease());
    assert_eq!(bucket.ms_until(MAX_RATE_LIMIT), 0, "at the end of time");
}

#[test]
fn a_lease_is_small_and_comes_back_after_its_end() {
    assert_eq!(rate(1_000, 1_000).longest_lease(), 100);
    assert_eq!(rate(1_000, 60_000).longest_lease(), 1);
    assert_eq!(rate(1_000, 999).longest_lease(), 0);
    assert_eq!(rate(9, 1_000).longest_lease(), 0);
    let mut bucket = Bucket::full(rate(1_000, 1_000), 10);
    assert_eq!(bucket.lease(500), 100);
    bucket.advance(20);
    assert_eq!(bucket.lease(30), 30);
    assert_eq!((bucket.leases.len(), bucket.leased(), bucket.available()), (1, 130, 870));
    bucket.advance(299);
    assert_eq!(bucket.available(), 870, "nothing comes back before the end");
    bucket.advance(300);
    assert_eq!((bucket.leased(), bucket.available()), (0, 870));
    assert_eq!(bucket.full_at_ms(), 430);
    bucket.advance(430);
    assert!(bucket.is_full());
}

#[test]
fn the_wait_sees_leases_end() {
    let mut bucket = Bucket::full(rate(1_000, 1_000), 0);
    assert_eq!(bucket.lease(100), 100);
    assert!(bucket.take(900));
    assert_eq!(bucket.ms_until(1), 1);
    assert_eq!(bucket.ms_until(1_000), 1_000, "the lease ends meanwhile");
    bucket.advance(240);
    assert!(bucket.take(240));
    assert_eq!(bucket.lease(1), 0);
    let mut idle = Bucket::full(rate(1_000, 1_000), 0);
    assert_eq!(idle.lease(100), 100);
    assert_eq!((idle.ms_until(900), idle.ms_until(901), idle.ms_until(1_000)), (0, 251, 350));
}

#[test]
fn another_rate_gives_nothing_back() {
    let bucket = taken(rate(10, 1_000), 4);
    assert_eq!(bucket.reconfigured(rate(20, 1_000)).available(), 16);
    assert_eq!(bucket.reconfigured(rate(3, 60_000)).available(), 0);
    assert_eq!(bucket.reconfigured(rate(10, 60_000)).available(), 6);
    let mut leased = Bucket::full(rate(1_000, 1_000), 0);
    leased.lease(100);
    let small = leased.reconfigured(rate(5, 1_000));
    assert_eq!((small.available(), small.ms_until(5)), (0, 1_250), "leases are still out");
}

#[test]
fn records_come_back_and_nothing_else_is_one() {
    let mut bucket = taken(rate(1_000, 1_000), 7);
    bucket.lease(100);
    let bytes = bucket.encode();
    assert_eq!(Bucket::decode(&bytes), Some(bucket.clone()));
    for cut in 0..bytes.len() {
        assert_eq!(Bucket::decode(&bytes[..cut]), None);
    }
    assert_eq!(Bucket::decode(&[&bytes[..], b"x"].concat()), None);
    let lease = |ends_ms, permits| Lease { ends_ms, permits };
    for unsound in [
        Bucket { missing: 1_000_001, ..bucket.clone() },
        Bucket { rate: rate(0, 1), missing: 0, ..bucket.clone() },
        Bucket { as_of_ms: 300, ..bucket.clone() },
        Bucket { leases: vec![lease(9, 1), lease(9, 1)], ..bucket.clone() },
        Bucket { leases: vec![lease(9, 0)], ..bucket.clone() },
        Bucket { leases: (1..=7).map(|at| lease(at, 1)).collect(), ..bucket.clone() },
    ] {
        assert_eq!(Bucket::decode(&unsound.encode()), None, "{unsound:?}");
    }
}

/// Nodes outlive programs: to change these bytes, change the version.
#[test]
fn the_bytes_of_a_record_stay_what_they_are() {
    let leases = vec![Lease { ends_ms: 50, permits: 3 }];
    let bucket = Bucket { rate: rate(1_000, 2_000), missing: 300, as_of_ms: 5, leases };
    assert_eq!(*bucket.encode(), *b"\x01\xe8\x07\xd0\x0f\xac\x02\x05\x01\x32\x03");
}
