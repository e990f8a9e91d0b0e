//! What the proofs speak of all the time, for all of them to name.

/// An enum, each variant with its name: for people, where nothing else is said.
macro_rules! named {
    ($(#[$of:meta])* $vis:vis enum $kind:ident { $($(#[$about:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$of])*
        $vis enum $kind {
            $($(#[$about])* $variant,)+
        }

        #[allow(dead_code, reason = "some are only named, some only listed")]
        impl $kind {
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            $vis fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(super) use named;

pub(super) use std::collections::{BTreeMap, BTreeSet};
pub(super) use std::path::Path;
pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use std::time::{Duration, Instant};

pub(super) use lockkeeper_api::Code;
pub(super) use lockkeeper_api::locks::Acquire;
pub(super) use lockkeeper_api::nodes::Create;
pub(super) use nix::sys::signal::Signal;
pub(super) use parking_lot::Mutex;
pub(super) use rand::Rng as _;
pub(super) use rand::rngs::StdRng;
pub(super) use tokio::task::{JoinHandle, JoinSet};
pub(super) use tokio_util::sync::CancellationToken;

pub(super) use super::Context;
pub(super) use super::tasks::Tasks;
pub(super) use crate::cluster::{Cluster, Options};
pub(super) use crate::disk_latency::DiskLatency;
pub(super) use crate::http::{Api, Failure};
pub(super) use crate::polling::Polling;
pub(super) use crate::record::{Record, WorkerEvent, boot_us};
pub(super) use crate::stats::{Summary, millis};
pub(super) use crate::verdict::{Failed, OrFailed as _, ProofResult, broken, cannot_run, without_fault};
