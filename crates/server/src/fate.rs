//! The reason why a node cannot go on. Whoever finds it seals the node's fate, on any thread; the node's main task sees
//! it and ends. The first reason counts.

use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper_mutants::broken_invariant;
use tokio::sync::watch;

use crate::error::ServeError;

/// Within so long a runtime that works has seen that the node's fate is sealed.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// See the module's text.
#[derive(Clone)]
pub(crate) struct Fate(watch::Sender<Option<String>>);

impl Fate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(crate) fn seal(&self, why: String) {
        self.0.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(why);
            }
            first
        });
    }

    /// As [`seal`](Self::seal), for a failure of the disk. The runtime itself may wait for that disk
    /// (`storage.inline_sync`), and then never sees anything: a thread ends the process in its place.
    pub(crate) fn seal_without_runtime(&self, why: String) {
        self.seal_or(why, SEEN_WITHIN, |error| {
            // As the program prints it. Nothing else can be done when that fails.
            let _ = writeln!(std::io::stderr(), "lockkeeper serve: {error}");
            std::process::exit(i32::from(error.exit_code()))
        });
    }

    fn seal_or(&self, why: String, within: Duration, end: impl FnOnce(ServeError) + Send + 'static) {
        self.seal(why.clone());
        let fate = self.clone();
        let watch = move || {
            std::thread::sleep(within);
            // Whoever looks goes when it has seen it. If nobody looks, there is no node any more.
            if fate.0.receiver_count() > 0 {
                end(ServeError::Fatal(why));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("fate".into()).spawn(watch) {
            tracing::warn!(%error, "cannot start a thread that ends the process should the runtime stand still");
        }
    }

    pub(crate) async fn sealed(&self) -> ServeError {
        let (mut sealed, mut broken) = (self.0.subscribe(), BROKEN.0.subscribe());
        // The senders live as long as `self`.
        let why = tokio::select! {
            why = sealed.wait_for(Option::is_some) => why.map(|why| why.clone()),
            why = broken.wait_for(Option::is_some) => why.map(|why| why.clone()),
        };
        ServeError::Fatal(why.ok().flatten().unwrap_or_default())
    }
}

/// The first broken invariant of this process, whichever thread found it. Panics of tasks are caught, by tokio at the
/// latest, so a hook notes it.
pub(crate) static BROKEN: LazyLock<Fate> = LazyLock::new(|| {
    let (fate, usual) = (Fate::new(), std::panic::take_hook());
    let found = fate.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(what) = broken_invariant(panic.payload()) {
            found.seal(format!("{what}; start again, and report this"));
        }
        usual(panic);
    }));
    fate
});

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn the_first_reason_to_end_is_told() {
        let fate = Fate::new();
        let waiting = fate.sealed();
        fate.seal("the disk is full".into());
        fate.seal("everything else failed too".into());
        assert_eq!(waiting.await.to_string(), "stopped: the disk is full");
    }

    /// The runtime of this test stands still while it waits for the other thread.
    #[tokio::test]
    async fn a_runtime_that_stands_still_does_not_keep_the_process() {
        let fate = Fate::new();
        let waiting = fate.sealed();
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        let (send, ended) = channel();
        fate.seal_or("the disk is stuck".into(), Duration::ZERO, move |error| send.send(error.to_string()).unwrap());
        assert_eq!(ended.recv().unwrap(), "stopped: the disk is stuck");
        assert_eq!(waiting.await.to_string(), "stopped: the disk is stuck");
        // It was seen: whoever ends the process has been told.
        let (send, ended) = channel::<String>();
        fate.seal_or("again".into(), Duration::ZERO, move |error| send.send(error.to_string()).unwrap());
        assert!(ended.recv().is_err(), "the thread went without a word");
    }
}
