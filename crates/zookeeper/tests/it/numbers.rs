//! The protocol's numbers, written down a second time; those of the operations that clients ask for are in their golden
//! bytes.

use lockkeeper_zookeeper::{
    AddWatchMode, CreateMode, ErrorCode, EventType, FourLetterWord, KeeperState, OpCode, Permissions, WatcherType,
};

#[test]
fn operations() {
    assert_eq!(OpCode::try_from(22), Ok(OpCode::MultiRead));
    assert_eq!(OpCode::try_from(10).unwrap_err().to_string(), "10 is not a known operation");
    assert_eq!(OpCode::from_number(-11), Some(OpCode::CloseSession));
    assert_eq!(i32::from(OpCode::Auth), 100);
    assert_eq!(OpCode::Notification.number(), 0);
    assert_eq!(OpCode::DeleteContainer.number(), 20);
    assert_eq!(OpCode::CreateSession.number(), -10);
    assert_eq!(OpCode::Error.number(), -1);
}

#[test]
fn error_codes() {
    let numbers: Vec<i32> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
    let expected = (-8..=0).chain(-14..=-12).chain(-103..=-100).chain([-108]).chain(-125..=-110).chain([-127]);
    assert_eq!(sorted(numbers), sorted(expected.collect()));
    for (number, code) in [
        (-2, ErrorCode::RuntimeInconsistency),
        (-5, ErrorCode::MarshallingError),
        (-6, ErrorCode::Unimplemented),
        (-8, ErrorCode::BadArguments),
        (-101, ErrorCode::NoNode),
        (-102, ErrorCode::NoAuth),
        (-103, ErrorCode::BadVersion),
        (-108, ErrorCode::NoChildrenForEphemerals),
        (-110, ErrorCode::NodeExists),
        (-111, ErrorCode::NotEmpty),
        (-112, ErrorCode::SessionExpired),
        (-114, ErrorCode::InvalidAcl),
        (-115, ErrorCode::AuthFailed),
        (-118, ErrorCode::SessionMoved),
        (-119, ErrorCode::NotReadOnly),
        (-121, ErrorCode::NoWatcher),
        (-123, ErrorCode::ReconfigDisabled),
        (-125, ErrorCode::QuotaExceeded),
        (-127, ErrorCode::ThrottledOp),
    ] {
        assert_eq!(ErrorCode::try_from(number), Ok(code));
    }
}

#[test]
fn events_and_states() {
    let numbers = EventType::ALL.iter().map(|event| event.number()).collect::<Vec<_>>();
    assert_eq!(numbers, [-1, 1, 2, 3, 4, 5, 6, 7]);
    let numbers = KeeperState::ALL.iter().map(|state| state.number()).collect::<Vec<_>>();
    assert_eq!(numbers, [-1, 0, 1, 3, 4, 5, 6, 7, -112]);
    assert_eq!(KeeperState::SyncConnected.number(), 3);
}

#[test]
fn modes() {
    assert_eq!(
        [0, 1].map(AddWatchMode::from_number),
        [AddWatchMode::Persistent, AddWatchMode::PersistentRecursive].map(Some)
    );
    let types = WatcherType::ALL.iter().map(|watcher| watcher.number()).collect::<Vec<_>>();
    assert_eq!(types, [1, 2, 3, 4, 5]);
    // Number, then: ephemeral, sequential, container, TTL.
    for (number, expected) in [
        (0, [false, false, false, false]),
        (1, [true, false, false, false]),
        (2, [false, true, false, false]),
        (3, [true, true, false, false]),
        (4, [false, false, true, false]),
        (5, [false, false, false, true]),
        (6, [false, true, false, true]),
    ] {
        let mode = CreateMode::try_from(number).unwrap();
        assert_eq!([mode.is_ephemeral(), mode.is_sequential(), mode.is_container(), mode.is_ttl()], expected);
    }
    assert!(CreateMode::try_from(7).is_err());
    assert!(CreateMode::try_from(-1).is_err());
}

#[test]
fn permissions() {
    let one_by_one =
        Permissions::READ | Permissions::WRITE | Permissions::CREATE | Permissions::DELETE | Permissions::ADMIN;
    assert_eq!(one_by_one, Permissions::ALL);
    assert_eq!(Permissions::ALL.0, 31);
    assert!(Permissions::ALL.contains(Permissions::ADMIN));
    assert!(!Permissions::READ.contains(Permissions::READ | Permissions::WRITE));
}

#[test]
fn words() {
    for word in "ruok srvr stat mntr conf cons crst dump envi wchs wchc wchp dirs isro srst".split(' ') {
        assert_eq!(FourLetterWord::from_name(word).unwrap().as_str(), word);
        assert!(FourLetterWord::from_bytes(word.as_bytes().try_into().unwrap()).is_some());
    }
    assert_eq!(FourLetterWord::from_name("quit"), None);
    assert_eq!(FourLetterWord::from_bytes([0, 0, 0, 45]), None);
    assert!(FourLetterWord::all().all(|word| word.to_string().len() == 4));
}

fn sorted(mut numbers: Vec<i32>) -> Vec<i32> {
    numbers.sort_unstable();
    numbers
}
