//! The owners of multiply-claimed blocks.
//!
//! The block map has the inode of each repeated claim, and its saved maps show in which segment of the scan a block was
//! first claimed. Only these segments are read once more, without checking, and each claim on a multiply-claimed
//! cluster is recorded with its inode, once from the first such cluster to the last. Time and memory are linear in the
//! claims and in the runs of multiply-claimed clusters (but for a logarithm), however many inodes share a block and
//! however long the claims are: each inode is reported once, with the number of blocks that it shares and of the inodes
//! that it shares them with. [`sharers`] counts the inodes, [`subtrees`] the blocks beneath a shared node of a block
//! map.

mod sharers;
mod subtrees;

use crate::claims::Claims;
use crate::context::Context;
use crate::problem::Problem;
use crate::scan::Scanner;
use crate::scan::log::ScanLog;
use crate::scan::walk::Claimer;
use crate::system_zone;
use crate::table::Code;
use format::{FsBlock, InodeNo};
use parking_lot::Mutex;
use sharers::Sharers;
use std::collections::BTreeSet;
use std::ops::Range;

/// The recorder of the owners of multiply-claimed clusters.
pub(crate) struct Owners {
    conflicts: Vec<Range<u64>>,
    records: Mutex<Vec<OwnerRecord>>,
}

/// One claim on multiply-claimed clusters, and on those between them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerRecord {
    /// 0 for the volume's own metadata.
    pub(crate) inode: InodeNo,
    /// The first multiply-claimed cluster.
    start: u64,
    /// The cluster after the last.
    end: u64,
}

/// The multiply-claimed clusters and their owners.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The clusters: ascending, disjoint.
    pub(crate) conflicts: Vec<Range<u64>>,
    /// The number of clusters in the conflicts before each, and in all.
    before: Vec<u64>,
    /// The claims on them, ascending by inode.
    pub(crate) records: Vec<OwnerRecord>,
}

impl Owners {
    /// The owners of the conflicts in the context's block map; `None` where there are none. Starts with the conflicting
    /// claims outside `segments`, which will be read again.
    pub(crate) fn of(ctx: &Context<'_>, segments: &BTreeSet<u32>) -> Option<Self> {
        let conflicts = ctx.claims.conflicts();
        if conflicts.is_empty() {
            return None;
        }
        let owners = Self { conflicts, records: Mutex::new(Vec::new()) };
        for blocks in system_zone::blocks(ctx.volume) {
            owners.claim(InodeNo(0), ctx.claims.clusters_of(&blocks));
        }
        for again in ctx.claims.take_again_outside(segments) {
            owners.claim(again.inode, again.clusters);
        }
        Some(owners)
    }

    /// Reports each inode that shares blocks; with `files_may` (feature `shared_blocks`) only those that share them
    /// with metadata.
    pub(crate) fn report(self, ctx: &Context<'_>, scanner: &Scanner<'_>, log: &ScanLog, files_may: bool) -> Sharing {
        let sharing = Sharing::new(self.conflicts, self.records.into_inner());
        let beneath = subtrees::count(ctx, scanner, log, &sharing);
        let sharers = Sharers::of(&sharing);
        let cluster_blocks = u64::from(ctx.volume.geometry.cluster_blocks);
        let first = u64::from(ctx.volume.geometry.first_data_block);
        for (inode, claims) in sharing.of_each_inode().filter(|(inode, _)| inode.get() != 0) {
            let share = sharers.share(inode, claims);
            let clusters = share.clusters.saturating_add(beneath.get(&inode).copied().unwrap_or(0));
            let at = |code| {
                Problem::new(code)
                    .inode(inode)
                    .block(FsBlock(first + share.first * cluster_blocks))
                    .count(clusters.saturating_mul(cluster_blocks))
                    .found(share.others)
                    .name(share.other_owners())
            };
            // metadata has no inode number that could be listed
            if !files_may && (share.others > 0 || !share.with_metadata) {
                ctx.report(at(Code::FileSharesBlocks));
            }
            if share.with_metadata {
                ctx.report(at(Code::FileSharesWithMetadata));
            }
        }
        sharing
    }
}

impl Sharing {
    fn new(conflicts: Vec<Range<u64>>, mut records: Vec<OwnerRecord>) -> Self {
        records.sort_unstable();
        let mut clusters = 0;
        let mut before = vec![0];
        before.extend(conflicts.iter().map(|conflict| {
            clusters += conflict.end - conflict.start;
            clusters
        }));
        Self { conflicts, before, records }
    }

    /// The claims of each inode, ascending.
    fn of_each_inode(&self) -> impl Iterator<Item = (InodeNo, &[OwnerRecord])> {
        let by_inode = self.records.chunk_by(|a, b| a.inode == b.inode);
        by_inode.filter_map(|claims| Some((claims.first()?.inode, claims)))
    }

