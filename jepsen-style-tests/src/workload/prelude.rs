//! What the workloads speak of all the time, for all of them to name.

pub(super) use std::collections::{BTreeMap, BTreeSet};
pub(super) use std::time::Duration;

pub(super) use async_trait::async_trait;
pub(super) use lockkeeper_checkers::lives::Life;
pub(super) use lockkeeper_client::api::locks::Mode;
pub(super) use lockkeeper_client::api::nodes::Create;
pub(super) use lockkeeper_client::api::{Code, Data};
pub(super) use lockkeeper_client::{Client, Session};
pub(super) use rand::Rng as _;
pub(super) use serde::{Deserialize, Serialize};
pub(super) use serde_json::Value;
pub(super) use tokio_util::sync::CancellationToken;
pub(super) use uuid::Uuid;

pub(super) use super::client_kit::{ClientKit, sure};
pub(super) use super::lock_client::LockClient;
pub(super) use super::{ClientContext, Facts, OpenOp, Recorder, Workload};
pub(super) use crate::check::Check;
pub(super) use crate::history::ops::{self, AliveUntil, Granted, SessionRef, TokenRef};
pub(super) use crate::history::{Completion, Op, Recorded, SessionLife};
pub(super) use crate::record::boot_us;
