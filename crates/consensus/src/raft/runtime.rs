//! The runtime on which openraft runs: tokio's, with a random generator that can be seeded.
//!
//! openraft draws its election timeouts from a generator of its runtime. In production that is the thread's own; the
//! simulation seeds the one thread on which all of its nodes run.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::TokioRuntime;
use rand10::rngs::{StdRng, ThreadRng};
use rand10::{Rng, SeedableRng, TryRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Makes every random choice of consensus on this thread follow from the seed. For simulation only: a party that can
/// predict election timeouts can prevent elections.
pub fn seed_this_thread(seed: u64) {
    SEEDED.with_borrow_mut(|seeded| *seeded = Some(StdRng::seed_from_u64(seed)));
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

/// Draws from the thread's seeded generator if it has one, and from the usual one otherwise.
pub(crate) struct RuntimeRng(Option<ThreadRng>);

impl RuntimeRng {
    fn new() -> RuntimeRng {
        let seeded = SEEDED.with_borrow(Option::is_some);
        RuntimeRng((!seeded).then(rand10::rng))
    }

    fn draw<T>(&mut self, draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
        match &mut self.0 {
            Some(usual) => draw(usual),
            None => SEEDED.with_borrow_mut(|seeded| match seeded {
                Some(seeded) => draw(seeded),
                None => draw(&mut rand10::rng()),
            }),
        }
    }
}

impl TryRng for RuntimeRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.draw(|rng| rng.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.draw(|rng| rng.next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.draw(|rng| rng.fill_bytes(bytes));
        Ok(())
    }
}

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = RuntimeRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    #[track_caller]
    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> RuntimeRng {
        RuntimeRng::new()
    }

    fn new(threads: usize) -> Self {
        Runtime(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_thread_draws_the_same_and_another_thread_does_not_hear_of_it() {
        let draw = |seed| {
            std::thread::spawn(move || {
                if let Some(seed) = seed {
                    seed_this_thread(seed);
                }
                // A new one each time, as openraft takes them.
                (0..8).map(|_| Runtime::thread_rng().next_u64()).collect::<Vec<_>>()
            })
            .join()
            .unwrap()
        };
        let first = draw(Some(7));
        assert_eq!(first, draw(Some(7)));
        assert_ne!(first, draw(Some(8)));
        assert_ne!(draw(None), draw(None));
        let distinct: std::collections::BTreeSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), first.len());
    }
}
