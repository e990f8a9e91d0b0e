//! Whether a series stays flat, apart from the sawtooth that snapshots, purges and restarts draw.
//!
//! A series is judged in thirds, which the plan of a soak makes alike: the same faults at the same offsets. It *grows*
//! if the median of the last third lies above that of the first by more than is allowed, and one of two things agrees:
//! the troughs and the peaks have both risen by more than is allowed; or the robust slope (Theil and Sen) adds more
//! than is allowed over the whole time, and troughs or peaks have risen too. A sawtooth with few teeth moves a median,
//! depending on where in a tooth a third ends; its troughs and peaks stay where they are. A leak lifts all of them. A
//! series that falls does not fail: nothing leaks from it.

/// What may come on top, as a share of the value in the first third.
pub(super) const ALLOWED: f64 = 0.05;
/// Troughs and peaks are known less exactly than medians: beside a slope they must have risen by this share of what is
/// allowed.
const EDGE_SHARE: f64 = 0.5;
/// Where troughs end and peaks begin.
const EDGE: f64 = 0.02;
/// The slope is taken over so many points, each the median of its part of the series.
const SLOPE_POINTS: usize = 180;
/// Fewer points in a third say nothing.
const FEWEST: usize = 5;

/// A point: seconds, and the value.
pub(super) type TrendPoint = (f64, f64);

/// What became of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    /// Median of the first third.
    pub(super) first: f64,
    /// Median of the last third.
    pub(super) last: f64,
    /// What the robust slope adds over the whole time.
    pub(super) slope_gain: f64,
    /// How far the troughs (the lowest fiftieth) have risen from the first third to the last.
    pub(super) trough_gain: f64,
    /// The same of the peaks (the highest fiftieth).
    pub(super) peak_gain: f64,
    /// What may come on top.
    pub(super) allowed: f64,
}

