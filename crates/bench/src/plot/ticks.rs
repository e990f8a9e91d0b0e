//! Ticks of logarithmic axes, and their labels: few enough that none lies on another.

use std::ops::Range;

const MOST: usize = 8;

/// Ticks at measured values, the first of those that are close together.
pub(super) fn measured(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return values };
    let least_factor = (last / first).powf(1.0 / MOST as f64);
    let mut ticks: Vec<f64> = Vec::new();
    for value in values {
        if ticks.last().is_none_or(|before| value > *before && value / before >= least_factor) {
            ticks.push(value);
        }
    }
    ticks
}

/// Ticks at round values: as many as fit of 1, 2, 3, …; of 1, 2, 5, 10, …; of 1, 3, 10, …; or powers of ten.
pub(super) fn within(range: &Range<f64>) -> Vec<f64> {
    let digits: [&[u32]; 4] = [&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[1, 2, 5], &[1, 3], &[1]];
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let of = |digits: &[u32]| -> Vec<f64> {
        let all =
            decades.clone().flat_map(|decade| digits.iter().map(move |digit| f64::from(*digit) * 10f64.powi(decade)));
        all.filter(|tick| range.contains(tick)).collect()
    };
    let choices = digits.map(of);
    let [.., powers] = &choices;
    choices.iter().find(|ticks| ticks.len() <= MOST).unwrap_or(powers).clone()
}

/// A value with one digit behind leading zeros, or with commas between thousands.
pub(super) fn label(value: &f64) -> String {
    let decimals = (-(value.log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
    let mut text = format!("{value:.decimals$}");
    if decimals == 0 {
        for at in (1..text.len()).rev().filter(|at| (text.len() - at) % 3 == 0).collect::<Vec<_>>() {
            text.insert(at, ',');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_at_measured_values_are_never_close() {
        assert_eq!(measured(vec![64.0, 1.0, 16.0, 1.0, 1024.0, 256.0]), [1.0, 16.0, 64.0, 256.0, 1024.0]);
        let doubled = (0..11).map(|power| f64::from(1 << power)).collect();
        assert_eq!(measured(doubled), [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        assert_eq!(measured(vec![5.0, 5.0]), [5.0]);
        assert_eq!(measured(Vec::new()), [0.0; 0]);
    }

    #[test]
    fn ticks_at_round_values_are_some_but_not_many() {
        assert_eq!(within(&(2.05..4.6)), [3.0, 4.0]);
        assert_eq!(within(&(90.0..1500.0)), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(within(&(120.0..40_000.0)).len(), 7);
        assert_eq!(within(&(1e-4..1e6)).len(), 10);
        for step in 0..1000 {
            let start = 1.013f64.powi(step) / 1000.0;
            assert!(!within(&(start..start * 2.0)).is_empty(), "{start}");
        }
    }

    #[test]
    fn labels_are_short() {
        let values = [0.003, 0.2, 1.0, 20.0, 999.0, 1000.0, 50_000.0, 2_000_000.0];
        let expected = ["0.003", "0.2", "1", "20", "999", "1,000", "50,000", "2,000,000"];
        assert_eq!(values.map(|value| label(&value)), expected);
    }
}
