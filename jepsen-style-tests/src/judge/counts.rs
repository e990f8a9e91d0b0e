//! What servers counted, across kills. A counter dies with its process: all that is known of it is its last sample.
//!
//! The sum of the last samples is therefore a *lower* bound. "Not more than the log owes" can be judged over a whole
//! run with kills in it. "Not fewer" is judged in calm windows only, in which no process ended and every sample is
//! exact.

use std::collections::BTreeMap;

/// One sample of one counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it was asked for, in microseconds of the boot clock.
    pub asked_us: u64,
    /// When the answer was there.
    pub answered_us: u64,
    /// Which node.
    pub node: u64,
    /// Which life of that node's process.
    pub life: u32,
    /// What it said.
    pub value: f64,
}

/// What all lives of all nodes counted from the first sample on, as far as samples know.
pub fn total(samples: &[Sample]) -> f64 {
    let mut lives: BTreeMap<(u64, u32), (f64, f64)> = BTreeMap::new();
    let first_life: BTreeMap<u64, u32> = samples.iter().fold(BTreeMap::new(), |mut first, sample| {
        first.entry(sample.node).or_insert(sample.life);
        first
    });
    for sample in samples {
        // A later life began at nothing; the first one had a past.
        let begins = if first_life.get(&sample.node) == Some(&sample.life) { sample.value } else { 0.0 };
        let life = lives.entry((sample.node, sample.life)).or_insert((begins, begins));
        life.1 = life.1.max(sample.value);
    }
    lives.values().map(|(first, last)| last - first).sum()
}

/// A calm window: what was counted between two rounds of samples, and what the log owed for certain and at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalmWindow {
    /// What was counted.
    pub counted: f64,
    /// Owed for certain: between the end of the first round and the start of the second, less the allowance at both
    /// ends.
    pub certain: usize,
    /// Owed at most: with the allowance added.
    pub possible: usize,
}

/// Compares the count of each window with what the log owed in it.
pub fn in_calm(windows: &[CalmWindow]) -> Result<(), String> {
    for (at, window) in windows.iter().enumerate() {
        if window.counted > window.possible as f64 || window.counted < window.certain as f64 {
            return Err(format!(
                "calm window {}: {} notifications counted, the log owes between {} and {}",
                at + 1,
                window.counted,
                window.certain,
                window.possible
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(node: u64, life: u32, value: f64) -> Sample {
        Sample { asked_us: 0, answered_us: 0, node, life, value }
    }

    #[test]
    fn lives_add_up() {
        let samples = [
            sample(1, 0, 100.0),
            sample(2, 0, 7.0),
            sample(1, 0, 130.0),
            sample(1, 1, 5.0),
            sample(1, 1, 25.0),
            sample(2, 0, 9.0),
        ];
        assert_eq!(total(&samples), 30.0 + 25.0 + 2.0);
        assert_eq!(total(&[]), 0.0);
    }

    #[test]
    fn too_many_and_too_few_are_caught() {
        let window = |counted| CalmWindow { counted, certain: 95, possible: 105 };
        assert_eq!(in_calm(&[window(95.0), window(105.0)]), Ok(()));
        assert!(in_calm(&[window(100.0), window(106.0)]).unwrap_err().contains("window 2"));
        assert!(in_calm(&[window(94.0)]).is_err());
    }
}
