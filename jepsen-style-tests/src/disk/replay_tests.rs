use rand::SeedableRng as _;

use super::*;

fn after(lines: &[&str], loss: Loss) -> (FileTree, Lost) {
    after_seed(lines, loss, 1)
}

fn after_seed(lines: &[&str], loss: Loss, seed: u64) -> (FileTree, Lost) {
    let mut disk = Disk::at(std::path::Path::new("/d"), None);
    disk.replay(lines.join("\n").as_bytes()).unwrap();
    let (left, lost) = disk.cut(&mut StdRng::seed_from_u64(seed), loss);
    (left.unwrap(), lost)
}

fn directory(entries: &[(&str, FileTree)]) -> FileTree {
    FileTree::Directory(entries.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect())
}

fn file(text: &str) -> FileTree {
    FileTree::File(text.as_bytes().to_vec())
}

const OPEN: &str = r#"1 openat(AT_FDCWD</>, "/d/x", O_RDWR|O_CREAT, 0666) = 3</d/x>"#;
const DIRECTORY: &str = "1 fsync(4</d>) = 0";

#[test]
fn a_sync_covers_what_had_ended_before_it_began() {
    let lines = [
        OPEN,
        DIRECTORY,
        r#"1 write(3</d/x>, "ab", 2) = 2"#,
        r#"1 fdatasync(3</d/x> <unfinished ...>"#,
        r#"2 write(3</d/x>, "cd", 2) = 2"#,
        r#"1 <... fdatasync resumed>) = 0"#,
    ];
    assert_eq!(after(&lines, Loss::All).0, directory(&[("x", file("ab"))]));
    assert_eq!(after(&lines, Loss::None).0, directory(&[("x", file("abcd"))]));
    let unsynced = [&lines[..5], &[r#"1 <... fdatasync resumed>) = -1 EIO (Input/output error)"#]].concat();
    assert_eq!(after(&unsynced, Loss::All).0, directory(&[("x", file(""))]), "a sync that failed is none");
    let (left, lost) = after(&[OPEN, DIRECTORY, lines[2], "1 sync_file_range(3</d/x>, 0, 2, 7) = 0"][..3], Loss::All);
    assert_eq!((left, lost.sectors, lost.unsynced_bytes), (directory(&[("x", file(""))]), 1, 2));
}

#[test]
fn a_name_is_safe_with_its_directory() {
    let made = [OPEN, r#"1 write(3</d/x>, "ab", 2) = 2"#, "1 fsync(3</d/x>) = 0"];
    assert_eq!(after(&made, Loss::All).0, directory(&[]), "a synced file without a synced name");
    let moved = [&made[..], &[DIRECTORY, r#"1 rename("/d/x", "/d/y") = 0"#]].concat();
    assert_eq!(after(&moved, Loss::All).0, directory(&[("x", file("ab"))]));
    assert_eq!(after(&moved, Loss::None).0, directory(&[("y", file("ab"))]));
    let safe = [&moved[..], &[DIRECTORY]].concat();
    assert_eq!(after(&safe, Loss::All).0, directory(&[("y", file("ab"))]));
    let gone = [&safe[..], &[r#"1 unlink("/d/y") = 0"#]].concat();
    assert_eq!(after(&gone, Loss::All).0, directory(&[("y", file("ab"))]), "what was removed may come back");
}

#[test]
fn writes_tear_by_sectors_and_come_in_any_order() {
    let write = format!(r#"1 pwrite64(3</d/x>, "{}", 2048, 256) = 2048"#, "z".repeat(2048));
    let lines = [OPEN, DIRECTORY, &write];
    let torn = (0..50).filter(|seed| after_seed(&lines, Loss::Any, *seed).1.torn == 1).count();
    assert!(torn > 20, "{torn}");
    for seed in 0..50 {
        let (FileTree::Directory(entries), lost) = after_seed(&lines, Loss::Any, seed) else { panic!() };
        let FileTree::File(bytes) = &entries["x"] else { panic!() };
        let whole = |range: std::ops::Range<usize>| {
            let sector = bytes.get(range.start..range.end.min(bytes.len())).unwrap_or_default();
            sector.iter().all(|byte| *byte == b'z') || sector.iter().all(|byte| *byte == 0)
        };
        assert!(whole(256..512) && whole(512..1024) && whole(1024..1536) && whole(1536..2048) && whole(2048..2304));
        assert!(lost.sectors <= 5);
    }
}

#[test]
fn the_late_are_lost_together() {
    let lines = [
        OPEN,
        r#"1 openat(AT_FDCWD</>, "/d/y", O_RDWR|O_CREAT, 0666) = 5</d/y>"#,
        DIRECTORY,
        r#"1 write(3</d/x>, "a", 1) = 1"#,
        r#"1 write(5</d/y>, "b", 1) = 1"#,
        r#"1 write(3</d/x>, "c", 1) = 1"#,
    ];
    let possible = [("", ""), ("a", ""), ("a", "b")].map(|(x, y)| directory(&[("x", file(x)), ("y", file(y))]));
    let seen: Vec<FileTree> = (0..30).map(|seed| after_seed(&lines, Loss::Late, seed).0).collect();
    assert!(seen.iter().all(|left| possible.contains(left)));
    assert!(possible.iter().all(|left| seen.contains(left)));
}

#[test]
fn files_that_are_not_as_the_trace_tells_are_noticed() {
    let mut disk = Disk::at(std::path::Path::new("/d"), None);
    disk.replay([OPEN, r#"1 write(3</d/x>, "ab", 2) = 2"#].join("\n").as_bytes()).unwrap();
    disk.compare(&Some(directory(&[("x", file("ab"))]))).unwrap();
    assert!(disk.compare(&Some(directory(&[("x", file("ac"))]))).unwrap_err().contains("/x differs at 1"));
    assert!(disk.compare(&Some(directory(&[]))).is_err());
}

#[test]
fn what_is_said_of_the_directory_on_a_socket_changes_nothing() {
    let said = r#"1 writev(30<socket:[7]>, [{iov_base="disk of /d is full", iov_len=18}], 1) = 18"#;
    let lines = [OPEN, said, r#"1 write(3</d/x>, "ab", 2) = 2"#, "1 fsync(3</d/x>) = 0", "1 fsync(4</d>) = 0"];
    assert_eq!(after(&lines, Loss::All).0, directory(&[("x", file("ab"))]));
    let mut disk = Disk::at(std::path::Path::new("/d"), None);
    assert!(disk.replay(br#"1 writev(3</d/x>, [{iov_base="ab", iov_len=2}], 1) = 2"#).is_err());
}
