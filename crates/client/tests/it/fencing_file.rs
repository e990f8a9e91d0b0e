//! A file that refuses stale tokens, with many writers, a crash in the middle and files that are not its own.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_client::fencing::{FencedFile, FileError, Stale};
use nix::fcntl::{Flock, FlockArg};

#[test]
fn a_smaller_token_is_refused_and_an_equal_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = FencedFile::new(directory.path().join("state"));
    assert_eq!(file.read().unwrap(), None);
    file.write(5, b"a").unwrap();
    file.write(5, b"b").unwrap();
    file.write(9, b"c").unwrap();
    let late = file.write(8, b"d").unwrap_err();
    assert!(matches!(late, FileError::Stale(Stale { token: 8, seen: Some(9) })), "{late}");
    assert!(late.to_string().contains("9 has been here"), "{late}");
    let called = file.update(8, |_| panic!("a stale writer sees nothing"));
    assert!(matches!(called, Err(FileError::Stale(_))));
    let kept = file.read().unwrap().unwrap();
    assert_eq!((kept.token, kept.data.as_slice()), (9, b"c".as_slice()));
    file.update(10, |old| [old.unwrap(), b"!"].concat()).unwrap();
    assert_eq!(file.read().unwrap().unwrap().data, b"c!");
}

#[test]
fn writers_take_turns_readers_see_whole_files_and_the_token_never_goes_back() {
    const WRITERS: u64 = 8;
    const EACH: u64 = 25;
    let directory = tempfile::tempdir().unwrap();
    let file = FencedFile::new(directory.path().join("counter")).patience(Duration::from_secs(60));
    let done = AtomicBool::new(false);
    let count =
        |data: Option<&[u8]>| data.map_or(0, |data| std::str::from_utf8(data).unwrap().trim().parse::<u64>().unwrap());
    let added = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = (0, 0);
            while !done.load(Ordering::Relaxed) {
                if let Some(kept) = file.read().unwrap() {
                    let now = (kept.token, count(Some(&kept.data)));
                    assert!(now >= last, "{now:?} after {last:?}");
                    last = now;
                }
            }
        });
        let writer = |number: u64| {
            let (file, count) = (file.clone(), count);
            move || {
                // Their tokens grow alongside each other: some of these writes are late.
                let write = |at: u64| {
                    file.update(at * WRITERS + number, |old| format!("{:>4096}", count(old) + 1).into_bytes())
                };
                let wrote = |at: &u64| match write(*at) {
                    Ok(()) => true,
                    Err(FileError::Stale(_)) => false,
                    Err(other) => panic!("{other}"),
                };
                (0..EACH).filter(wrote).count() as u64
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(writer(number))).collect();
        let added = writers.into_iter().map(|writer| writer.join().unwrap()).sum::<u64>();
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        added
    });
    let kept = file.read().unwrap().unwrap();
    assert_eq!(count(Some(&kept.data)), added, "each accepted write counts once");
    assert_eq!(kept.token, (EACH - 1) * WRITERS + WRITERS - 1, "the largest token was accepted");
}

#[test]
fn what_a_crash_left_of_a_new_file_is_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let file = FencedFile::new(&path);
    file.write(1, b"old").unwrap();
    fs::write(directory.path().join("state.new"), b"lockkeeper-fenced 1 99 10").unwrap();
    assert_eq!(file.read().unwrap().unwrap().data, b"old");
    file.write(2, b"new").unwrap();
    assert_eq!(file.read().unwrap().unwrap().data, b"new");
    assert!(!directory.path().join("state.new").exists());
}

#[test]
fn a_torn_or_foreign_file_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let file = FencedFile::new(&path);
    file.write(7, b"precious").unwrap();
    let whole = fs::read(&path).unwrap();
    for bad in [&whole[..whole.len() - 1], b"", b"somebody else's file\n", &[whole.clone(), b"x".to_vec()].concat()[..]]
    {
        fs::write(&path, bad).unwrap();
        for error in [file.write(8, b"over it").unwrap_err(), file.read().unwrap_err()] {
            assert!(matches!(error, FileError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("restore it"), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), bad);
    }
    fs::remove_file(&path).unwrap();
    file.write(8, b"anew").unwrap();
}

#[test]
fn a_process_that_sits_on_the_file_is_named_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let sitting = fs::File::create(directory.path().join("state.lock")).unwrap();
    let sitting = Flock::lock(sitting, FlockArg::LockExclusive).unwrap();
    let file = FencedFile::new(&path).patience(Duration::from_millis(50));
    let error = file.write(1, b"x").unwrap_err();
    assert!(matches!(error, FileError::Busy { waited_ms: 50.., .. }), "{error}");
    assert_eq!(file.read().unwrap(), None, "reading needs no lock");
    drop(sitting);
    file.write(1, b"x").unwrap();
}

#[test]
fn what_may_read_it_may_go_on_reading_it_and_errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let file = FencedFile::new(&path);
    file.write(1, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    file.write(2, b"y").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);

    let error = FencedFile::new(directory.path().join("missing/state")).write(1, b"x").unwrap_err();
    assert!(matches!(error, FileError::Io { .. }) && error.to_string().contains("missing/state.lock"), "{error}");
}
