//! Files have mode 0600 and directories 0700: a node stores data of every client, and hashes of secrets.
//!
//! sled creates its files with the process's umask, and an older build or an operator may have made a directory. So
//! opening a data directory also restricts the modes of the node's files in it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Read, write or search for group or others.
const FOREIGN: u32 = 0o077;
/// Others may not remove entries: a directory that many share, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Options that create a file with mode 0600.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Creates or empties a file, for writing, with mode 0600. One with other modes that is there already gets it too.
///
/// # Errors
/// As [`File::create`].
pub fn create_private_file(path: &Path) -> io::Result<File> {
    let file = options().write(true).create(true).truncate(true).open(path)?;
    if file.metadata()?.mode() & FOREIGN != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Creates a directory, and those above it that are missing, with mode 0700.
pub(crate) fn create_directories(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Removes the permissions of group and others from the data directory, and from the paths `ours` in it with all that
/// they hold; returns how many modes changed. Other files there are left alone. A mode that cannot be changed is logged
/// with the remedy, and does not stop the node.
pub(crate) fn tighten(root: &Path, ours: &[PathBuf]) -> u64 {
    if fs::metadata(root).is_ok_and(|found| found.mode() & STICKY != 0) {
        tracing::warn!(
            directory = %root.display(),
            "the data directory is one that all users share; give the node a directory of its own (storage.directory)"
        );
        return 0;
    }
    tighten_one(root) + ours.iter().map(|path| tighten_all(path)).sum::<u64>()
}

/// Whether the directory holds anything but `ours`.
pub(crate) fn holds_others(root: &Path, ours: &[PathBuf]) -> bool {
    entries(root).iter().any(|path| !ours.contains(path))
}

/// One path and everything below it.
pub(crate) fn tighten_all(path: &Path) -> u64 {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let below: u64 = if is_directory { entries(path).iter().map(|path| tighten_all(path)).sum() } else { 0 };
    tighten_one(path) + below
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn tighten_one(path: &Path) -> u64 {
    // Not followed: a link may lead anywhere.
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    let mode = found.mode();
    if !(found.is_dir() || found.is_file()) || mode & FOREIGN == 0 {
        return 0;
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & 0o7700)) {
        Ok(()) => 1,
        Err(error) => {
            tracing::warn!(
                path = %path.display(), %error, mode = format!("{:o}", mode & 0o7777),
                "other users of this machine may read this, and its mode cannot be changed; \
                 make the user that runs lockkeeper its owner (chown), or set its mode to 0600 (a directory's to 0700)"
            );
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_created_is_private() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("a/b");
        create_directories(&dir).unwrap();
        assert_eq!((mode(&base.path().join("a")), mode(&dir)), (0o700, 0o700));
        let file = dir.join("file");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(create_private_file(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
    }

    #[test]
    fn an_open_directory_is_tightened_and_links_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (root, outside) = (base.path().join("data"), base.path().join("outside"));
        fs::create_dir_all(root.join("log/sled")).unwrap();
        for file in [root.join("log/sled/db"), root.join("lock"), outside.clone()] {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        fs::create_dir_all(root.join("somebodys")).unwrap();
        fs::set_permissions(root.join("somebodys"), Permissions::from_mode(0o755)).unwrap();
        let strange = root.join("strange");
        fs::write(&strange, "").unwrap();
        fs::set_permissions(&strange, Permissions::from_mode(0o644)).unwrap();
        let ours = [root.join("log"), root.join("lock"), root.join("link"), root.join("missing")];
        let changed = tighten(&root, &ours);
        assert!(changed >= 2, "{changed}");
        assert!(holds_others(&root, &ours) && !holds_others(&root.join("log"), &[root.join("log/sled")]));
        for dir in [&root, &root.join("log/sled")] {
            assert_eq!(mode(dir) & 0o077, 0);
        }
        for file in ["lock", "log/sled/db"] {
            assert_eq!(mode(&root.join(file)), 0o600);
        }
        assert_eq!((mode(&root.join("somebodys")), mode(&strange)), (0o755, 0o644));
        assert_eq!(tighten(&root, &ours), 0);
        assert_eq!(mode(&outside), 0o664, "it is none of ours");
    }

    #[test]
    fn a_directory_that_all_share_stays_as_it_is() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("somebodys");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(tighten(base.path(), &[]), 0);
        assert_eq!((mode(base.path()), mode(&file)), (0o1777, 0o644));
    }
}