impl Trend {
    /// The trend of the points between two moments; `None` if a third has too few of them. `least` is allowed however
    /// small the value is: a count of threads cannot rise by a twentieth.
    pub(super) fn of(points: &[TrendPoint], from_s: f64, to_s: f64, least: f64) -> Option<Self> {
        let third_s = (to_s - from_s) / 3.0;
        let within = |from: f64, to: f64| -> Vec<f64> {
            let mut values: Vec<f64> =
                points.iter().filter(|(at, _)| *at >= from && *at < to).map(|(_, value)| *value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let thirds = [0.0, 1.0, 2.0].map(|third| within(from_s + third * third_s, from_s + (third + 1.0) * third_s));
        if thirds.iter().any(|third| third.len() < FEWEST) {
            return None;
        }
        let [first, _, last] = &thirds;
        let gain = |share| quantile(last, share) - quantile(first, share);
        let judged: Vec<TrendPoint> = points.iter().copied().filter(|(at, _)| *at >= from_s && *at < to_s).collect();
        let base = quantile(first, 0.5);
        Some(Self {
            first: base,
            last: quantile(last, 0.5),
            slope_gain: slope(&thinned(&judged)) * (to_s - from_s),
            trough_gain: gain(EDGE),
            peak_gain: gain(1.0 - EDGE),
            allowed: (ALLOWED * base).max(least),
        })
    }

    /// Whether the series grows by more than is allowed.
    pub(super) fn grows(&self) -> bool {
        let (lower, higher) = (self.trough_gain.min(self.peak_gain), self.trough_gain.max(self.peak_gain));
        let slopes_up = self.slope_gain > self.allowed && higher > EDGE_SHARE * self.allowed;
        self.last - self.first > self.allowed && (lower > self.allowed || slopes_up)
    }

    /// From the first third to the last, in percent.
    pub(super) fn percent(&self) -> f64 {
        if self.first == 0.0 { 0.0 } else { (self.last / self.first - 1.0) * 100.0 }
    }
}

/// Of values in order, by nearest rank.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    // A share of a length.
    let rank = (share * last as f64).round() as usize;
    sorted.get(rank.min(last)).copied().unwrap_or_default()
}

/// So few points that all pairs of them can be looked at.
fn thinned(points: &[TrendPoint]) -> Vec<TrendPoint> {
    let size = points.len().div_ceil(SLOPE_POINTS).max(1);
    let middle = |part: &[TrendPoint]| {
        let mut values: Vec<f64> = part.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let at = part.iter().map(|(at, _)| at).sum::<f64>() / part.len() as f64;
        (at, quantile(&values, 0.5))
    };
    points.chunks(size).map(middle).collect()
}

/// The median of the slopes of all pairs (Theil and Sen): up to a quarter of the points may be anything.
fn slope(points: &[TrendPoint]) -> f64 {
    let mut slopes = Vec::new();
    for (at, (from_s, from)) in points.iter().enumerate() {
        slopes.extend(
            points[at + 1..].iter().filter(|(to_s, _)| to_s > from_s).map(|(to_s, to)| (to - from) / (to_s - from_s)),
        );
    }
    slopes.sort_by(f64::total_cmp);
    quantile(&slopes, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH_S: f64 = 1_200.0;

    fn series(value: impl Fn(f64) -> f64) -> Vec<TrendPoint> {
        (0..600).map(|step| f64::from(step) * 2.0).map(|at| (at, value(at))).collect()
    }

    fn grows(value: impl Fn(f64) -> f64) -> bool {
        Trend::of(&series(value), 0.0, LENGTH_S, 0.0).unwrap().grows()
    }

    /// Between 0 and 1, rising and falling back at once.
    fn tooth(at: f64, period_s: f64, phase: f64) -> f64 {
        (at / period_s + phase).fract()
    }

    /// Between -1 and 1, the same in every run.
    fn noise(at: f64) -> f64 {
        (at * 12.9898).sin() * (at * 78.233).cos()
    }

    fn leak(at: f64, share: f64) -> f64 {
        1.0 + share * at / LENGTH_S
    }

    #[test]
    fn a_leak_of_a_tenth_is_found() {
        assert!(grows(|at| 80.0 * leak(at, 0.1)));
        assert!(grows(|at| 80.0 * leak(at, 0.1) + 2.0 * noise(at)), "under noise");
        assert!(grows(|at| 80.0 * if at > 500.0 { 1.1 } else { 1.0 }), "in one step");
        assert!(grows(|at| if at < 40.0 { 120.0 } else { 80.0 * leak(at, 0.1) }), "behind an early peak");
    }

    #[test]
    fn a_leak_is_found_under_a_sawtooth() {
        for phase in 0..10 {
            let phase = f64::from(phase) / 10.0;
            assert!(grows(|at| (10.0 + 2.0 * tooth(at, 60.0, phase)) * leak(at, 0.1)), "phase {phase}");
            assert!(grows(|at| (10.0 + 8.0 * tooth(at, 40.0, phase)) * leak(at, 0.15)), "deep, phase {phase}");
        }
        // Restarts do not hide one: what was left by the last life is there in the next.
        assert!(grows(|at| 60.0 * leak(at, 0.12) + 10.0 * tooth(at, 400.0, 0.0)), "one tooth in each third");
    }

    #[test]
    fn a_sawtooth_alone_is_flat() {
        for (period_s, height) in [(20.0, 8.0), (60.0, 8.0), (150.0, 8.0), (333.0, 4.0), (400.0, 10.0)] {
            for phase in 0..20 {
                let phase = f64::from(phase) / 20.0;
                let value = |at| 10.0 + height * tooth(at, period_s, phase) + 0.1 * noise(at);
                assert!(!grows(value), "period {period_s}, height {height}, phase {phase}");
            }
        }
    }

    #[test]
    fn growth_within_the_allowance_noise_and_a_fall_are_flat() {
        assert!(!grows(|at| 80.0 * leak(at, 0.045)));
        assert!(!grows(|at| 80.0 + 8.0 * noise(at)));
        assert!(!grows(|at| 80.0 * leak(at, -0.2)));
        assert!(!grows(|_| 0.0), "and nothing at all");
    }

    #[test]
    fn a_short_excursion_is_no_growth() {
        assert!(!grows(|at| if at > 1_100.0 { 160.0 } else { 80.0 }));
    }

    #[test]
    fn a_small_count_may_rise_by_one() {
        let threads = series(|at| if at > 600.0 { 16.0 } else { 15.0 });
        assert!(!Trend::of(&threads, 0.0, LENGTH_S, 1.0).unwrap().grows());
        let threads = series(|at| if at > 600.0 { 17.0 } else { 15.0 });
        assert!(Trend::of(&threads, 0.0, LENGTH_S, 1.0).unwrap().grows());
    }

    #[test]
    fn too_few_points_give_no_trend() {
        let gap: Vec<TrendPoint> = series(|_| 1.0).into_iter().filter(|(at, _)| *at < 800.0).collect();
        assert_eq!(Trend::of(&gap, 0.0, LENGTH_S, 0.0), None);
        assert_eq!(Trend::of(&[], 0.0, LENGTH_S, 0.0), None);
    }
}
