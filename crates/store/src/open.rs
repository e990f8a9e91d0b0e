//! Opens a data directory, or creates one, or refuses it and says why.
//!
//! A new log directory is made as `log.new` and renamed when it is complete and synced, so a crash in between leaves
//! nothing named `log`. A directory named `log` may therefore hold acknowledged data, and must be complete. One from
//! before there was a journal gets one here; at an orderly stop it becomes what it was, so that the older build can go
//! on with it.

use std::collections::VecDeque;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_mutants::mutant;
use tracing::subscriber::NoSubscriber;

use crate::ack_watermark::{AckWatermark, AckWatermarkFile};
use crate::block;
use crate::codec::{self, MetaKind};
use crate::directory::{self, DirectoryLock, Layout};
use crate::error::{FatalError, OpenError};
use crate::fsync::{DataBarrier, sync_and_forget};
use crate::journal::Journal;
use crate::journal::frame::SECTOR_BYTES;
use crate::journal::recovery::{self, FoundFrames, Replayed};
use crate::journal::segment::{self, DiskSegment, Geometry, OpenSegments};
use crate::journal::unarchived::Unarchived;
use crate::permissions;
use crate::scan;
use crate::sled_log::SledLog;
use crate::tail_cache::TailCache;
use crate::term_starts::TermStarts;
use crate::types::{Barrier, Identity, Opened, Options};

/// sled unlocks its file a while after its last handle is dropped (sled issue 1234).
const SLED_LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Bounds of a segment of the journal: it takes the largest vote, and an open reads it whole.
const MIN_JOURNAL_SEGMENT_BYTES: usize = 2 * codec::MAX_VALUE_BYTES;
const MAX_JOURNAL_SEGMENT_BYTES: usize = 256 * 1024 * 1024;
/// Longest cluster name.
const MAX_CLUSTER_BYTES: usize = 256;

/// An open directory, checked, counted and durable.
pub(crate) struct Ready {
    pub(crate) lock: DirectoryLock,
    pub(crate) log: SledLog,
    pub(crate) barrier: DataBarrier,
    pub(crate) journal: Journal<DiskSegment>,
    pub(crate) unarchived: Unarchived,
    /// The last task that sled has done.
    pub(crate) task: u64,
    /// Whether an older build made the directory, and can go on with it after an orderly stop.
    pub(crate) is_old: bool,
    pub(crate) watermark: AckWatermarkFile,
    pub(crate) tail: TailCache,
    pub(crate) terms: TermStarts,
    pub(crate) first_index: Option<u64>,
    pub(crate) opened: Opened,
}

/// Opens the directory, or creates what is missing in it.
pub(crate) fn open(dir: &Path, identity: &Identity, options: &Options) -> Result<Ready, OpenError> {
    validate(identity, options)?;
    let layout = Layout::new(dir);
    if !dir.is_dir() {
        directory::create_directory(dir).map_err(OpenError::io("create", dir))?;
    }
    let lock = DirectoryLock::take(&layout)?;
    let free_bytes = options.free_space.bytes(dir).map_err(OpenError::io("examine", dir))?;
    if free_bytes < options.free_floor_bytes {
        return Err(OpenError::DiskFull { dir: dir.into(), free_bytes, floor_bytes: options.free_floor_bytes });
    }
    let fresh = !layout.log().try_exists().map_err(OpenError::io("examine", &layout.log()))?;
    if fresh {
        refuse_orphaned_snapshots(&layout)?;
        guarded(&layout.unfinished_log(), || create(&layout, identity, options))?;
    }
    guarded(&directory::sled_file(&layout.log()), || open_existing(lock, &layout, identity, options, fresh))
}

/// sled panics if the wall clock shows a time before 1970, which would look like damage.
fn check_clock(now: SystemTime) -> Result<(), OpenError> {
    match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => Ok(()),
        Err(before) => Err(OpenError::Invalid(format!(
            "the clock of this machine stands {} s before 1970: set it, then start again; the data is untouched",
            before.duration().as_secs()
        ))),
    }
}

