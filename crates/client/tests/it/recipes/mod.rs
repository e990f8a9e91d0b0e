//! The recipes against a real cluster: without faults, when participants die, and when futures are dropped.

mod counting;
mod leading;
mod limits;
mod meeting;
mod outage;
mod queueing;
mod scheduling;
mod support;
mod watching;
