use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_engines::{LockEngine, MemoryEngine};
use lockkeeper_engines_contract::Subject;

struct Memory(Arc<MemoryEngine>);

#[async_trait]
impl Subject for Memory {
    fn engine(&self) -> Arc<dyn LockEngine> {
        self.0.clone()
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn break_lock(&self, lock: &str) {
        self.0.break_lock(lock);
    }
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let printed = crate::example::run("memory", &[]).await.unwrap();
    assert_eq!(printed, ["write under token 1", "write under token 2"]);
    crate::keeps_the_contract(&Memory(Arc::default())).await;
}
