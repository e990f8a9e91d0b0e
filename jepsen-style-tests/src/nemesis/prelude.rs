//! What the nemeses speak of all the time, for all of them to name.

pub(super) use std::collections::BTreeMap;
pub(super) use std::path::Path;
pub(super) use std::time::{Duration, Instant};

pub(super) use async_trait::async_trait;
pub(super) use nix::sys::signal::Signal;
pub(super) use rand::Rng as _;
pub(super) use rand::rngs::StdRng;
pub(super) use rand::seq::{IndexedRandom as _, SliceRandom as _};

pub(super) use super::observe::{Lead, LinkCounts, ObservedLink};
pub(super) use super::{Lack, Nemesis, TestBed, members, observe};
pub(super) use crate::cluster::{Cluster, Options};
pub(super) use crate::http::Api;
pub(super) use crate::net::{Endpoint, LinkFault, Listener};
pub(super) use crate::polling::Polling;
pub(super) use crate::process::Process;
pub(super) use crate::verdict::{Failed, broken, cannot_run};
