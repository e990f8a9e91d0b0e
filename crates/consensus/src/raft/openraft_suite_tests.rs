//! openraft's own storage test suite against our log store and state machine on a real store. It checks what openraft
//! relies on, not what survives a crash (that is the store's own test).

use std::io::{Read, Write};
use std::sync::Arc;

use lockkeeper_store::{Identity, LogPosition, Options, SnapshotStore, Store};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tokio::sync::watch;

use crate::application::{Committed, Restored, SnapshotEncoder, StateMachine};
use crate::blocking::BlockingPool;
use crate::raft::log::log_store::LogStore;
use crate::raft::state_machine::StateMachineAdapter;
use crate::raft::types::TypeConfig;

struct Nothing;

impl StateMachine for Nothing {
    fn apply(&self, _: &[Committed]) {}

    fn snapshot(&self) -> SnapshotEncoder {
        Box::new(|to: &mut dyn Write| to.write_all(b"state"))
    }

    fn check(&self, _: Option<u64>, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn restore(self: Arc<Self>, _: LogPosition, from: &mut dyn Read) -> Result<Restored, String> {
        let mut text = String::new();
        from.read_to_string(&mut text).map_err(|error| error.to_string())?;
        if text == "state" { Ok(Box::new(|| {})) } else { Err(format!("not what was written: {text:?}")) }
    }
}

struct StoreFactory;

/// Closes the store before its directory goes.
struct Guard {
    store: Option<Store>,
    _dir: tempfile::TempDir,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            store.close().unwrap();
        }
    }
}

impl StoreBuilder<TypeConfig, LogStore, StateMachineAdapter, Guard> for StoreFactory {
    async fn build(&self) -> Result<(Guard, LogStore, StateMachineAdapter), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(Arc::new(|error| panic!("{error}")));
        options.free_floor_bytes = 0;
        let identity = Identity { cluster: "suite".into(), node: 1, directory: 1 };
        let (store, _) = Store::open(dir.path(), &identity, options.clone()).unwrap();
        let snapshots = SnapshotStore::open(dir.path(), store.bounds(), &options).unwrap();
        let adapter = StateMachineAdapter::restore(
            Arc::new(Nothing),
            Arc::new(snapshots),
            Arc::new(BlockingPool),
            watch::channel(0).0,
        )
        .unwrap();
        Ok((
            Guard { store: Some(store.clone()), _dir: dir },
            LogStore::new(Arc::new(store), 0, Arc::new(BlockingPool), Arc::new(|_| {})).unwrap(),
            adapter,
        ))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_storage_suite() {
    Suite::test_all(StoreFactory).await.unwrap();
}
