//! One applied command of the log: the input of all checks that follow the replicated order.

use lockkeeper_core::{Command, Event, NodeEventKind, Outcome};

/// A command, and what the replicas made of it.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Where in the log.
    pub index: u64,
    /// Term of the log entry.
    pub term: u64,
    /// The replicated clock, in ms.
    pub clock_ms: u64,
    /// True time at which the first replica had applied it.
    pub at_us: u64,
    /// What was asked.
    pub command: &'a Command,
    /// What came of it.
    pub outcome: &'a Outcome,
}

impl<'a> Change<'a> {
    /// What happened to nodes, in order: zxid, kind and path.
    pub fn node_events(&self) -> impl Iterator<Item = (u64, NodeEventKind, &'a str)> {
        self.outcome.events.iter().filter_map(|event| match event {
            Event::Node { zxid, kind, path, .. } => Some((zxid.0, *kind, path.as_str())),
            Event::ForcedDeletion { .. }
            | Event::SessionOpened { .. }
            | Event::SessionAttached { .. }
            | Event::SessionEnded { .. } => None,
        })
    }

    /// The zxids that it took, in order, with their events.
    pub fn transactions(&self) -> impl Iterator<Item = (u64, &'a [Event])> {
        self.outcome.events.chunk_by(|a, b| zxid_of(a) == zxid_of(b)).map(|events| (zxid_of(&events[0]), events))
    }
}

/// When an event happened.
pub fn zxid_of(event: &Event) -> u64 {
    match event {
        Event::Node { zxid, .. }
        | Event::ForcedDeletion { zxid, .. }
        | Event::SessionOpened { zxid, .. }
        | Event::SessionAttached { zxid, .. }
        | Event::SessionEnded { zxid, .. } => zxid.0,
    }
}
