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

/// The samples of one peer for a piece of work.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    /// The peer's name.
    pub(crate) peer: String,
    /// The transport of FUSE requests; `None` without FUSE.
    pub(crate) transport: Option<String>,
    /// The number of processors that it ran on.
    pub(crate) processors: usize,
    /// Wall time, in seconds.
    pub(crate) wall: Spread,
    /// CPU time, in seconds; `None` where it is unknown.
    pub(crate) cpu: Option<Spread>,
    /// The writes of each sample; none where they were not counted.
    pub(crate) written: Vec<Written>,
}

/// The figures of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct PeerFigures {
    /// Its name.
    pub peer: String,
    /// The transport of its FUSE requests, `/dev/fuse` or `io_uring`; `None` without FUSE.
    pub transport: Option<String>,
    /// The number of processors that the work and the server ran on.
    pub processors: usize,
    /// Wall time of a sample, in seconds.
    pub wall_seconds: Spread,
    /// CPU time of a sample, user and system, of the process that did the work and of the server, in seconds; without
    /// the kernel's own threads. `None` where it is unknown.
    pub cpu_seconds: Option<Spread>,
    /// The same in microseconds for each operation, one of the amount; for bytes for each MiB.
    pub cpu_us_per_operation: Option<Spread>,
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
    /// The figures from the samples of each peer, with ratios to the peers in `bases`.
    pub(crate) fn new(what: String, unit: &str, amount: u64, peers: &[Samples], bases: &[impl AsRef<str>]) -> Self {
        let speed_to = |wall: &Spread| {
            let bases = bases.iter().filter_map(|base| peers.iter().find(|samples| samples.peer == base.as_ref()));
            // the ratio of their time to ours is the ratio of our speed to theirs
            bases.filter_map(|base| Some((base.peer.clone(), base.wall.over(wall)?))).collect()
        };
        let operations = if unit == "bytes" { amount as f64 / f64::from(1 << 20) } else { amount as f64 };
        let each = |cpu: &Spread| Spread::of(cpu.samples.iter().map(|seconds| seconds * 1e6 / operations));
        let figures = peers.iter().map(|samples| PeerFigures {
            peer: samples.peer.clone(),
            transport: samples.transport.clone(),
            processors: samples.processors,
            wall_seconds: samples.wall.clone(),
            cpu_seconds: samples.cpu.clone(),
            cpu_us_per_operation: samples.cpu.as_ref().and_then(each),
            per_second: amount as f64 / samples.wall.median,
            speed_to: speed_to(&samples.wall),
            written: WrittenFigures::of(&samples.written),
        });
        Self { what, unit: unit.to_owned(), amount, peers: figures.collect() }
    }

    /// The figures as a Markdown table below a line with the work and its amount.
    pub(crate) fn text(&self) -> String {
        let in_bytes = self.unit == "bytes";
        let (rate, scale) = if in_bytes { ("MiB / s", f64::from(1 << 20)) } else { ("per s", 1.0) };
        let cpu = if in_bytes { "CPU µs / MiB" } else { "CPU µs / operation" };
        let bases: Vec<&String> = self.peers.first().map_or_else(Vec::new, |peer| peer.speed_to.keys().collect());
        let head = ["peer", "transport", "processors", "wall s", rate, cpu].map(str::to_owned).into_iter();
        let counted = self.peers.iter().any(|peer| peer.written.is_some());
        let counts = if counted { &["MiB written", "writes", "seeks", "flushes"][..] } else { &[] };
        let head = head.chain(bases.iter().map(|base| format!("speed / {base}")));
        let mut table = Table::new(head.chain(counts.iter().map(|count| (*count).to_owned())));
        for peer in &self.peers {
            let rate = format!("{:.0}", peer.per_second / scale);
            let transport = peer.transport.clone().unwrap_or_else(|| "–".to_owned());
            let placed = [peer.peer.clone(), transport, peer.processors.to_string()];
            let timed = [spread(&peer.wall_seconds), rate, maybe(peer.cpu_us_per_operation.as_ref())];
            let cells = placed.into_iter().chain(timed);
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

    fn samples(name: &str, walls: [f64; 2], cpu: Option<[f64; 2]>) -> Samples {
        Samples {
            peer: name.to_owned(),
            transport: cpu.map(|_| "/dev/fuse".to_owned()),
            processors: 2,
            wall: Spread::of(walls).unwrap(),
            cpu: cpu.and_then(Spread::of),
            written: Vec::new(),
        }
    }

    #[test]
    fn cpu_time_is_that_of_an_operation_or_a_mebibyte() {
        let peers = [samples("fuse", [1.0, 1.0], Some([0.5, 1.5])), samples("none", [1.0, 1.0], None)];
        let [files, bytes] = [("files", 1000), ("bytes", 4 << 20)].map(|(unit, amount)| {
            let measured = Measured::new("work".to_owned(), unit, amount, &peers, &["none"]);
            let first = &measured.peers[0];
            assert_eq!(first.cpu_seconds.as_ref().unwrap().median, 1.0);
            assert_eq!(measured.peers[1].cpu_us_per_operation, None);
            (first.cpu_us_per_operation.clone().unwrap().samples, measured.text())
        });
        assert_eq!((&files.0[..], &bytes.0[..]), (&[500.0, 1500.0][..], &[125_000.0, 375_000.0][..]));
        assert!(files.1.contains(" CPU µs / operation |") && bytes.1.contains(" CPU µs / MiB |"), "{}", bytes.1);
        let row = files.1.lines().find(|line| line.starts_with("| fuse ")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1..4], ["fuse", "/dev/fuse", "2"]);
        assert_eq!(cells[6], "1000 (500–1500)");
    }

    #[test]
    fn speeds_are_parts_of_what_is_named() {
        let walls = [("slow", [4.0, 40.0]), ("fast", [2.0, 10.0])];
        let peers = walls.map(|(name, walls)| samples(name, walls, None));
        let measured = Measured::new("work".to_owned(), "files", 60, &peers, &["slow", "not there"]);
        let [slow, fast] = &measured.peers[..] else { panic!("{measured:?}") };
        assert_eq!(slow.speed_to["slow"].samples, [1.0, 1.0]);
        assert_eq!((fast.per_second, &fast.speed_to["slow"].samples[..]), (10.0, &[2.0, 4.0][..]));
        let text = measured.text();
        assert!(text.starts_with("\nwork: 60 files\n\n| peer | ") && text.contains("speed / slow |\n"), "{text}");
    }
}
