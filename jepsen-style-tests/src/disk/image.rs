//! A directory in memory, read from disk and written back. Only plain files and directories: a data directory has
//! nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileTree {
    File(Vec<u8>),
    Directory(BTreeMap<String, FileTree>),
}

/// The directory with all below it; nothing if it is not there.
pub(super) fn read(path: &Path) -> io::Result<Option<FileTree>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => {
            let mut entries = BTreeMap::new();
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                if let Some(found) = read(&entry.path())? {
                    entries.insert(entry.file_name().to_string_lossy().into_owned(), found);
                }
            }
            Ok(Some(FileTree::Directory(entries)))
        }
        Ok(_) => std::fs::read(path).map(|bytes| Some(FileTree::File(bytes))),
    }
}

/// Removes all that a directory has.
pub(crate) fn empty(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Puts this in place of whatever is there; of a directory what is in it, so that it may be a mount point.
pub(super) fn replace(path: &Path, with: &Option<FileTree>) -> io::Result<()> {
    if path.is_dir() {
        empty(path)?;
    }
    match with {
        Some(entry) => write(path, entry),
        None if path.is_dir() => std::fs::remove_dir(path),
        None => Ok(()),
    }
}

fn write(path: &Path, entry: &FileTree) -> io::Result<()> {
    match entry {
        FileTree::File(bytes) => std::fs::write(path, bytes),
        FileTree::Directory(entries) => {
            std::fs::create_dir_all(path)?;
            entries.iter().try_for_each(|(name, entry)| write(&path.join(name), entry))
        }
    }
}
