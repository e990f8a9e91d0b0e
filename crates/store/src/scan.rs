//! The scan at open: is everything there that was acknowledged, and is it what was written?
//!
//! sled checks its own messages, but where a check fails it ends its log (at the tail) or skips the rest of a segment
//! (elsewhere) without an error. So the log is read once from end to end: every part's checksum, every record complete,
//! indexes contiguous from the purge mark on, terms never falling, and the acknowledgement watermark inside. The one
//! damage accepted is an incomplete *last* record beyond the watermark: a crash can leave it, and it was never
//! acknowledged.

use std::io;
use std::path::Path;

use crate::ack_watermark::AckWatermark;
use crate::codec::{self, Assembly, MetaKind};
use crate::error::OpenError;
use crate::position::LogPosition;
use crate::sled_log::SledLog;
use crate::types::{Identity, Record};

/// The meta values as found.
pub(crate) struct Meta {
    pub(crate) identity: Identity,
    pub(crate) incarnation: u64,
    pub(crate) vote: Option<(u64, Vec<u8>)>,
    pub(crate) committed: Option<(u64, Vec<u8>)>,
    pub(crate) purged: Option<LogPosition>,
    pub(crate) start: Option<u64>,
}

/// What the scan found.
pub(crate) struct Scanned {
    /// First record, if any.
    pub(crate) first: Option<u64>,
    /// Last record, or the purge mark.
    pub(crate) last: Option<LogPosition>,
    /// Index of an incomplete last record, to be cut off.
    pub(crate) torn: Option<u64>,
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
    let missing = |what: &str| OpenError::damaged(file, format!("the {what} that was written to it is missing"));
    let (_, identity) = read(MetaKind::Identity)?.ok_or_else(|| missing("identity"))?;
    let identity = codec::decode_identity(&identity).map_err(|what| OpenError::damaged(file, what))?;
    let incarnation = number(MetaKind::Incarnation)?.ok_or_else(|| missing("start counter"))?;
    let vote = read(MetaKind::Vote)?;
    let purged = read(MetaKind::Purged)?.map(|(_, data)| codec::decode_position(&data)).transpose();
    let purged = purged.map_err(|what| OpenError::damaged(file, what))?;
    if identity.directory != watermark.directory {
        return Err(OpenError::damaged(
            file,
            "it and the file \"floor\" beside it come from different data directories",
        ));
    }
    if incarnation < watermark.incarnation {
        return Err(missing("latest start counter"));
    }
    if vote.as_ref().map_or(0, |(sequence, _)| *sequence) < watermark.vote_sequence {
        return Err(missing("latest vote"));
    }
    let (committed, start) = (read(MetaKind::Committed)?, number(MetaKind::Start)?);
    Ok(Meta { identity, incarnation, vote, committed, purged, start })
}

/// Reads the whole log and hands each record to `keep`.
pub(crate) fn log(
    log: &SledLog,
    meta: &Meta,
    watermark: &AckWatermark,
    mut keep: impl FnMut(Record),
) -> Result<Scanned, OpenError> {
    let file = log.file();
    let damaged = |what: String| OpenError::damaged(file, what);
    let start = match (meta.purged, meta.start) {
        (Some(purged), _) => purged.index + 1,
        (None, start) => start.unwrap_or(0),
    };
    if meta.purged.is_none() && log.has_parts_below(start).map_err(|error| sled_refusal(file, &error))? {
        return Err(damaged(format!("there are records before {start}, where the log starts")));
    }
    let mut found = Scanned { first: None, last: meta.purged, torn: None };
    let mut at_watermark = None;
    let mut assembly = Assembly::default();
    let mut expected = start;
    for item in log.parts_from(start) {
        let (key, value) = item.map_err(|error| sled_refusal(file, &error))?;
        let part = codec::decode_part(&key, &value).map_err(damaged)?;
        let Some(record) = assembly.push(&part).map_err(damaged)? else { continue };
        let position = record.position;
        if position.index != expected {
            return Err(damaged(format!("record {expected} is missing, yet record {} is there", position.index)));
        }
        if found.last.is_some_and(|last| position.term < last.term) {
            return Err(damaged(format!("the term falls at record {expected}")));
        }
        if watermark.last.is_some_and(|watermark| watermark.index == position.index) {
            at_watermark = Some(position);
        }
        found.first = found.first.or(Some(position.index));
        found.last = Some(position);
        expected += 1;
        keep(record);
    }
    found.torn = assembly.open_index();
    if let Some(torn) = found.torn.filter(|torn| *torn != expected) {
        return Err(damaged(format!("record {expected} is missing, yet a part of record {torn} is there")));
    }
    check_watermark(file, meta, watermark, at_watermark, found.last)?;
    Ok(found)
}

/// Every acknowledged record must be in the log, or purged from it.
fn check_watermark(
    file: &Path,
    meta: &Meta,
    watermark: &AckWatermark,
    at_watermark: Option<LogPosition>,
    last: Option<LogPosition>,
) -> Result<(), OpenError> {
    let Some(acknowledged) = watermark.last else { return Ok(()) };
    if at_watermark == Some(acknowledged) || meta.purged.is_some_and(|purged| purged.index >= acknowledged.index) {
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
