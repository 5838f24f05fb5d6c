//! The positions of the sectors of a hard disk, and the time that the arm needs to reach them.
//!
//! Sectors are numbered along the tracks of a cylinder, surface by surface, and from the outermost cylinder inwards.
//! Track 0 begins at angle 0; each track begins later than the previous one by the angle that passes during the switch
//! between them (skew), so that a sequential transfer continues without waiting. Angles are the nanoseconds of a
//! revolution; all arithmetic on them is exact, because one nanosecond too much costs a revolution.

use super::parameters::DiskParameters;
use blockdev::{Error, Result};

/// The size of a sector in bytes.
pub(super) const SECTOR: u64 = 512;

#[derive(Debug, Clone, Copy)]
struct Zone {
    first_sector: u64,
    first_cylinder: u64,
    sectors_per_track: u64,
}

/// The position of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SectorPosition {
    /// The track number, counted over all cylinders and heads.
    pub(super) track: u64,
    /// The sector number within the track.
    pub(super) sector: u64,
    /// The number of sectors on the track.
    pub(super) sectors_per_track: u64,
}

/// The delays of the arm on the way to a sector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Positioning {
    /// The time until it is on the track, in nanoseconds.
    pub(super) seek: u64,
    /// The time until the sector arrives, in nanoseconds.
    pub(super) rotation: u64,
}

#[derive(Debug)]
pub(super) struct Layout {
    zones: Vec<Zone>,
    heads: u64,
    /// The duration of a revolution in nanoseconds.
    revolution: u64,
    head_switch: u64,
    /// The skew of a whole cylinder.
    cylinder_skew: u64,
    pub(super) sectors: u64,
    curve: Curve,
}

/// Seek time over distance: `near + rise * sqrt(x)` for the first third of the stroke, and from there a straight line
/// to the full stroke, where x is the distance as a part of the stroke. This is the curve that Ruemmler and Wilkes
/// measured ("An Introduction to Disk Drive Modeling", IEEE Computer 27(3), 1994): short seeks are spent accelerating
/// and braking, long ones coasting.
#[derive(Debug)]
struct Curve {
    near: f64,
    rise: f64,
    full: f64,
    /// The number of cylinders from the first to the last.
    stroke: u64,
}

const THIRD: f64 = 1.0 / 3.0;

impl Curve {
    /// Creates the curve whose mean over two random cylinders is `average`; their distance x has the density 2(1 - x),
    /// under which the integrals below are taken. The stroke is left at 0. Sums, products, quotients and roots are the
    /// same on every machine; other functions would not be.
    fn new(near: f64, average: f64, full: f64) -> Option<Self> {
        // short seeks: near times the integral of 2(1-x), and rise times that of 2(1-x) sqrt(x), from 0 to 1/3
        let near_short = 2.0 * THIRD - THIRD * THIRD;
        let rise_short = (4.0 / 3.0 * THIRD - 4.0 / 5.0 * THIRD * THIRD) * THIRD.sqrt();
        // long ones: they begin at near + rise * sqrt(1/3); the integrals of 2(1-x) and of 2(1-x) (x-1/3) / (2/3)
        let long = (1.0 - THIRD) * (1.0 - THIRD);
        let slope = long / 3.0;
        let of_rise = rise_short + THIRD.sqrt() * (long - slope);
        let rise = (average - near * (near_short + long - slope) - full * slope) / of_rise;
        let curve = Self { near, rise, full, stroke: 0 };
        (rise >= 0.0 && near + rise * THIRD.sqrt() <= full).then_some(curve)
    }

    fn time(&self, distance: u64) -> u64 {
        let x = distance.saturating_sub(1) as f64 / self.stroke.saturating_sub(1).max(1) as f64;
        let time = if x <= THIRD {
            self.near + self.rise * x.sqrt()
        } else {
            let middle = self.near + self.rise * THIRD.sqrt();
            middle + (self.full - middle) * (x - THIRD) / (1.0 - THIRD)
        };
        time.round() as u64
    }
}

