//! What a row of the table of operations (`operations.rs`) says.

/// A row.
#[derive(Debug)]
pub struct Row {
    /// ZooKeeper's name of the operation.
    pub name: &'static str,
    /// ZooKeeper's abbreviation of it.
    pub abbreviation: &'static str,
    /// The reply to it, though one to check may also have a stat (`reply.rs`); none if clients do not ask for it.
    pub reply: Option<ReplyKind>,
    /// The rules.
    pub rules: Rules,
}

/// The rules of an operation.
#[derive(Debug)]
pub struct Rules {
    /// Whether it is a transaction: the reply's header then has the zxid of its own change.
    pub transaction: bool,
    /// Whether it counts where requests are limited by the paths that they name. What gives back must not: no load of
    /// others may have it refused (promise P13).
    pub charged: bool,
    /// The xid of its requests, if clients do not choose it.
    pub xid: Option<i32>,
}

/// What a reply has: the variant of [`Reply`](crate::Reply).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "described at `crate::Reply`")]
pub enum ReplyKind {
    Empty,
    Path,
    Created,
    Stat,
    Data,
    Acl,
    Children,
    ChildrenAndStat,
    Multi,
    Error,
    Ephemerals,
    ChildrenNumber,
    Identities,
    Token,
}

/// Reads nodes.
pub(crate) const READS: Rules = Rules { transaction: false, charged: true, xid: None };

/// Changes nodes.
pub(crate) const CHANGES: Rules = Rules { transaction: true, ..READS };

/// Gives back what is there.
pub(crate) const GIVES_BACK: Rules = Rules { charged: false, ..CHANGES };

/// Is about the session, its connection or the ensemble alone.
pub(crate) const OF_SESSION: Rules = Rules { charged: false, ..READS };
