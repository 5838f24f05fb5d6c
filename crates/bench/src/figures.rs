//! Figures of all peers for the same work.

use crate::Spread;
use crate::table::{Table, grouped, maybe, spread};
use crate::write::Written;
use serde::Serialize;
use std::collections::BTreeMap;

/// The figures of one piece of work that every peer did.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The name of the work.
    pub what: String,
    /// The unit of `amount`.
    pub unit: String,
    /// The amount of work in a sample.
    pub amount: u64,
    /// Each peer, in the order specified.
    pub peers: Vec<PeerFigures>,
}

/// The figures of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct PeerFigures {
    /// Its name.
    pub peer: String,
    /// Wall time of a sample, in seconds.
    pub wall_seconds: Spread,
    /// Amount per second, from the median.
    pub per_second: f64,
    /// Ratio of the speed to other peers' in the same round, by their names; above 1 is faster.
    pub speed_to: BTreeMap<String, Spread>,
    /// The figures of its writes in a sample, where these were counted.
    pub written: Option<WrittenFigures>,
}

/// Figures of the writes in a sample, each with its spread.
#[derive(Debug, Clone, Serialize)]
pub struct WrittenFigures {
    /// Bytes.
    pub bytes: Spread,
    /// Requests.
    pub writes: Spread,
    /// Writes that do not begin at the end of the previous one.
    pub seeks: Spread,
    /// Flushes.
    pub flushes: Spread,
}

impl WrittenFigures {
    fn of(samples: &[Written]) -> Option<Self> {
        let spread = |figure: fn(&Written) -> u64| Spread::of(samples.iter().map(|sample| figure(sample) as f64));
        Some(Self {
            bytes: spread(|w| w.bytes)?,
            writes: spread(|w| w.writes)?,
            seeks: spread(|w| w.seeks)?,
            flushes: spread(|w| w.flushes)?,
        })
    }
}

impl Measured {
    /// The figures from each peer's name and wall times, with ratios to the peers in `bases`.
    pub(crate) fn new(
        what: String,
        unit: &str,
        amount: u64,
        peers: &[(String, Spread)],
        bases: &[impl AsRef<str>],
    ) -> Self {
        let speed_to = |wall: &Spread| {
            let bases = bases.iter().filter_map(|base| peers.iter().find(|(name, _)| name == base.as_ref()));
            // the ratio of their time to ours is the ratio of our speed to theirs
            bases.filter_map(|(name, base)| Some((name.clone(), base.over(wall)?))).collect()
        };
        let figures = peers.iter().map(|(peer, wall)| PeerFigures {
            peer: peer.clone(),
            wall_seconds: wall.clone(),
            per_second: amount as f64 / wall.median,
            speed_to: speed_to(wall),
            written: None,
        });
        Self { what, unit: unit.to_owned(), amount, peers: figures.collect() }
    }

    /// Adds the writes of each peer, sample by sample; none where they were not counted.
    pub(crate) fn with_written(mut self, samples: &[Vec<Written>]) -> Self {
        for (peer, samples) in self.peers.iter_mut().zip(samples) {
            peer.written = WrittenFigures::of(samples);
        }
        self
    }

    /// The figures as a Markdown table below a line with the work and its amount.
    pub(crate) fn text(&self) -> String {
        let (rate, scale) = if self.unit == "bytes" { ("MiB / s", f64::from(1 << 20)) } else { ("per s", 1.0) };
        let bases: Vec<&String> = self.peers.first().map_or_else(Vec::new, |peer| peer.speed_to.keys().collect());
        let head = ["peer", "wall s", rate].map(str::to_owned).into_iter();
        let counted = self.peers.iter().any(|peer| peer.written.is_some());
        let counts = if counted { &["MiB written", "writes", "seeks", "flushes"][..] } else { &[] };
        let head = head.chain(bases.iter().map(|base| format!("speed / {base}")));
        let mut table = Table::new(head.chain(counts.iter().map(|count| (*count).to_owned())));
        for peer in &self.peers {
            let rate = format!("{:.0}", peer.per_second / scale);
            let cells = [peer.peer.clone(), spread(&peer.wall_seconds), rate].into_iter();
            let cells = cells.chain(bases.iter().map(|base| maybe(peer.speed_to.get(*base))));
            let count = |spread: &Spread| grouped(spread.median as u64);
            let written = match &peer.written {
                Some(w) => {
                    vec![
                        format!("{:.1}", w.bytes.median / f64::from(1 << 20)),
                        count(&w.writes),
                        count(&w.seeks),
                        count(&w.flushes),
                    ]
                }
                None => vec!["–".to_owned(); counts.len()],
            };
            table.row(cells.chain(written));
        }
        format!("\n{}: {} {}\n\n{}", self.what, grouped(self.amount), self.unit, table.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_parts_of_what_is_named() {
        let walls = [("slow", [4.0, 40.0]), ("fast", [2.0, 10.0])];
        let peers = walls.map(|(name, samples)| (name.to_owned(), Spread::of(samples).unwrap()));
        let measured = Measured::new("work".to_owned(), "files", 60, &peers, &["slow", "not there"]);
        let [slow, fast] = &measured.peers[..] else { panic!("{measured:?}") };
        assert_eq!(slow.speed_to["slow"].samples, [1.0, 1.0]);
        assert_eq!((fast.per_second, &fast.speed_to["slow"].samples[..]), (10.0, &[2.0, 4.0][..]));
        let text = measured.text();
        assert!(text.starts_with("\nwork: 60 files\n\n| peer | ") && text.contains("speed / slow |\n"), "{text}");
    }
}
