//! The body of a frame: what each command changes, in order, as the same sealed values that sled stores. Pure.
//!
//! Every change is absolute: it puts a value under a key, or removes all keys from an index on. So applying the bodies
//! again, in order and up to the last one that the log has, gives the same log.

use crate::codec::{self, MetaKind, Value, encode_meta, encode_position};
use crate::queue::Work;

/// One change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Part { index: u64, part: u16, value: &'a [u8] },
    Meta { kind: MetaKind, value: &'a [u8] },
    RemoveFrom(u64),
}

/// Appends the changes of one command to `out`, and calls `each` after each change. `begins` says that the log has no
/// record and no purge mark, so that the first record is where the log starts.
pub(crate) fn encode<E>(
    work: &Work,
    begins: bool,
    out: &mut Vec<u8>,
    mut each: impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    match work {
        Work::Append(records) => {
            if let Some(first) = records.first().filter(|_| begins) {
                out.extend(encode_meta(MetaKind::Start, 0, &first.position.index.to_le_bytes()));
            }
            for record in records {
                for part in 0..codec::part_count(record.payload.len()) as u16 {
                    codec::encode_part(record, part, out);
                    each(out)?;
                }
            }
            Ok(())
        }
        Work::Vote { vote, sequence } => {
            out.extend(encode_meta(MetaKind::Vote, *sequence, vote));
            each(out)
        }
        Work::Truncate(last) => {
            out.extend(encode_meta(MetaKind::Truncated, last.map_or(0, |last| last.index + 1), &[]));
            each(out)
        }
        Work::Purge(upto) => {
            out.extend(encode_meta(MetaKind::Purged, upto.index, &encode_position(*upto)));
            each(out)
        }
        Work::Nothing => Ok(()),
    }
}

/// The changes of a body; each is checked. The error is a sentence about the damage.
pub(crate) fn changes(mut body: &[u8]) -> impl Iterator<Item = Result<Change<'_>, String>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        let change = next(body).map(|(change, rest)| {
            body = rest;
            change
        });
        if change.is_err() {
            body = &[];
        }
        Some(change)
    })
}

fn next(body: &[u8]) -> Result<(Change<'_>, &[u8]), String> {
    let (value, rest) = codec::split_value(body)?;
    let change = match value {
        Value::Part { index, part, value } => Change::Part { index, part, value },
        Value::Meta { kind: MetaKind::Truncated, value } => {
            Change::RemoveFrom(codec::decode_meta(MetaKind::Truncated, value)?.0)
        }
        Value::Meta { kind: kind @ (MetaKind::Vote | MetaKind::Purged | MetaKind::Start), value } => {
            Change::Meta { kind, value }
        }
        Value::Meta { kind, .. } => return Err(format!("a frame puts {kind:?}")),
    };
    Ok((change, rest))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::types::{LogPosition, Record};

    #[test]
    fn commands_come_back_as_changes_in_order() {
        let record = |index, bytes| Record { position: LogPosition { term: 2, index }, payload: vec![7; bytes].into() };
        let purge = LogPosition { term: 1, index: 3 };
        let works = [
            Work::Append(vec![record(4, 10), record(5, 5000)]),
            Work::Vote { vote: "ballot".into(), sequence: 9 },
            Work::Truncate(Some(LogPosition { term: 2, index: 4 })),
            Work::Nothing,
            Work::Purge(purge),
            Work::Truncate(None),
        ];
        let (mut body, mut calls) = (Vec::new(), 0);
        for (at, work) in works.iter().enumerate() {
            let counted = encode(work, at == 0, &mut body, |_| {
                calls += 1;
                Ok::<_, Infallible>(())
            });
            counted.unwrap();
        }
        let found: Vec<_> = changes(&body).map(Result::unwrap).collect();
        let described: Vec<String> = found
            .iter()
            .map(|change| match change {
                Change::Part { index, part, .. } => format!("part {part} of {index}"),
                Change::Meta { kind, .. } => format!("{kind:?}"),
                Change::RemoveFrom(index) => format!("remove from {index}"),
            })
            .collect();
        assert_eq!(
            described,
            ["Start", "part 0 of 4", "part 0 of 5", "part 1 of 5", "Vote", "remove from 5", "Purged", "remove from 0"]
        );
        assert_eq!(calls, 7, "once for each change but the start, which the first record follows");
        for at in 0..body.len() * 8 {
            body[at / 8] ^= 1 << (at % 8);
            assert!(changes(&body).any(|change| change.is_err()), "bit {at}");
            body[at / 8] ^= 1 << (at % 8);
        }
    }
}
