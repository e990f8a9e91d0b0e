//! Damaged snapshots. The golden scripts and the comparison with the model show that sound ones come back unchanged.

use super::*;
use crate::*;

fn state() -> State {
    let locks = vec![LockName::parse("l").unwrap()];
    let acquire =
        LockOp::Acquire { locks, mode: LockMode::Shared, delay_ms: 0, uuid: RequestId(5), label: "who".into() };
    let request = Some(RequestKey { id: RequestId(9), acknowledged: vec![] });
    let commands = vec![
        Command::OpenSession { secret_hash: [3; 32], timeout_ms: 1000, label: "s".into() },
        Command::Do { actor: Actor::of(SessionId(1)).asking(request), op: acquire.into() },
        Command::CloseSession { session: SessionId(77) },
    ];
    let origin = Origin { node: NodeId(1), incarnation: 1, sequence: 1 };
    let mut state = State::new();
    state.apply(Term(1), &Batch::consecutive(origin, 5, commands));
    state
}

fn bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    state().write_snapshot(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<State, SnapshotError> {
    State::read_snapshot(bytes)
}

#[test]
fn a_snapshot_comes_back() {
    let restored = read(&bytes()).unwrap();
    assert_eq!(restored, state());
    restored.validate().unwrap();
}

/// Snapshots outlive programs: to change these bytes, change the version.
#[test]
fn the_bytes_of_version_1_stay_what_they_are() {
    let bytes = bytes();
    assert_eq!(&bytes[..12], b"LKSTATE\n\x01\0\0\0");
    assert_eq!((bytes.len(), crc32c::crc32c(&bytes[..bytes.len() - 4])), (527, 2_965_404_427));
}

#[test]
fn the_feature_level_rises_and_is_kept() {
    let mut raised = state();
    let later = FeatureLevel(FeatureLevel::LATEST.0 + 1);
    let origin = Origin { node: NodeId(1), incarnation: 1, sequence: 2 };
    let levels = [FeatureLevel(1), later, FeatureLevel(1)];
    let raise = levels.map(|level| Command::RaiseFeatureLevel { level });
    let outcomes = raised.apply(Term(1), &Batch::consecutive(origin, 5, raise.to_vec()));
    let levels = [FeatureLevel(1), later, later];
    assert!(outcomes.iter().map(|outcome| &outcome.reply).eq(&levels.map(|level| Ok(Reply::FeatureLevel(level)))));
    assert_eq!((raised.zxid(), raised.checksum()), (state().zxid(), state().checksum()));
    let mut bytes = Vec::new();
    raised.write_snapshot(&mut bytes).unwrap();
    assert_eq!(State::read_snapshot_at(later, &bytes[..]).unwrap(), raised);
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, SnapshotError::FeatureLevel(_)) && error.to_string().contains("upgrade this node"));
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = bytes();
    for cut in 0..bytes.len() {
        let error = read(&bytes[..cut]).unwrap_err();
        assert!(matches!(error, SnapshotError::Truncated(at) if at == cut as u64), "cut at {cut}: {error}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = bytes();
    for at in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(read(&bytes).is_err(), "bit {at} was flipped unnoticed");
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let good = bytes();
    assert!(matches!(read(b"something else entirely"), Err(SnapshotError::Magic)));
    let mut later = good.clone();
    later[8] = VERSION as u8 + 1;
    let error = read(&later).unwrap_err();
    assert!(matches!(error, SnapshotError::Version(later) if later == VERSION + 1), "{error}");
    assert!(error.to_string().contains("upgrade this node"), "{error}");
    let last = good.len() - 1;
    let mut wrong_sum = good.clone();
    wrong_sum[last] ^= 1;
    assert!(matches!(read(&wrong_sum), Err(SnapshotError::Checksum { .. })));
    let longer = [&good[..], b"x"].concat();
    assert!(matches!(read(&longer), Err(SnapshotError::Damaged(why)) if why.contains("follows")));
    let huge = [&good[..12], &u32::MAX.to_le_bytes()].concat();
    assert!(matches!(read(&huge), Err(SnapshotError::RecordTooLong(u32::MAX))));
}

/// A matching checksum is easily forged: the content must be valid as well.
#[test]
fn a_checksum_alone_makes_no_snapshot() {
    let good = bytes();
    // Records start after magic and version; leave each out in turn.
    let (mut starts, mut at) = (Vec::new(), 12);
    while at < good.len() - 4 {
        starts.push(at);
        at += 4 + u32::from_le_bytes(good[at..at + 4].try_into().unwrap()) as usize;
    }
    starts.push(at);
    assert!(starts.len() > 8);
    for pair in starts.windows(2) {
        let mut bytes = [&good[..pair[0]], &good[pair[1]..good.len() - 4]].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        assert!(read(&bytes).is_err(), "a snapshot without the record at {} was taken", pair[0]);
        let mut bytes = [&good[..pair[1]], &good[pair[0]..good.len() - 4]].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        assert!(read(&bytes).is_err(), "a snapshot with the record at {} twice was taken", pair[0]);
    }
}

/// Each record fits those before it, but no log gives the whole.
#[test]
fn the_snapshot_of_an_unsound_state_is_refused() {
    let mut unsound = state();
    unsound.clock_ms = 0;
    let mut bytes = Vec::new();
    unsound.write_snapshot(&mut bytes).unwrap();
    let error = read(&bytes).unwrap_err();
    assert!(matches!(&error, SnapshotError::Damaged(why) if why.contains("times")), "{error}");
}

#[test]
fn a_stream_that_fails_is_reported() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(state().write_snapshot(Full), Err(SnapshotError::Io(_))));
}