impl Layout {
    /// Computes the layout of a disk of `sectors` sectors.
    pub(super) fn new(p: &DiskParameters, sectors: u64) -> Result<Self> {
        let nanoseconds = |time: std::time::Duration| time.as_nanos() as u64; // the limits are far lower
        let revolution = 60_000_000_000 / u64::from(p.rpm);
        let heads = u64::from(p.heads);
        let (head_switch, track_to_track) = (nanoseconds(p.head_switch), nanoseconds(p.track_to_track));
        let cylinder_skew = (heads - 1) * head_switch + track_to_track;
        let zones = u64::from(p.zones);
        let cylinder_time = heads * revolution + cylinder_skew;
        let sectors_per_track = |zone: u64| {
            let loss = (p.outer_rate.0 - p.inner_rate.0) * zone / (zones - 1).max(1);
            // the sectors that pass in the time of a whole cylinder at the zone's rate, on each of its tracks
            let bytes = u128::from(p.outer_rate.0 - loss) * u128::from(cylinder_time) / 1_000_000_000;
            ((bytes / u128::from(heads * SECTOR)) as u64).max(1)
        };
        let in_cylinder_of_each: u64 = (0..zones).map(|zone| heads * sectors_per_track(zone)).sum();
        let cylinders = (sectors / in_cylinder_of_each).max(1); // the innermost zone gets the rest
        let mut first_sector = 0;
        let zones: Vec<_> = (0..zones)
            .map(|zone| {
                let sectors_per_track = sectors_per_track(zone);
                let this = Zone { first_sector, first_cylinder: zone * cylinders, sectors_per_track };
                first_sector += cylinders * heads * sectors_per_track;
                this
            })
            .collect();
        let (near, full) = (track_to_track as f64, nanoseconds(p.full_stroke) as f64);
        let curve = Curve::new(near, nanoseconds(p.average_seek) as f64, full)
            .ok_or(Error::Parameters("no seek curve has these times for one track, on average and in full".into()))?;
        let mut layout = Self { zones, heads, revolution, head_switch, cylinder_skew, sectors, curve };
        layout.curve.stroke = layout.cylinder(layout.locate(sectors.saturating_sub(1)).track);
        Ok(layout)
    }

    /// The position of a sector.
    pub(super) fn locate(&self, sector: u64) -> SectorPosition {
        let after = self.zones.partition_point(|zone| zone.first_sector <= sector);
        let zone = self.zones[after.saturating_sub(1)]; // the first begins at 0
        let inside = sector - zone.first_sector;
        SectorPosition {
            track: zone.first_cylinder * self.heads + inside / zone.sectors_per_track,
            sector: inside % zone.sectors_per_track,
            sectors_per_track: zone.sectors_per_track,
        }
    }

    /// The cylinder of a track.
    pub(super) fn cylinder(&self, track: u64) -> u64 {
        track / self.heads
    }

    /// The time in which the first `sectors` sectors of a track pass.
    fn passage(&self, sectors: u64, at: SectorPosition) -> u64 {
        sectors * self.revolution / at.sectors_per_track
    }

    /// The time in which `count` sectors pass, beginning with the one at `at`; all on its track.
    pub(super) fn transfer(&self, at: SectorPosition, count: u64) -> u64 {
        self.passage(at.sector + count, at) - self.passage(at.sector, at)
    }

    /// The number of sectors from `at` on that pass completely in a time, at most to the end of the track.
    pub(super) fn passing(&self, at: SectorPosition, time: u64) -> u64 {
        let until = (self.passage(at.sector, at) + time.min(self.revolution)).min(self.revolution);
        // the last boundary that is not after `until`; the division rounds down, hence the + 1
        let mut end = (until + 1) * at.sectors_per_track / self.revolution;
        while self.passage(end, at) > until {
            end -= 1;
        }
        end.min(at.sectors_per_track).saturating_sub(at.sector)
    }

    /// The number of sectors before `at` on its track that pass in the `time` before it arrives.
    pub(super) fn passed(&self, at: SectorPosition, time: u64) -> u64 {
        (time * at.sectors_per_track / self.revolution).min(at.sector)
    }

