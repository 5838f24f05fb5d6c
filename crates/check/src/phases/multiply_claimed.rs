//! The owners of multiply-claimed blocks.
//!
//! The block map has the inode of each repeated claim, and its saved maps show in which segment of the scan a block was
//! first claimed. Only these segments are read once more, without checking, and each claim on a multiply-claimed
//! cluster is recorded with its inode. Linear in the claims, however many inodes share a block: each inode is reported
//! once, with the number of blocks that it shares and of the inodes that it shares them with. [`subtrees`] counts the
//! blocks beneath a shared node of a block map.

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
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The recorder of the owners of multiply-claimed clusters.
pub(crate) struct Owners {
    conflicts: Vec<Range<u64>>,
    records: Mutex<Vec<OwnerRecord>>,
}

/// One claim on multiply-claimed clusters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerRecord {
    /// The first cluster.
    pub(crate) start: u64,
    /// The cluster after the last.
    pub(crate) end: u64,
    /// 0 for the volume's own metadata.
    pub(crate) inode: InodeNo,
}

/// The multiply-claimed clusters and their owners.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The clusters: ascending, disjoint.
    pub(crate) conflicts: Vec<Range<u64>>,
    /// The claims on them, ascending.
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
        for again in ctx.claims.claimed_again_outside(segments) {
            owners.claim(again.inode, again.clusters);
        }
        Some(owners)
    }

    /// Reports each inode that shares blocks; with `files_may` (feature `shared_blocks`) only those that share them
    /// with metadata.
    pub(crate) fn report(self, ctx: &Context<'_>, scanner: &Scanner<'_>, log: &ScanLog, files_may: bool) -> Sharing {
        let beneath = subtrees::count(ctx, scanner, log, &self.conflicts);
        let mut records = self.records.into_inner();
        records.sort_unstable();
        let mut shares: BTreeMap<InodeNo, Share> = BTreeMap::new();
        for conflict in &self.conflicts {
            let from = records.partition_point(|n| n.end <= conflict.start);
            let here = records.get(from..).unwrap_or_default();
            let here = here.iter().take_while(|n| n.start < conflict.end);
            let with_metadata = here.clone().any(|n| n.inode.get() == 0);
            let mut owners: Vec<InodeNo> = here.clone().map(|n| n.inode).filter(|owner| owner.get() != 0).collect();
            owners.sort_unstable();
            owners.dedup();
            for record in here.filter(|n| n.inode.get() != 0) {
                let share = shares.entry(record.inode).or_insert(Share {
                    first: record.start,
                    clusters: 0,
                    others: 0,
                    named: Vec::new(),
                    with_metadata: false,
                });
                share.clusters += record.end.min(conflict.end) - record.start.max(conflict.start);
                // the inode itself is one of the owners
                let others = (owners.len() as u64).saturating_sub(1);
                if others > share.others {
                    let named = owners.iter().filter(|other| **other != record.inode).take(NAMED);
                    (share.others, share.named) = (others, named.copied().collect());
                }
                share.with_metadata |= with_metadata;
            }
        }
        let cluster_blocks = u64::from(ctx.volume.geometry.cluster_blocks);
        let first = u64::from(ctx.volume.geometry.first_data_block);
        for (inode, share) in shares {
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
        Sharing { conflicts: self.conflicts, records }
    }
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
        let met = self.conflicts.get(from..).unwrap_or_default().iter();
        let met = met.take_while(|c| c.start < clusters.end && !clusters.is_empty());
        for conflict in met {
            let record =
                OwnerRecord { start: conflict.start.max(clusters.start), end: conflict.end.min(clusters.end), inode };
            self.records.lock().push(record);
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
