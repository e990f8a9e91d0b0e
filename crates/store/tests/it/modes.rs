//! Files and directories of a node are for its own user alone.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use lockkeeper_store::{Identity, LogPosition, OpenError, SnapshotStore, Store};

use crate::common;

/// Everything below a directory with its mode, itself included.
fn modes(path: &Path) -> Vec<(PathBuf, bool, u32)> {
    let found = fs::symlink_metadata(path).unwrap();
    let mut all = vec![(path.to_path_buf(), found.is_dir(), found.permissions().mode() & 0o777)];
    if found.is_dir() {
        all.extend(fs::read_dir(path).unwrap().flat_map(|entry| modes(&entry.unwrap().path())));
    }
    all
}

#[track_caller]
fn assert_private(root: &Path) {
    let all = modes(root);
    assert!(all.len() > 5, "{all:?}");
    for (path, is_directory, mode) in all {
        assert_eq!(mode, if is_directory { 0o700 } else { 0o600 }, "{}", path.display());
    }
}

fn fill(root: &Path) {
    let (store, opened) = common::open(root);
    let next = opened.last.map_or(1, |last| last.index + 1);
    common::append(&store, common::records(1, next..next + 50));
    let snapshots = SnapshotStore::open(root, store.bounds(), &common::options()).unwrap();
    let mut writer = snapshots.create(LogPosition { term: 1, index: next }, b"meta").unwrap();
    writer.write_all(b"payload").unwrap();
    writer.finish().unwrap();
    store.close().unwrap();
}

#[test]
fn files_and_directories_are_for_their_owner_alone() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("data");
    fill(&root);
    assert_private(&root);

    // As an older build left it, or an operator.
    for (path, is_directory, _) in modes(&root) {
        fs::set_permissions(path, fs::Permissions::from_mode(if is_directory { 0o755 } else { 0o644 })).unwrap();
    }
    fill(&root);
    assert_private(&root);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A directory that is open to all, with a file of somebody else's.
fn strangers(root: &Path) -> PathBuf {
    fs::create_dir(root).unwrap();
    let file = root.join("somebodys");
    fs::write(&file, "").unwrap();
    for (path, mode) in [(root, 0o755), (&file, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    file
}

#[test]
fn a_strangers_file_beside_ours_keeps_its_mode() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("data");
    let file = strangers(&root);
    for _ in 0..2 {
        fill(&root);
        assert_eq!(mode(&file), 0o644);
        for ours in ["log/floor", "log/sled/db", "lock"] {
            assert_eq!(mode(&root.join(ours)), 0o600, "{ours}");
        }
    }
}

#[test]
fn a_directory_that_is_refused_keeps_its_modes() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("data");
    let file = strangers(&root);
    fs::create_dir(root.join("snapshots")).unwrap();
    let snapshot = root.join("snapshots/0.snap");
    fs::write(&snapshot, "").unwrap();
    fs::set_permissions(&snapshot, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(Store::open(&root, &common::identity(), common::options()).is_err());
    assert_eq!((mode(&root), mode(&file), mode(&snapshot)), (0o755, 0o644, 0o644));

    let other = base.path().join("other");
    fill(&other);
    let before = modes(&other);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let identity = Identity { node: common::identity().node + 1, ..common::identity() };
    assert!(matches!(Store::open(&other, &identity, common::options()), Err(OpenError::Foreign { .. })));
    assert_eq!((mode(&other), modes(&other).len()), (0o755, before.len()));
}
