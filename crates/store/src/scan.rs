//! The scan at open: is everything there that was acknowledged, and is it what was written?
//!
//! sled checks its own messages, but where a check fails it ends its log (at the tail) or skips the rest of a segment
//! (elsewhere) without an error. So the log, sled's and then the journal's, is read once from end to end: every
//! checksum, every record complete, indexes contiguous from the purge mark on, terms never falling, records that both
//! have equal, and the acknowledgement watermark inside. The one damage accepted in sled is an incomplete *last* record
//! that the journal has or that lies beyond the watermark: a crash can leave it.

use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::ack_watermark::AckWatermark;
use crate::block;
use crate::codec::{self, Assembly, MetaKind};
use crate::error::OpenError;
use crate::journal::recovery::{Marks, Replayed, WholeLog};
use crate::position::LogPosition;
use crate::sled_log::SledLog;
use crate::types::{Identity, Record};

/// The meta values as found.
pub(crate) struct Meta {
    pub(crate) identity: Identity,
    pub(crate) incarnation: u64,
    /// Votes and marks, which the journal may have newer.
    pub(crate) marks: Marks,
    /// The last task that sled has done.
    pub(crate) task: u64,
}

/// What the scan found.
pub(crate) struct Scanned {
    /// First record, if any.
    pub(crate) first: Option<u64>,
    /// Last record, or the purge mark.
    pub(crate) last: Option<LogPosition>,
    /// Index of an incomplete last record in sled, to be cut off there.
    pub(crate) torn: Option<u64>,
    /// The index that follows what sled has.
    pub(crate) sled_next: Option<u64>,
}

/// Reads and checks the meta values.
pub(crate) fn meta(log: &SledLog, watermark: &AckWatermark) -> Result<Meta, OpenError> {
    let file = log.file();
    let read = |kind| {
        let value = log.meta(kind).map_err(|error| sled_refusal(file, &error))?;
        value.map_err(|what| OpenError::damaged(file, what))
    };
    let number = |kind| {
        let value = read(kind)?;
        value.map(|(_, data)| codec::decode_u64(&data)).transpose().map_err(|what| OpenError::damaged(file, what))
    };
    let bytes = |kind| Ok(read(kind)?.map(|(sequence, data)| (sequence, Bytes::from(data))));
    let (_, identity) = read(MetaKind::Identity)?.ok_or_else(|| missing(log, "identity"))?;
    let identity = codec::decode_identity(&identity).map_err(|what| OpenError::damaged(file, what))?;
    let incarnation = number(MetaKind::Incarnation)?.ok_or_else(|| missing(log, "start counter"))?;
    let purged = read(MetaKind::Purged)?.map(|(_, data)| codec::decode_position(&data)).transpose();
    let purged = purged.map_err(|what| OpenError::damaged(file, what))?;
    if identity.directory != watermark.directory {
        return Err(OpenError::damaged(
            file,
            "it and the file \"floor\" beside it come from different data directories",
        ));
    }
    if incarnation < watermark.incarnation {
        return Err(missing(log, "latest start counter"));
    }
    let (vote, committed) = (bytes(MetaKind::Vote)?, bytes(MetaKind::Committed)?);
    let marks = Marks { vote, committed, purged, start: number(MetaKind::Start)? };
    let task = read(MetaKind::Task)?.map_or(0, |(task, _)| task);
    Ok(Meta { identity, incarnation, marks, task })
}

fn missing(log: &SledLog, what: &str) -> OpenError {
    OpenError::damaged(log.file(), format!("the {what} that was written to it is missing"))
}

/// Reads the whole log and hands each record to `keep`, with whether sled has it. `sled_marks` are sled's own.
pub(crate) fn log(
    log: &SledLog,
    sled_marks: &Marks,
    replayed: &Replayed,
    watermark: &AckWatermark,
    mut keep: impl FnMut(Record, bool),
) -> Result<Scanned, OpenError> {
    let file = log.file();
    let damaged = |what: String| OpenError::damaged(file, what);
    let marks = &replayed.marks;
    if marks.vote.as_ref().map_or(0, |(sequence, _)| *sequence) < watermark.vote_sequence {
        return Err(missing(log, "latest vote"));
    }
    let mut whole = WholeLog::new(replayed, sled_marks.purged);
    let start = whole.expected();
    if marks.purged.is_none() && log.has_records_below(start).map_err(|error| sled_refusal(file, &error))? {
        return Err(damaged(format!("there are records before {start}, where the log starts")));
    }
    let mut at_watermark = None;
    let mut keep = |record: Record, is_in_sled: bool| {
        at_watermark = at_watermark
            .or(Some(record.position).filter(|at| watermark.last.is_some_and(|last| last.index == at.index)));
        keep(record, is_in_sled);
    };
    let mut assembly = Assembly::default();
    for item in log.values_from(start).map_err(|error| sled_refusal(file, &error))? {
        let (key, value) = item.map_err(|error| sled_refusal(file, &error))?;
        let read = block::read(&mut assembly, &key, &value, |record| {
            if whole.add_of_sled(&record)? {
                keep(record, true);
            }
            Ok(())
        });
        read.map_err(damaged)?;
    }
    let torn = assembly.open_index();
    if let Some(torn) = torn.filter(|torn| *torn != whole.expected()) {
        return Err(damaged(format!("record {} is missing, yet a part of record {torn} is there", whole.expected())));
    }
    for record in whole.add_of_journal().map_err(damaged)? {
        keep(record, false);
    }
    check_watermark(file, marks, watermark, at_watermark, whole.last())?;
    Ok(Scanned { first: whole.first(), last: whole.last(), torn, sled_next: whole.sled_next() })
}

/// Every acknowledged record must be in the log, or purged from it.
fn check_watermark(
    file: &Path,
    marks: &Marks,
    watermark: &AckWatermark,
    at_watermark: Option<LogPosition>,
    last: Option<LogPosition>,
) -> Result<(), OpenError> {
    let Some(acknowledged) = watermark.last else { return Ok(()) };
    if at_watermark == Some(acknowledged) || marks.purged.is_some_and(|purged| purged.index >= acknowledged.index) {
        return Ok(());
    }
    let found = match at_watermark.or(last) {
        Some(found) => format!("ends at or has {found} there"),
        None => "has no record".to_owned(),
    };
    Err(OpenError::damaged(file, format!("the log was acknowledged up to {acknowledged}, and {found}")))
}

/// sled's own error at open.
pub(crate) fn sled_refusal(file: &Path, error: &sled::Error) -> OpenError {
    match error {
        sled::Error::Io(io) if is_system_error(io) => {
            OpenError::Io { what: "open", file: file.to_path_buf(), source: io::Error::new(io.kind(), io.to_string()) }
        }
        other => OpenError::damaged(file, format!("sled refuses it: {other}")),
    }
}

/// Errors of the operating system. sled reports data that it cannot parse as `Other` and `InvalidData`, which is
/// damage.
fn is_system_error(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, OutOfMemory, PermissionDenied, ReadOnlyFilesystem, StorageFull};

    matches!(error.kind(), PermissionDenied | NotFound | StorageFull | ReadOnlyFilesystem | OutOfMemory)
}
