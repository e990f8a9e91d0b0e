//! Linearizability of reads and writes (promise P7), by the zxid that every answer carries, which is a total order.
//!
//! Real time is respected if no answer is true at an earlier point than another that was given before it was
//! requested. A register behaves as one if each read gives the last write up to the point at which the read is true.
//! Both together are linearizability, without a search. Another check makes sure that the order is the same on all
//! replicas.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, NodeData, NodeEventKind, NodeOp, Op, Outcome, Reply};

use super::Checked;
use super::change::Change;

/// The data of a node over time; none where there was no node, which is not the same as null.
type Values = Vec<(u64, Option<NodeData>)>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Linearizable {
    /// The latest point at which an answer was true that somebody has.
    floor: u64,
    values: BTreeMap<String, Values>,
    versions: BTreeMap<String, i32>,
}

impl Linearizable {
    /// A linearizable operation begins: its answer must not be older than this.
    pub fn began(&self) -> u64 {
        self.floor
    }

    /// It was answered.
    ///
    /// # Errors
    /// If it is true only at an earlier point than what had been answered before it began.
    pub fn answered(&mut self, what: &str, began: u64, zxid: u64) -> Checked {
        self.floor = self.floor.max(zxid);
        if zxid >= began {
            return Ok(());
        }
        Err(format!("{what} is true at {zxid}, although an answer of {began} had been given before it was asked for"))
    }

    /// A read of a node's data gave this, true at `zxid`.
    ///
    /// # Errors
    /// If another value was there.
    pub fn read(&self, path: &str, zxid: u64, data: Option<&NodeData>) -> Checked {
        let values = self.values.get(path).map_or(&[][..], Vec::as_slice);
        let last = values.partition_point(|(at, _)| *at <= zxid).checked_sub(1).map(|at| &values[at]);
        let expected = last.and_then(|(_, value)| value.as_ref());
        if expected == data {
            return Ok(());
        }
        let show = |data: Option<&NodeData>| match data.map(NodeData::bytes) {
            None => "no node".to_owned(),
            Some(None) => "null".to_owned(),
            Some(Some(bytes)) => format!("{:?}", String::from_utf8_lossy(bytes)),
        };
        Err(format!("{path} at {zxid} was read as {}, and is {}", show(data), show(expected)))
    }

