//! The queue of the writer, bounded in commands and in bytes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::position::LogPosition;
use crate::types::{Done, Record};

/// One thing to make durable.
pub(crate) enum Work {
    Append(Vec<Record>),
    Vote {
        vote: Bytes,
        sequence: u64,
    },
    /// Remove every record after the position, which is the new end of the log; `None` leaves nothing.
    Truncate(Option<LogPosition>),
    Purge(LogPosition),
    /// Nothing to write; only its callback is due, in order.
    Nothing,
}

/// Work and its callback.
pub(crate) struct Command {
    pub(crate) work: Work,
    pub(crate) done: Done,
}

impl Work {
    /// Payload bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Work::Append(records) => records.iter().map(|record| record.payload.len()).sum(),
            Work::Vote { vote, .. } => vote.len(),
            Work::Truncate(_) | Work::Purge(_) | Work::Nothing => 0,
        }
    }
}

/// A bounded queue of commands. Not a channel: the queue and the log that readers see must change under one lock.
pub(crate) struct Queue {
    commands: VecDeque<Command>,
    bytes: usize,
    max_commands: usize,
    max_bytes: usize,
}

impl Queue {
    pub(crate) fn new(max_commands: usize, max_bytes: usize) -> Self {
        Self { commands: VecDeque::new(), bytes: 0, max_commands, max_bytes }
    }

    /// Whether work of this size may enter. Anything may enter an empty queue.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.commands.is_empty() || (self.commands.len() < self.max_commands && self.bytes + bytes <= self.max_bytes)
    }

    pub(crate) fn push(&mut self, command: Command) {
        self.bytes += command.work.bytes();
        self.commands.push_back(command);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Everything that waits.
    pub(crate) fn drain(&mut self) -> Vec<Command> {
        self.bytes = 0;
        self.commands.drain(..).collect()
    }
}
