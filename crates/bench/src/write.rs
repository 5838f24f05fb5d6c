//! Writing: Extant through FUSE and as a library beside the kernel and fuse2fs, on the same sets of operations.

mod sets;
mod target;
mod venue;

use crate::environment::Environment;
use crate::table::{Table, grouped, maybe, spread};
use crate::{Error, Result, Spread};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub use sets::{SETS, Set};
pub use venue::Spec;

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The peers; ratios are to the first.
    pub peers: Vec<Spec>,
    /// The sets.
    pub sets: Vec<Set>,
    /// Part of the full size; 1 is full.
    pub scale: f64,
    /// Turns of each peer.
    pub runs: usize,
    /// Where volumes are made, in files of 6 GiB with holes; removed afterwards.
    pub dir: PathBuf,
    /// The program `extant`.
    pub extant: PathBuf,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// Where it was measured.
    pub environment: Environment,
    /// Part of the full size.
    pub scale: f64,
    /// Each phase of each set.
    pub phases: Vec<OfPhase>,
}

/// The result of one phase.
#[derive(Debug, Clone, Serialize)]
pub struct OfPhase {
    /// The set it belongs to.
    pub set: Set,
    /// Its name.
    pub phase: String,
    /// What `amount` counts.
    pub unit: String,
    /// How much is done in a turn.
    pub amount: u64,
    /// Each peer, in the order given.
    pub peers: Vec<PeerFigures>,
}

/// What one peer took for a phase, a sync at the end included.
#[derive(Debug, Clone, Serialize)]
pub struct PeerFigures {
    /// As it was asked for.
    pub peer: String,
    /// Wall time of a turn, in seconds.
    pub wall_seconds: Spread,
    /// Amount in a second, from the median.
    pub per_second: f64,
    /// Speed in parts of the first peer's in the same round; above 1 is faster.
    pub speed_to_first: Option<Spread>,
}

/// Wall times by phase (in the order they were met), and for each by peer.
type Times = BTreeMap<usize, Vec<Vec<f64>>>;

/// Measures. `say` is told what is done next.
///
/// # Errors
/// [`Error::Unsupported`] without root or a program that a peer needs; otherwise the first thing that went wrong, a
/// volume that e2fsck finds unsound among them.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Bench> {
    if options.peers.is_empty() || options.sets.is_empty() {
        return Err(Error::Failed("name at least one peer and one set".into()));
    }
    let mut phases = Vec::new();
    for &set in &options.sets {
        phases.extend(measure(set, options, say)?);
    }
    Ok(Bench {
        environment: Environment::here().with("extant", &options.extant, "--version"),
        scale: options.scale,
        phases,
    })
}

fn measure(set: Set, options: &Options, say: &dyn Fn(&str)) -> Result<Vec<OfPhase>> {
    let mut times = Times::new();
    let mut known = Vec::new();
    for round in 0..options.runs.max(1) {
        for turn in 0..options.peers.len() {
            // who begins a round is another each time
            let which = (round + turn) % options.peers.len();
            let spec = &options.peers[which];
            say(&format!("{}: round {} of {}, {spec}", set.name(), round + 1, options.runs.max(1)));
            let folder = tempfile::tempdir_in(&options.dir).map_err(|source| Error::Io {
                what: format!("cannot make a folder in {}", options.dir.display()),
                source,
            })?;
            let mut stage = venue::Stage::fresh(spec, &options.extant, folder.path())?;
            let phases = set.run(&mut stage, options.scale)?;
            stage.finish().map_err(|e| Error::Failed(format!("{spec}, after {}: {e}", set.name())))?;
            for (number, phase) in phases.iter().enumerate() {
                let peers = times.entry(number).or_insert_with(|| vec![Vec::new(); options.peers.len()]);
                peers[which].push(phase.wall.as_secs_f64());
            }
            known = phases;
        }
    }
    let of_phase = |(number, peers): (usize, Vec<Vec<f64>>)| {
        let phase = known.get(number)?;
        let spreads: Vec<Spread> = peers.into_iter().filter_map(Spread::of).collect();
        let figures = spreads.iter().zip(&options.peers).map(|(wall, spec)| PeerFigures {
            peer: spec.to_string(),
            wall_seconds: wall.clone(),
            per_second: phase.amount as f64 / wall.median,
            // the time of the other in parts of ours is our speed in parts of theirs
            speed_to_first: spreads.first().and_then(|first| first.over(wall)),
        });
        let peers = figures.collect();
        Some(OfPhase { set, phase: phase.name.into(), unit: phase.unit.into(), amount: phase.amount, peers })
    };
    Ok(times.into_iter().filter_map(of_phase).collect())
}

impl Bench {
    /// For people: tables in Markdown.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\nscale {}\n", self.environment.lines(), self.scale);
        for OfPhase { set, phase, unit, amount, peers } in &self.phases {
            text += &format!("\n{}: {phase}, {} {unit}\n\n", set.name(), grouped(*amount));
            let (rate, scale) = if unit == "bytes" { ("MiB / s", f64::from(1 << 20)) } else { ("per s", 1.0) };
            let first = peers.first().map_or("", |peer| &peer.peer);
            let mut table = Table::new(["peer", "wall s", rate, &format!("speed / {first}")]);
            for peer in peers {
                table.row([
                    peer.peer.clone(),
                    spread(&peer.wall_seconds),
                    format!("{:.0}", peer.per_second / scale),
                    maybe(peer.speed_to_first.as_ref()),
                ]);
            }
            text += &table.text();
        }
        text
    }
}