    /// Takes in what a command did to data.
    ///
    /// # Errors
    /// If it went through although it asked for another version of what it replaces.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let mut written = Ok(());
        if let Command::Do { op, .. } = change.command
            && let Outcome { zxid, reply: Ok(reply), changed: true, .. } = change.outcome
        {
            written = self.written(zxid.0, op, reply);
        }
        // What a multi made and removed again is gone after it.
        for (zxid, kind, path) in change.node_events() {
            match kind {
                NodeEventKind::Deleted => {
                    self.put(path, zxid, None);
                    self.versions.remove(path);
                }
                NodeEventKind::Created => drop(self.versions.insert(path.to_owned(), 0)),
                NodeEventKind::DataChanged => *self.versions.entry(path.to_owned()).or_default() += 1,
                NodeEventKind::ChildrenChanged => {}
            }
        }
        written
    }

    fn written(&mut self, zxid: u64, op: &Op, reply: &Reply) -> Checked {
        match (op, reply) {
            (Op::Node(op), reply) => self.written_by(zxid, op, reply),
            (Op::Multi(ops), Reply::Multi(replies)) => {
                ops.iter().zip(replies).try_for_each(|(op, reply)| self.written_by(zxid, op, reply))
            }
            _ => Ok(()),
        }
    }

    fn written_by(&mut self, zxid: u64, op: &NodeOp, reply: &Reply) -> Checked {
        match (op, reply) {
            (NodeOp::Create { data, .. }, Reply::Created { path, .. }) => {
                self.put(path.as_str(), zxid, Some(data.clone()));
                Ok(())
            }
            (NodeOp::SetData { path, data, version }, _) => {
                self.guarded(zxid, path.as_str(), *version)?;
                self.put(path.as_str(), zxid, Some(data.clone()));
                Ok(())
            }
            (NodeOp::Check { path, version }, _) => self.guarded(zxid, path.as_str(), *version),
            _ => Ok(()),
        }
    }

    /// A compare-and-set, or a guard, that went through.
    fn guarded(&self, zxid: u64, path: &str, version: Option<i32>) -> Checked {
        let actual = self.versions.get(path).copied();
        match version {
            Some(version) if actual != Some(version) => {
                Err(format!("{path} has version {actual:?}, and what asked for {version} went through at {zxid}"))
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, path: &str, zxid: u64, data: Option<NodeData>) {
        let values = self.values.entry(path.to_owned()).or_default();
        values.push((zxid, data));
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_history::{History, data, path};
    use super::*;

    #[test]
    fn answers_that_go_back_in_time_are_refused() {
        let mut reads = Linearizable::default();
        let (early, late) = (reads.began(), 5);
        reads.answered("a write", early, late).unwrap();
        // Asked for before that answer: may be older.
        reads.answered("a slow read", early, 3).unwrap();
        let after = reads.began();
        reads.answered("a read", after, 5).unwrap();
        reads.answered("a stale read", after, 4).unwrap_err();
    }

    #[test]
    fn reads_of_what_was_not_there_are_refused() {
        let mut reads = Linearizable::default();
        let mut history = History::default();
        let set = |text: &str| NodeOp::SetData { path: path("/r"), data: data(text).into(), version: None };
        let made = history.create("/r", "one");
        history.each(|change| reads.change(change).unwrap());
        let one = made;
        let two = history.run(None, set("two"));
        history.each(|change| reads.change(change).unwrap());
        let gone = history.run(None, NodeOp::Delete { path: path("/r"), version: None });
        history.each(|change| reads.change(change).unwrap());
        let (first, second) = (NodeData::from(*b"one"), NodeData::from(*b"two"));
        reads.read("/r", one, Some(&first)).unwrap();
        reads.read("/r", two, Some(&second)).unwrap();
        reads.read("/r", gone, None).unwrap();
        reads.read("/other", gone, None).unwrap();
        reads.read("/r", two, Some(&first)).unwrap_err();
        reads.read("/r", one, Some(&second)).unwrap_err();
        reads.read("/r", gone, Some(&second)).unwrap_err();
        reads.read("/r", one, None).unwrap_err();
    }

    #[test]
    fn null_read_as_empty_is_refused() {
        let (mut reads, mut history) = (Linearizable::default(), History::default());
        history.create("/r", "one");
        let nulled = history.run(None, NodeOp::SetData { path: path("/r"), data: NodeData::NULL, version: None });
        history.each(|change| reads.change(change).unwrap());
        reads.read("/r", nulled, Some(&NodeData::NULL)).unwrap();
        let error = reads.read("/r", nulled, Some(&NodeData::from([]))).unwrap_err();
        assert!(error.contains("read as \"\", and is null"), "{error}");
    }

    #[test]
    fn a_guard_that_was_not_looked_at_is_refused() {
        let (mut reads, mut history) = (Linearizable::default(), History::default());
        history.create("/r", "one");
        let set = |version| NodeOp::SetData { path: path("/r"), data: data("two").into(), version: Some(version) };
        history.run(None, set(0));
        history.each(|change| reads.change(change).unwrap());
        history.run(None, Op::Multi(vec![NodeOp::Check { path: path("/r"), version: Some(1) }, set(1)]));
        let (mut command, outcome) = history.last();
        if let Command::Do { op: Op::Multi(ops), .. } = &mut command {
            ops[0] = NodeOp::Check { path: path("/r"), version: Some(7) };
        }
        reads.change(&super::super::test_history::change(&command, &outcome, 9)).unwrap_err();
    }
}
