//! The children of a node, in order of their names. A child is kept by its path, whose text is that of the tree's key:
//! the paths of siblings differ in their names alone, so their order is that of the names.

use std::iter::FusedIterator;
use std::ops::Bound;

use imbl::OrdSet;
use imbl::ordset::Iter;
use imbl::shared_ptr::DefaultSharedPtr;

use crate::path::NodePath;

/// Most directories of locks have one child, for which a set takes ten times the memory.
#[derive(Clone, Debug)]
pub(crate) enum Children {
    One(Option<NodePath>),
    /// A node that has had more than one child keeps its set until it has none.
    Many(OrdSet<NodePath>),
}

impl Default for Children {
    fn default() -> Self {
        Self::NONE
    }
}

impl Children {
    /// No children.
    pub(crate) const NONE: Self = Self::One(None);

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(one) => usize::from(one.is_some()),
            Self::Many(many) => many.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains(&self, path: &NodePath) -> bool {
        match self {
            Self::One(one) => one.as_ref() == Some(path),
            Self::Many(many) => many.contains(path),
        }
    }

    pub(crate) fn insert(&mut self, path: NodePath) {
        match self {
            Self::One(one @ None) => *one = Some(path),
            Self::One(Some(first)) if *first == path => {}
            Self::One(Some(first)) => *self = Self::Many(OrdSet::from_iter([first.clone(), path])),
            Self::Many(many) => drop(many.insert(path)),
        }
    }

    pub(crate) fn remove(&mut self, path: &NodePath) {
        let is_empty = match self {
            Self::One(one) => one.as_ref() == Some(path),
            Self::Many(many) => many.remove(path).is_some() && many.is_empty(),
        };
        if is_empty {
            *self = Self::NONE;
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> ChildIter<'_> {
        match self {
            Self::One(one) => ChildIter { one: one.as_ref(), many: None, left: self.len() },
            Self::Many(many) => ChildIter { one: None, many: Some(many.iter()), left: many.len() },
        }
    }

    /// Those whose path comes after this text; found in O(log n).
    pub(crate) fn after(&self, path: String) -> impl Iterator<Item = &NodePath> + use<'_> {
        let (one, many) = match self {
            Self::One(one) => (one.as_ref().filter(|one| one.as_str() > path.as_str()), None),
            Self::Many(many) => (None, Some(many.range::<_, str>((Bound::Excluded(path.as_str()), Bound::Unbounded)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Compares the children, not their representation.
impl PartialEq for Children {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The children of a node, in order of their names.
#[derive(Clone)]
pub(crate) struct ChildIter<'a> {
    one: Option<&'a NodePath>,
    many: Option<Iter<'a, NodePath, DefaultSharedPtr>>,
    left: usize,
}

impl<'a> Iterator for ChildIter<'a> {
    type Item = &'a NodePath;

    fn next(&mut self) -> Option<&'a NodePath> {
        let next = self.one.take().or_else(|| self.many.as_mut()?.next());
        self.left -= usize::from(next.is_some());
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ChildIter<'_> {}
impl FusedIterator for ChildIter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).unwrap()
    }

    #[test]
    fn one_child_and_many_are_the_same_to_readers() {
        let (mut kept, mut fresh) = (Children::default(), Children::default());
        for name in ["/d/b", "/d/a", "/d/c"] {
            kept.insert(path(name));
            kept.insert(path(name));
        }
        assert_eq!(kept.iter().map(NodePath::name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(kept.after("/d/a".into()).map(NodePath::name).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((kept.len(), kept.iter().len()), (3, 3));
        kept.remove(&path("/d/a"));
        kept.remove(&path("/d/c"));
        kept.remove(&path("/d/never"));
        fresh.insert(path("/d/b"));
        assert!(matches!((&kept, &fresh), (Children::Many(_), Children::One(Some(_)))) && kept == fresh);
        for children in [&mut kept, &mut fresh] {
            assert!(children.contains(&path("/d/b")) && !children.contains(&path("/d/a")));
            assert_eq!((children.after("/d/a".into()).count(), children.after("/d/b".into()).count()), (1, 0));
            children.remove(&path("/d/b"));
            assert!(children.is_empty() && children.iter().next().is_none() && matches!(children, Children::One(None)));
        }
    }
}
