//! Statistics of a handful of measurements.

use std::time::Duration;

/// Median, 99th percentile and maximum by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many there were.
    pub count: usize,
    /// Half of them took no longer.
    pub median: Duration,
    /// 99 of 100 took no longer; with fewer than 100 measurements that is the maximum.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

impl Summary {
    /// Sums up; none of nothing.
    pub fn of(durations: &[Duration]) -> Option<Self> {
        let mut sorted = durations.to_vec();
        sorted.sort_unstable();
        let rank = |percent| nearest_rank(&sorted, percent);
        Some(Self { count: sorted.len(), median: rank(50)?, p99: rank(99)?, max: rank(100)? })
    }

    /// How many times as long its 99th percentile is as that of another.
    pub fn times(&self, other: &Self) -> f64 {
        self.p99.as_secs_f64() / other.p99.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// So many of a hundred of these, which are sorted, are no larger than this.
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// The times between moments that follow each other, from one moment to another. What lies outside counts at the end.
pub fn gaps<T: Copy + Ord>(moments: impl IntoIterator<Item = T>, from: T, to: T) -> Vec<(T, T)> {
    let mut all: Vec<T> = moments.into_iter().map(|at| at.clamp(from, to)).chain([from, to]).collect();
    all.sort_unstable();
    all.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "median {} p99 {} max {}", millis(self.median), millis(self.p99), millis(self.max))
    }
}

/// Milliseconds with one decimal.
pub fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let ms = |n| Duration::from_millis(n);
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[ms(7)]).unwrap();
        assert_eq!((one.median, one.p99, one.max), (ms(7), ms(7), ms(7)));
        let many = Summary::of(&(1..=200).map(ms).collect::<Vec<_>>()).unwrap();
        assert_eq!((many.count, many.median, many.p99, many.max), (200, ms(100), ms(198), ms(200)));
        let odd = Summary::of(&[ms(3), ms(1), ms(2)]).unwrap();
        assert_eq!((odd.median, odd.max), (ms(2), ms(3)));
    }
}
