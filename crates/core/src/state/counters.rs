//! Bounded addition to the decimal number that a node holds, decided when it is applied: one log entry, however many
//! callers add at the same time.

use super::nodes::Maker;
use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::{AclEntry, Permissions};
use crate::command::{NodeKind, Sequential};
use crate::data::NodeData;
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// The arguments of an addition.
pub(crate) struct Addition {
    pub(crate) delta: i64,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
}

impl Addition {
    /// The sum, if it is within the bounds. A bound counts only in the direction of the summand, so that a number which
    /// is beyond a bound can come back.
    fn sum(&self, path: &NodePath, value: i64) -> Result<i64, Refusal> {
        let Self { delta, .. } = *self;
        let bound = if delta > 0 { self.max.unwrap_or(i64::MAX) } else { self.min.unwrap_or(i64::MIN) };
        let is_within = |sum: &i64| if delta > 0 { *sum <= bound } else { *sum >= bound };
        match value.checked_add(delta).filter(|sum| delta == 0 || is_within(sum)) {
            Some(sum) => Ok(sum),
            None => Err(Refusal::OutOfBounds { path: path.clone(), value, delta, bound }),
        }
    }
}

impl Transaction<'_> {
    /// Adds to the number in a node.
    pub(crate) fn add(&mut self, path: &NodePath, addition: &Addition) -> Result<Reply, Refusal> {
        let Some(node) = self.tree.get(path) else {
            let sum = addition.sum(path, 0)?;
            if addition.delta == 0 {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                self.check_access(&parent, self.node(&parent)?, Permissions::CREATE)?;
                return Ok(Reply::Added(sum));
            }
            let acl = self.tree.share_acl(&[AclEntry::open()]);
            let node = Node::new(text(sum), acl, NodeKind::Persistent, None);
            self.create_checked(path, Sequential::No, node, Maker::Client)?;
            return Ok(Reply::Added(sum));
        };
        self.check_access(path, node, Permissions::WRITE)?;
        let value = number_in(path, &node.data)?;
        let sum = addition.sum(path, value)?;
        if addition.delta != 0 {
            self.set_data(path, &text(sum), None)?;
        }
        Ok(Reply::Added(sum))
    }
}

fn text(number: i64) -> NodeData {
    number.to_string().as_bytes().into()
}

fn number_in(path: &NodePath, data: &[u8]) -> Result<i64, Refusal> {
    let text = std::str::from_utf8(data).ok();
    let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Refusal::NotANumber { path: path.clone(), bytes })
}