    /// The conflicts that the claims of one inode touch, as disjoint ranges of their positions.
    fn touched(&self, claims: &[OwnerRecord]) -> impl Iterator<Item = Range<usize>> {
        let mut done = 0;
        claims.iter().filter_map(move |claim| {
            let from = self.conflicts.partition_point(|c| c.end <= claim.start).max(done);
            let to = self.conflicts.partition_point(|c| c.start < claim.end);
            done = done.max(to);
            (from < to).then_some(from..to)
        })
    }

    /// The number of multiply-claimed clusters before a cluster.
    fn clusters_before(&self, cluster: u64) -> u64 {
        let at = self.conflicts.partition_point(|c| c.end <= cluster);
        let whole = self.before.get(at).copied().unwrap_or_default();
        whole + self.conflicts.get(at).map_or(0, |conflict| cluster.saturating_sub(conflict.start))
    }

    /// The number of multiply-claimed clusters among these.
    fn clusters_among(&self, clusters: Range<u64>) -> u64 {
        self.clusters_before(clusters.end).saturating_sub(self.clusters_before(clusters.start))
    }

    /// The position of a cluster among all multiply-claimed ones; `None` where it is not one of them.
    pub(crate) fn place(&self, cluster: u64) -> Option<usize> {
        let at = self.conflicts.partition_point(|c| c.end <= cluster);
        let conflict = self.conflicts.get(at).filter(|conflict| conflict.contains(&cluster))?;
        Some((self.before.get(at)? + (cluster - conflict.start)) as usize)
    }

    /// The [places](Self::place) of the clusters that the claims of an inode are on.
    pub(crate) fn places_of(&self, inode: InodeNo) -> impl Iterator<Item = Range<usize>> {
        let from = self.records.partition_point(|record| record.inode < inode);
        let own = self.records.iter().skip(from).take_while(move |record| record.inode == inode);
        own.map(|record| self.clusters_before(record.start) as usize..self.clusters_before(record.end) as usize)
    }

    /// The places of the multiply-claimed clusters among these.
    pub(crate) fn places_within(&self, clusters: Range<u64>) -> Range<u64> {
        self.clusters_before(clusters.start)..self.clusters_before(clusters.end)
    }

    /// Counts the claims on each multiply-claimed cluster by the inodes that `is_counted` selects, by
    /// [place](Self::place).
    pub(crate) fn claims_on_each(&self, is_counted: impl Fn(InodeNo) -> bool) -> Vec<u32> {
        let counted = self.records.iter().filter(|record| is_counted(record.inode));
        let place = |cluster: u64| self.clusters_before(cluster) as usize;
        let places = counted.map(|record| place(record.start)..place(record.end));
        count_ranges(self.before.last().copied().unwrap_or_default() as usize, places)
    }
}

/// Counts for each of `len` places the ranges that contain it: from their ends, however long they are.
fn count_ranges(len: usize, ranges: impl Iterator<Item = Range<usize>>) -> Vec<u32> {
    let mut counts = vec![0u32; len + 1];
    for range in ranges {
        if let Some(count) = counts.get_mut(range.start) {
            *count = count.wrapping_add(1);
        }
        if let Some(count) = counts.get_mut(range.end) {
            *count = count.wrapping_sub(1);
        }
    }
    let mut sum = 0u32;
    for count in &mut counts {
        sum = sum.wrapping_add(*count);
        *count = sum;
    }
    counts.truncate(len);
    counts
}

/// The clusters that one inode shares.
struct Share {
    /// the first cluster it shares
    first: u64,
    clusters: u64,
    /// the most others that share one run with it
    others: u64,
    /// the first of these
    named: Vec<InodeNo>,
    with_metadata: bool,
}

impl Share {
    /// The other owners, as text.
    fn other_owners(&self) -> String {
        let numbers: Vec<String> = self.named.iter().map(|inode| inode.to_string()).collect();
        let more = if self.others > self.named.len() as u64 { " and more" } else { "" };
        match numbers.as_slice() {
            [] => "itself".to_owned(),
            [one] => format!("inode {one}"),
            _ => format!("inodes {}{more}", numbers.join(", ")),
        }
    }
}

/// Maximum number of other owners that are listed for a file.
const NAMED: usize = 4;

impl Claimer for Owners {
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool {
        let from = self.conflicts.partition_point(|c| c.end <= clusters.start);
        let to = self.conflicts.partition_point(|c| c.start < clusters.end);
        let met = self.conflicts.get(from..to).filter(|_| !clusters.is_empty()).unwrap_or_default();
        if let (Some(first), Some(last)) = (met.first(), met.last()) {
            let (start, end) = (first.start.max(clusters.start), last.end.min(clusters.end));
            self.records.lock().push(OwnerRecord { inode, start, end });
        }
        true
    }

    fn is_checking(&self) -> bool {
        false
    }
}

/// A claimer that repeats the claims of a scan in a block map that was cleared, without checking.
pub(crate) struct Recount<'a>(pub(crate) &'a Claims);

impl Claimer for Recount<'_> {
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool {
        !self.0.claim_for(inode, clusters)
    }

    fn is_checking(&self) -> bool {
        false
    }
}