fn validate(identity: &Identity, options: &Options) -> Result<(), OpenError> {
    check_clock(SystemTime::now())?;
    if identity.cluster.is_empty() || identity.cluster.len() > MAX_CLUSTER_BYTES {
        return Err(OpenError::Invalid(format!("the cluster's name must have 1 to {MAX_CLUSTER_BYTES} bytes")));
    }
    if options.flush_every_ms == 0 || options.queue_commands == 0 || options.sync_watchdog.is_zero() {
        return Err(OpenError::Invalid("flush_every_ms, queue_commands and sync_watchdog must be above 0".into()));
    }
    let segment_bytes = options.journal_segment_bytes;
    let is_possible = (MIN_JOURNAL_SEGMENT_BYTES..=MAX_JOURNAL_SEGMENT_BYTES).contains(&segment_bytes);
    if options.journal_segments < 2 || !is_possible || !segment_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(OpenError::Invalid(format!(
            "the journal must have two segments or more, each of {MIN_JOURNAL_SEGMENT_BYTES} to \
             {MAX_JOURNAL_SEGMENT_BYTES} bytes, a multiple of {SECTOR_BYTES}"
        )));
    }
    Ok(())
}

/// Snapshots without a log: someone removed the log, and with it votes and acknowledged records.
fn refuse_orphaned_snapshots(layout: &Layout) -> Result<(), OpenError> {
    let dir = layout.snapshots();
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(OpenError::io("read", &dir))?,
    };
    for entry in entries {
        let path = entry.map_err(OpenError::io("read", &dir))?.path();
        if path.extension().is_some_and(|extension| extension == "snap") {
            return Err(OpenError::damaged(&layout.log(), "it is missing, yet there are snapshots beside it"));
        }
    }
    Ok(())
}

fn create(layout: &Layout, identity: &Identity, options: &Options) -> Result<(), OpenError> {
    let making = layout.unfinished_log();
    let sled = directory::sled_dir(&making);
    if making.try_exists().map_err(OpenError::io("examine", &making))? {
        fs::remove_dir_all(&making).map_err(OpenError::io("remove the unfinished", &making))?;
    }
    permissions::create_directories(&sled).map_err(OpenError::io("create", &sled))?;
    let log = open_log(&making, options.segment_bytes, options)?;
    log.put_meta(MetaKind::Identity, 0, &codec::encode_identity(identity)).map_err(refusal)?;
    log.put_meta(MetaKind::Incarnation, 0, &0_u64.to_le_bytes()).map_err(refusal)?;
    let barrier = data_barrier(&log, Barrier::Full, options.segment_bytes)?;
    barrier.run().map_err(refusal)?;
    drop((barrier, log));
    segment::create(&directory::journal_dir(&making), geometry(identity.directory, options))?;
    let watermark =
        AckWatermark { incarnation: 0, vote_sequence: 0, directory: identity.directory, frame: 0, last: None };
    let watermark_file = directory::watermark_file(&making);
    AckWatermarkFile::create(&watermark_file, watermark).map_err(OpenError::io("create", &watermark_file))?;
    for entry in fs::read_dir(&sled).map_err(OpenError::io("read", &sled))? {
        let path = entry.map_err(OpenError::io("read", &sled))?.path();
        fs::File::open(&path).and_then(|file| file.sync_all()).map_err(OpenError::io("sync", &path))?;
    }
    for dir in [&sled, &making] {
        directory::sync_directory(dir).map_err(OpenError::io("sync", dir))?;
    }
    fs::rename(&making, layout.log()).map_err(OpenError::io("rename", &making))?;
    directory::sync_directory(&layout.root).map_err(OpenError::io("sync", &layout.root))
}

fn geometry(directory: u128, options: &Options) -> Geometry {
    Geometry::new(options.journal_segments, options.journal_segment_bytes, directory)
}

fn data_barrier(log: &SledLog, kind: Barrier, segment_bytes: usize) -> Result<DataBarrier, OpenError> {
    let barrier = DataBarrier::new(log.db().clone(), log.file(), kind, segment_bytes);
    barrier.map_err(OpenError::io("open", log.file()))
}

fn open_log(log_dir: &Path, segment_bytes: usize, options: &Options) -> Result<SledLog, OpenError> {
    let file = directory::sled_file(log_dir);
    let db = open_sled(log_dir, segment_bytes, options)?.map_err(|error| scan::sled_refusal(&file, &error))?;
    SledLog::new(db, &file, segment_bytes).map_err(|error| scan::sled_refusal(&file, &error))
}