    /// The delays from `track`, at the time `now`, until `at` begins to pass under the head.
    pub(super) fn position(&self, now: u64, track: u64, at: SectorPosition) -> Positioning {
        let (from, to) = (self.cylinder(track), self.cylinder(at.track));
        let seek = match from.abs_diff(to) {
            0 if track == at.track => 0,
            0 => self.head_switch,
            distance => self.curve.time(distance),
        };
        let skew = to * self.cylinder_skew + at.track % self.heads * self.head_switch;
        let target = (skew + self.passage(at.sector, at)) % self.revolution;
        let angle = (now + seek) % self.revolution;
        Positioning { seek, rotation: (target + self.revolution - angle) % self.revolution }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn layout(p: &DiskParameters) -> Layout {
        Layout::new(p, p.capacity / SECTOR).unwrap()
    }

    #[test]
    fn every_sector_has_one_position() {
        let p = DiskParameters { capacity: 64 << 20, zones: 5, ..DiskParameters::default() };
        let layout = layout(&p);
        let mut expected = SectorPosition { track: 0, sector: 0, sectors_per_track: layout.zones[0].sectors_per_track };
        for sector in 0..layout.sectors {
            let at = layout.locate(sector);
            expected.sectors_per_track = at.sectors_per_track;
            assert_eq!(at, expected, "{sector}");
            expected.sector += 1;
            if expected.sector == at.sectors_per_track {
                expected = SectorPosition { track: at.track + 1, sector: 0, ..at };
            }
        }
    }

    #[test]
    fn seek_times_are_the_published_ones() {
        let p = DiskParameters::default();
        let layout = layout(&p);
        let stroke = layout.curve.stroke;
        assert_eq!(layout.curve.time(1), 1_000_000);
        assert_eq!(layout.curve.time(stroke), 18_000_000);
        // the exact mean over a sample of all pairs of cylinders
        let (mut sum, mut weight) = (0.0, 0.0);
        for distance in (1..=stroke).step_by(97) {
            let pairs = (stroke + 1 - distance) as f64;
            sum += layout.curve.time(distance) as f64 * pairs;
            weight += pairs;
        }
        let mean = sum / weight;
        assert!((mean / 9e6 - 1.0).abs() < 0.001, "{mean}");
        let times: Vec<_> = (1..=stroke).step_by(101).map(|d| layout.curve.time(d)).collect();
        assert!(times.is_sorted());
    }

    #[test]
    fn contradictory_seek_times_are_refused() {
        for (near, average, full) in [(9, 1, 18), (1, 9, 9), (1, 1, 9)] {
            let ms = Duration::from_millis;
            let p = DiskParameters {
                track_to_track: ms(near),
                average_seek: ms(average),
                full_stroke: ms(full),
                ..DiskParameters::default()
            };
            assert!(matches!(Layout::new(&p, 1 << 20), Err(Error::Parameters(_))), "{near} {average} {full}");
        }
    }

    #[test]
    fn the_next_track_is_reached_without_waiting() {
        let layout = layout(&DiskParameters::default());
        for last in [0, 1, 2, 5, 1000, 99_999].map(|track: u64| {
            let mut sector = track * 1500;
            while layout.locate(sector + 1).track == layout.locate(sector).track {
                sector += 1;
            }
            sector
        }) {
            let (at, next) = (layout.locate(last), layout.locate(last + 1));
            let Positioning { seek, rotation } = layout.position(77, at.track, at);
            let now = 77 + seek + rotation + layout.transfer(at, 1);
            assert_eq!(layout.position(now, at.track, next).rotation, 0, "after sector {last}");
        }
    }

    #[test]
    fn passing_sectors_are_whole() {
        let layout = layout(&DiskParameters::default());
        let at = SectorPosition { sector: 100, ..layout.locate(0) };
        for count in [1, 2, 7, 500] {
            let time = layout.transfer(at, count);
            assert_eq!(layout.passing(at, time), count);
            assert_eq!(layout.passing(at, time - 1), count - 1);
        }
        assert_eq!(layout.passing(at, u64::MAX), at.sectors_per_track - 100);
        assert_eq!(layout.passed(at, u64::from(u32::MAX)), 100);
        assert_eq!(layout.passed(at, 0), 0);
    }
}
