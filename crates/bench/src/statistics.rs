//! Statistics of several samples.

use serde::Serialize;

/// The figures of several samples. The median is the result; the extremes show its reliability.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The middle figure; of an even number of them the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// All of them, in the order of the samples.
    pub samples: Vec<f64>,
}

impl Spread {
    /// The statistics of these figures, in the order of the samples; `None` where there are none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let samples: Vec<f64> = samples.into_iter().collect();
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max, samples })
    }

    /// The ratios of `self` to `base`, pair by pair: samples of one round ran under the same load, so their ratio
    /// varies less than the ratio of the medians.
    pub fn over(&self, base: &Self) -> Option<Self> {
        Self::of(self.samples.iter().zip(&base.samples).map(|(a, b)| a / b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(odd.samples, [3.0, 1.0, 2.0]);
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 8.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_in_each_round() {
        // the machine was ten times slower in the second round, for both
        let (ours, theirs) = (Spread::of([1.0, 10.0, 1.0]).unwrap(), Spread::of([2.0, 20.0, 4.0]).unwrap());
        let ratio = ours.over(&theirs).unwrap();
        assert_eq!(ratio.samples, [0.5, 0.5, 0.25]);
        assert_eq!(ratio.median, 0.5);
    }
}