fn open_sled(log_dir: &Path, segment_bytes: usize, options: &Options) -> Result<sled::Result<sled::Db>, OpenError> {
    let config = sled::Config::new()
        .path(directory::sled_dir(log_dir))
        .cache_capacity(options.cache_bytes)
        .flush_every_ms(Some(options.flush_every_ms))
        .segment_size(segment_bytes);
    let deadline = Instant::now() + SLED_LOCK_PATIENCE;
    loop {
        match config.open() {
            Err(sled::Error::Io(error)) if error.to_string().contains("could not acquire lock") => {
                if Instant::now() >= deadline {
                    return Err(OpenError::InUse { dir: log_dir.to_path_buf() });
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return Ok(opened),
        }
    }
}

/// Brings sled's index of its log (`snap.*`) up to date and makes it durable before sled relies on it.
///
/// An open of sled writes a new index, removes the one before, syncs their directory never, and writes zeros over the
/// segments that the new index does not need. A power cut may bring back the older index, which needs some of them to
/// find the end of the log. Between the index and the zeros sled removes each large value that is newer than its log. A
/// directory is none that it could remove, so that open fails just there, and the next one finds its index.
fn renew_sled_index(log_dir: &Path, segment_bytes: usize, options: &Options) -> Result<(), OpenError> {
    let (sled, file) = (directory::sled_dir(log_dir), directory::sled_file(log_dir));
    let obstacle = sled.join("blobs").join(i64::MAX.to_string());
    permissions::create_directories(&obstacle).map_err(OpenError::io("create", &obstacle))?;
    // sled warns that it removes the obstacle.
    let opened = tracing::subscriber::with_default(NoSubscriber::new(), || open_sled(log_dir, segment_bytes, options))?;
    directory::sync_directory(&sled).map_err(OpenError::io("sync", &sled))?;
    fs::remove_dir(&obstacle).map_err(OpenError::io("remove", &obstacle))?;
    match opened {
        Err(sled::Error::Io(error)) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(()),
        // One without records opens: it needs no index.
        opened => opened.map(drop).map_err(|error| scan::sled_refusal(&file, &error)),
    }
}

fn open_existing(
    lock: DirectoryLock,
    layout: &Layout,
    identity: &Identity,
    options: &Options,
    fresh: bool,
) -> Result<Ready, OpenError> {
    let log_dir = layout.log();
    let (sled, file) = (directory::sled_dir(&log_dir), directory::sled_file(&log_dir));
    let watermark_path = directory::watermark_file(&log_dir);
    let watermark_file = AckWatermarkFile::open(&watermark_path).map_err(OpenError::io("open", &watermark_path))?;
    let mut watermark_file = watermark_file.map_err(|problem| problem.refusal(&watermark_path))?;
    let sled_segment_bytes = prepare_sled(&sled, &file)?;
    if !mutant!(UnsyncedSledIndex) {
        renew_sled_index(&log_dir, sled_segment_bytes, options)?;
    }

    let log = open_log(&log_dir, sled_segment_bytes, options)?;
    let watermark = watermark_file.watermark();
    let meta = scan::meta(&log, &watermark)?;
    if meta.identity.cluster != identity.cluster || meta.identity.node != identity.node {
        return Err(OpenError::Foreign {
            dir: layout.root.clone(),
            found_cluster: meta.identity.cluster,
            found_node: meta.identity.node,
            cluster: identity.cluster.clone(),
            node: identity.node,
        });
    }
    let directory = meta.identity.directory;
    let journal_dir = directory::journal_dir(&log_dir);
    let segments = match watermark_file.has_journal() {
        true => Some(segment::open(&journal_dir, directory, options.barrier)?),
        false => {
            refuse_changes(&journal_dir, directory, options)?;
            None
        }
    };
    let (replayed, found) = replay(&journal_dir, segments.as_ref(), &meta.marks, &watermark)?;
    let relied_on = found.needed.last().map_or(0, |last| last.task);
    if meta.task < relied_on {
        let what = format!("it was given what the journal had {relied_on} times, and {} of them are there", meta.task);
        return Err(OpenError::damaged(&file, what));
    }
    let (mut tail, mut terms) = (TailCache::new(options.tail_cache_bytes), TermStarts::default());
    let mut unarchived = VecDeque::new();
    let scanned = scan::log(&log, &meta.marks, &replayed, &watermark, |record, is_in_sled| {
        terms.push(record.position);
        if is_in_sled {
            tail.archived_below(record.position.index + 1);
        } else {
            unarchived.push_back(record.clone());
        }
        tail.push(record);
    })?;
    let barrier = data_barrier(&log, options.barrier, sled_segment_bytes)?;
    if let Some(torn) = scanned.torn {
        tracing::warn!(index = torn, "cutting off an incomplete record that was never acknowledged");
        log.remove_from(torn, &barrier).map_err(refusal)?;
    }

    // sled creates its files as the process's mask has it.
    permissions::tighten_all(&sled);
    tighten(layout, fresh);

    // Data that a killed process left in the page cache becomes durable here, before it is reported; so does this
    // start. sled's directory is durable: nothing has changed in it since `renew_sled_index` synced it, for the open
    // after that found the index up to date and wrote none.
    let incarnation = meta.incarnation + 1;
    log.put_meta(MetaKind::Incarnation, incarnation, &incarnation.to_le_bytes()).map_err(refusal)?;
    barrier.run().map_err(refusal)?;
    let marks = replayed.marks;
    let (geometry, files, _) = match segments {
        Some(segments) => segments,
        None => add_journal(&log_dir, directory, options)?,
    };
    let frame = found.needed.last().map_or(0, |last| last.number);
    let vote_sequence = marks.vote.as_ref().map_or(0, |(sequence, _)| *sequence);
    let raised = AckWatermark { incarnation, vote_sequence, directory, frame, last: scanned.last };
    let written = match watermark_file.has_journal() {
        true => watermark_file.raise(raised, 0, true),
        false => watermark_file.upgrade(raised),
    };
    written.map_err(OpenError::io("sync", &watermark_path))?;
    let journal = Journal::new(files, geometry.segment_bytes, geometry.stamp, &found, meta.task);
    let unarchived = Unarchived::new(unarchived, scanned.sled_next, marks.clone(), meta.marks);

    let opened = Opened {
        incarnation,
        directory,
        fresh,
        vote: marks.vote.map(|(_, vote)| vote),
        committed: marks.committed.map(|(_, committed)| committed),
        purged: marks.purged,
        last: scanned.last,
        records: scanned.first.map_or(0, |first| scanned.last.map_or(0, |last| last.index + 1 - first)),
        torn_tail_cut: scanned.torn.is_some(),
    };
    let (watermark, first_index) = (watermark_file, scanned.first);
    let (task, is_old) = (meta.task, sled_segment_bytes == block::OLD_SLED_SEGMENT_BYTES);
    Ok(Ready { lock, log, barrier, journal, unarchived, task, is_old, watermark, tail, terms, first_index, opened })
}

/// Makes sled's files such that it may open them; gives the size of its segments. Without its settings sled would take
/// any size, and cut off what does not fit it.
fn prepare_sled(sled: &Path, file: &Path) -> Result<usize, OpenError> {
    if !file.try_exists().map_err(OpenError::io("examine", file))? {
        return Err(OpenError::damaged(file, "it is missing"));
    }
    directory::remove_unfinished_sled_snapshots(sled).map_err(OpenError::io("tidy", sled))?;
    // What a killed process left in the page cache must be durable before sled builds on it: it writes at once over
    // what it takes for garbage.
    fs::File::open(file).and_then(|file| sync_and_forget(&file)).map_err(OpenError::io("sync", file))?;
    let segment_bytes = block::sled_segment_bytes(sled);
    segment_bytes.ok_or_else(|| OpenError::damaged(&sled.join("conf"), "it does not say how large sled's segments are"))
}

/// Adds the journal, if there is one, to sled's votes and marks; gives the frames that it was made of.
fn replay(
    dir: &Path,
    segments: Option<&OpenSegments>,
    sled_marks: &recovery::Marks,
    watermark: &AckWatermark,
) -> Result<(Replayed, FoundFrames), OpenError> {
    let damaged = |what: String| OpenError::damaged(dir, what);
    let mut replayed = Replayed::of(sled_marks.clone());
    let Some((geometry, _, contents)) = segments else { return Ok((replayed, FoundFrames::default())) };
    let found = recovery::find(contents, geometry.stamp).map_err(damaged)?;
    let last = found.needed.last().map_or(0, |last| last.number);
    if last < watermark.frame {
        let acknowledged = watermark.frame;
        return Err(damaged(format!("it was acknowledged up to frame {acknowledged}, and ends at frame {last}")));
    }
    for found in &found.needed {
        replayed.add(found.number, &found.changes);
    }
    replayed.finish();
    Ok((replayed, found))
}

/// A journal that the watermark does not know was never used, or has been emptied.
fn refuse_changes(dir: &Path, directory: u128, options: &Options) -> Result<(), OpenError> {
    // One that cannot be read was never finished.
    let Ok((geometry, _, contents)) = segment::open(dir, directory, options.barrier) else { return Ok(()) };
    let found = recovery::find(&contents, geometry.stamp);
    match found.is_ok_and(|found| found.needed.iter().any(|frame| !frame.changes.is_empty())) {
        true => Err(OpenError::damaged(dir, "it is not empty, yet the file \"floor\" beside it knows of no journal")),
        false => Ok(()),
    }
}

/// Gives a directory from before there was a journal one. Nothing in it counts before the watermark says so.
fn add_journal(log_dir: &Path, directory: u128, options: &Options) -> Result<OpenSegments, OpenError> {
    let (making, dir) = (directory::unfinished_journal_dir(log_dir), directory::journal_dir(log_dir));
    for left_over in [&making, &dir] {
        if left_over.try_exists().map_err(OpenError::io("examine", left_over))? {
            fs::remove_dir_all(left_over).map_err(OpenError::io("remove the unfinished", left_over))?;
        }
    }
    segment::create(&making, geometry(directory, options))?;
    fs::rename(&making, &dir).map_err(OpenError::io("rename", &making))?;
    directory::sync_directory(log_dir).map_err(OpenError::io("sync", log_dir))?;
    tracing::info!(journal = %dir.display(), "made a journal: an older build refuses the directory until an orderly stop");
    segment::open(&dir, directory, options.barrier)
}

/// Restricts the directory to this user, now that it is known to be this node's: locked, and with its log in it.
fn tighten(layout: &Layout, fresh: bool) {
    let (root, ours) = (&layout.root, layout.names());
    // Files that were there before the log was made are not ours.
    if fresh && permissions::holds_others(root, &ours) {
        tracing::warn!(
            directory = %root.display(),
            "there are other files in the data directory, whose modes stay as they are, as does its own; \
             give the node a directory of its own (storage.directory)"
        );
        return;
    }
    let changed = permissions::tighten(root, &ours);
    if changed > 0 {
        tracing::warn!(
            directory = %root.display(), changed,
            "the data directory was open to other users of this machine; files have mode 0600 and directories 0700 now"
        );
    }
}

/// A failed write at open is a refusal like any other: nothing was acknowledged yet.
fn refusal(error: FatalError) -> OpenError {
    match error {
        FatalError::Io { what, file, reason } => OpenError::Io { what, file, source: std::io::Error::other(reason) },
        FatalError::Damaged { file, what } | FatalError::Panicked { file, what } => OpenError::Damaged { file, what },
        other => OpenError::Invalid(other.to_string()),
    }
}

/// Turns a panic of sled, its reaction to some damage, into a refusal.
fn guarded<T>(file: &Path, work: impl FnOnce() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let explained = cfg!(panic = "abort").then(|| Explained::install(file));
    let result = catch_unwind(AssertUnwindSafe(work));
    drop(explained);
    result.unwrap_or_else(|panic| Err(OpenError::damaged(file, format!("sled panicked: {}", panic_text(&*panic)))))
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}

type PanicHook = Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Send + Sync>;

/// In a build whose panics abort, nothing can be caught: the refusal is then at least printed before the process ends.
struct Explained(Arc<PanicHook>);

impl Explained {
    fn install(file: &Path) -> Self {
        let file = file.to_path_buf();
        let previous = Arc::new(std::panic::take_hook());
        let after = previous.clone();
        std::panic::set_hook(Box::new(move |info| {
            eprintln!("{}", OpenError::damaged(&file, format!("sled panicked while opening it: {info}")));
            previous(info);
        }));
        Self(after)
    }
}

impl Drop for Explained {
    fn drop(&mut self) {
        let previous = self.0.clone();
        std::panic::set_hook(Box::new(move |info| previous(info)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_1970_is_no_damage() {
        check_clock(SystemTime::UNIX_EPOCH).unwrap();
        let error = check_clock(SystemTime::UNIX_EPOCH - Duration::from_secs(90)).unwrap_err().to_string();
        assert!(error.contains("90 s before 1970") && !error.contains("damaged"), "{error}");
    }
}
