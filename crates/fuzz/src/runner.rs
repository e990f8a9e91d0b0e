//! Runs a target on mutations of its seeds, the same for the same seed number.
//!
//! Input `n` depends only on the seed number and `n`, so that a failing input can be made again without its file. The
//! runner learns nothing from coverage: it reaches only code that a few changes to a valid input reach. libFuzzer goes
//! further.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Target;

/// Time limit per input.
pub const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Longest input.
const MAX_BYTES: usize = 64 * 1024;
/// Most changes to one input.
const MAX_CHANGES: u64 = 8;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inputs tried.
    pub inputs: u64,
    /// Duration of the run.
    pub took: Duration,
    /// The first failing input.
    pub found: Option<Found>,
}

/// A failing input.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number.
    pub number: u64,
    /// The input.
    pub input: Vec<u8>,
    /// The panic's message.
    pub what: String,
}

/// A small random number generator: the inputs of a seed must be the same everywhere.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Input `number` of a seed number. The first ones are the seeds themselves.
pub fn input(seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    let whole = usize::try_from(number).ok().and_then(|number| seeds.get(number));
    if let Some(whole) = whole {
        return whole.clone();
    }
    let mut random = SplitMix64(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
    let mut bytes = seeds.get(random.below(seeds.len())).cloned().unwrap_or_default();
    for _ in 0..=random.next() % MAX_CHANGES {
        change(&mut random, &mut bytes, seeds);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn change(random: &mut SplitMix64, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    /// Boundary values of lengths, counts and versions.
    const BOUNDARIES: [u64; 12] =
        [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX];
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(16)).min(bytes.len());
    let boundary = BOUNDARIES[random.below(BOUNDARIES.len())];
    match random.below(10) {
        0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
        2 => bytes.insert(at, boundary as u8),
        3 => drop(bytes.drain(at..end)),
        4 => bytes.truncate(at),
        5 => {
            let part = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, part));
        }
        6 => {
            let other = seeds.get(random.below(seeds.len())).map_or(&[][..], |other| &other[..]);
            let from = random.below(other.len() + 1);
            let part = other[from..(from + random.below(64)).min(other.len())].to_vec();
            drop(bytes.splice(at..end, part));
        }
        7 => overwrite(bytes, at, &boundary.to_be_bytes()[8 - (1 << random.below(4))..]),
        8 => overwrite(bytes, at, &boundary.to_le_bytes()[..1 << random.below(4)]),
        _ => drop(bytes.splice(at..at, varint(boundary))),
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(with) {
        *byte = *new;
    }
}

/// A number as postcard encodes it.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

thread_local! {
    /// Message and place of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panic messages instead of printing them: the code under a target may catch thousands of panics.
pub fn silence_panics() {
    std::panic::set_hook(Box::new(|panic| PANIC.set(panic.to_string())));
}

fn message(panic: &(dyn Any + Send)) -> String {
    let kept = PANIC.take();
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    if kept.is_empty() { text.unwrap_or_default() } else { kept }
}

/// Examines one input and aborts the process if it fails. For libFuzzer, which would take any panic for a failure, even
/// one that the code under the target catches.
pub fn examine_or_abort(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.examine)(input))) {
        eprintln!("{}: {}", target.name, message(&*panic));
        std::process::abort();
    }
}

/// Tries inputs `from`.. of a seed number until the time is over, `most` inputs were tried or one fails. An input that
/// takes longer than [`TIME_LIMIT`] is passed to `stuck`, which should end the process.
pub fn run(
    target: &Target,
    seed: u64,
    from: u64,
    most: u64,
    time: Duration,
    stuck: impl Fn(Found) + Send + Sync,
) -> Report {
    let (seeds, started) = ((target.seeds)(), Instant::now());
    let (current, done) = (Mutex::new((from, started)), AtomicBool::new(false));
    let mut report = Report::default();
    let at = |current: &Mutex<(u64, Instant)>| *current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(100));
                let (number, since) = at(&current);
                if since.elapsed() > TIME_LIMIT {
                    let what = format!("it takes longer than {TIME_LIMIT:?}");
                    stuck(Found { number, input: input(&seeds, seed, number), what });
                }
            }
        });
        for number in from..from.saturating_add(most) {
            let now = Instant::now();
            if now.duration_since(started) >= time {
                break;
            }
            *current.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (number, now);
            let input = input(&seeds, seed, number);
            let examined = catch_unwind(AssertUnwindSafe(|| (target.examine)(&input)));
            report.inputs += 1;
            if let Err(panic) = examined {
                report.found = Some(Found { number, input, what: message(&*panic) });
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    report.took = started.elapsed();
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picky(input: &[u8]) {
        assert!(!input.windows(2).any(|pair| pair == [0xff, 0xff]), "two 0xff in a row");
    }

    #[test]
    fn a_failing_input_is_found_and_can_be_repeated() {
        let seeds = || vec![b"harmless".to_vec(), b"\xffharmless".to_vec()];
        let target = Target { name: "picky", about: "", examine: picky, seeds };
        let run = |from| run(&target, 1, from, 1_000_000, Duration::from_secs(60), |_| panic!("stuck"));
        let found = run(0).found.expect("a few mutations reach it");
        assert_eq!(found.input, input(&seeds(), 1, found.number));
        let again = run(found.number);
        assert_eq!((again.inputs, again.found.map(|again| again.input)), (1, Some(found.input)));
    }

    #[test]
    fn the_first_inputs_are_the_seeds_and_the_rest_differ() {
        let seeds = vec![[b'1'; 64].to_vec(), [b'2'; 64].to_vec()];
        assert_eq!((input(&seeds, 7, 0), input(&seeds, 7, 1)), (seeds[0].clone(), seeds[1].clone()));
        let made: std::collections::BTreeSet<_> = (2..1_000).map(|number| input(&seeds, 7, number)).collect();
        assert!(made.len() > 700, "{}", made.len());
        assert_ne!(input(&seeds, 7, 100), input(&seeds, 8, 100));
    }
}
