//! The inodes that share each run of multiply-claimed clusters.
//!
//! The claims of an inode touch ranges of the runs. The owners of all runs are counted from the ends of these ranges,
//! and only the lowest few of each are listed, so very many claims on very many runs take no more than their sum.

use super::{NAMED, OwnerRecord, Share, Sharing, count_ranges};
use format::InodeNo;
use std::cmp::Reverse;
use std::ops::Range;

/// The lowest owners of a conflict, ascending; 0 where there are fewer. One more than are named, as an inode is not
/// named to itself.
type Lowest = [InodeNo; NAMED + 1];

/// The owners of all conflicts.
pub(super) struct Sharers<'a> {
    sharing: &'a Sharing,
    /// The number of inodes that claim a part of each.
    owners: Vec<u32>,
    /// The first of them.
    lowest: Vec<Lowest>,
    /// The number of conflicts with metadata before each, and of all.
    with_metadata: Vec<u32>,
    /// A tree over the conflicts, which are its leaves in the second half: each node is the conflict with the most
    /// owners beneath it; the children of node `n` are `2 * n` and the next.
    most: Vec<usize>,
}

impl<'a> Sharers<'a> {
    /// Counts the owners of all conflicts.
    pub(super) fn of(sharing: &'a Sharing) -> Self {
        let conflicts = sharing.conflicts.len();
        let touched_by = |metadata: bool| {
            let claims = sharing.of_each_inode().filter(move |(inode, _)| (inode.get() == 0) == metadata);
            count_ranges(conflicts, claims.flat_map(|(_, claims)| sharing.touched(claims)))
        };
        let owners = touched_by(false);
        let mut with_metadata = vec![0];
        let mut sum = 0;
        with_metadata.extend(touched_by(true).into_iter().map(|ranges| {
            sum += u32::from(ranges > 0);
            sum
        }));
        let most = most_owned(&owners);
        Self { sharing, owners, lowest: lowest(sharing), with_metadata, most }
    }

    /// Determines the clusters that an inode shares, and with which others; `claims` are all of the inode's.
    pub(super) fn share(&self, inode: InodeNo, claims: &[OwnerRecord]) -> Share {
        let clusters = claims.iter().map(|claim| self.sharing.clusters_among(claim.start..claim.end));
        let mut share = Share {
            first: claims.first().map_or(0, |claim| claim.start),
            clusters: clusters.fold(0, u64::saturating_add),
            others: 0,
            named: Vec::new(),
            with_metadata: false,
        };
        let mut shared_most = None;
        for among in self.sharing.touched(claims) {
            share.with_metadata |= self.with_metadata.get(among.start) < self.with_metadata.get(among.end);
            let Some(conflict) = self.most_owned_in(among) else { continue };
            // the inode itself is one of the owners
            let others = u64::from(self.owners.get(conflict).copied().unwrap_or_default()).saturating_sub(1);
            if others > share.others {
                share.others = others;
                shared_most = self.lowest.get(conflict);
            }
        }
        let named = shared_most.into_iter().flatten().filter(|other| other.get() != 0 && **other != inode);
        share.named = named.take(NAMED).copied().collect();
        share
    }

    /// The conflict with the most owners in a range of them, the first of several.
    fn most_owned_in(&self, among: Range<usize>) -> Option<usize> {
        let conflicts = self.owners.len();
        let (mut from, mut to) = (among.start + conflicts, among.end + conflicts);
        let mut best = None;
        while from < to {
            if from % 2 == 1 {
                best = more_owned(&self.owners, best, self.most.get(from).copied());
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                best = more_owned(&self.owners, best, self.most.get(to).copied());
            }
            from /= 2;
            to /= 2;
        }
        best
    }
}

/// The tree of the conflicts with the most owners.
fn most_owned(owners: &[u32]) -> Vec<usize> {
    let mut tree = vec![0; owners.len()];
    tree.extend(0..owners.len());
    for node in (1..owners.len()).rev() {
        let child = |n: usize| tree.get(2 * node + n).copied();
        let best = more_owned(owners, child(0), child(1));
        if let (Some(place), Some(best)) = (tree.get_mut(node), best) {
            *place = best;
        }
    }
    tree
}

/// The one of two conflicts with more owners, the first where they have equally many.
fn more_owned(owners: &[u32], one: Option<usize>, other: Option<usize>) -> Option<usize> {
    one.into_iter().chain(other).max_by_key(|conflict| (owners.get(*conflict).copied(), Reverse(*conflict)))
}

/// Lists the lowest owners of each conflict. A full list is passed over from then on, so that each conflict is visited
/// only a few times.
fn lowest(sharing: &Sharing) -> Vec<Lowest> {
    let mut lists = vec![[InodeNo(0); NAMED + 1]; sharing.conflicts.len()];
    // leads from each conflict with a full list towards the next one without
    let mut next: Vec<usize> = (0..=lists.len()).collect();
    for (inode, claims) in sharing.of_each_inode().filter(|(inode, _)| inode.get() != 0) {
        for among in sharing.touched(claims) {
            let mut at = incomplete(&mut next, among.start);
            while at < among.end {
                let Some(list) = lists.get_mut(at) else { break };
                if let Some(entry) = list.iter_mut().find(|owner| owner.get() == 0) {
                    *entry = inode;
                }
                if list.iter().all(|owner| owner.get() != 0)
                    && let Some(place) = next.get_mut(at)
                {
                    *place = at + 1;
                }
                at = incomplete(&mut next, at + 1);
            }
        }
    }
    lists
}

/// The first conflict from `at` on whose list is not full. Shortens the path to it.
fn incomplete(next: &mut [usize], mut at: usize) -> usize {
    while let Some(to) = next.get(at).copied().filter(|to| *to != at) {
        let further = next.get(to).copied().unwrap_or(to);
        if let Some(place) = next.get_mut(at) {
            *place = further;
        }
        at = further;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use testkit::cases;

    /// The inodes that claim each cluster, once for each claim.
    fn owners_of_each(sharing: &Sharing) -> BTreeMap<u64, Vec<InodeNo>> {
        let mut owners: BTreeMap<u64, Vec<InodeNo>> = BTreeMap::new();
        for cluster in sharing.conflicts.iter().cloned().flatten() {
            let here = sharing.records.iter().filter(|record| (record.start..record.end).contains(&cluster));
            owners.insert(cluster, here.map(|record| record.inode).collect());
        }
        owners
    }

    #[test]
    fn agrees_with_the_owners_of_each_cluster() {
        for case in cases("agrees_with_the_owners_of_each_cluster", 200) {
            let mut rng = case.rng();
            let mut conflicts = Vec::new();
            let mut at = 0;
            for _ in 0..rng.between(1, 9) {
                let start = at + rng.between(1, 5);
                at = start + rng.between(1, 5);
                conflicts.push(start..at);
            }
            let record = |_| {
                let inode = InodeNo(rng.below(9) as u32);
                let cut = |n: u64| conflicts.iter().map(move |c: &Range<u64>| n.clamp(c.start, c.end - 1));
                let (a, b) = (rng.below(at + 1), rng.below(at + 1));
                let nearest = |n: u64| cut(n).min_by_key(|place| place.abs_diff(n)).unwrap_or_default();
                let (a, b) = (nearest(a), nearest(b));
                OwnerRecord { inode, start: a.min(b), end: a.max(b) + 1 }
            };
            let records = (0..case.rng().between(1, 40)).map(record).collect();
            let sharing = Sharing::new(conflicts, records);
            let sharers = Sharers::of(&sharing);
            let owners = owners_of_each(&sharing);
            let counts = sharing.claims_on_each(|inode| inode.get() != 0);
            assert_eq!(counts.len(), owners.len(), "{case:?}");
            for (cluster, owners) in &owners {
                let claims = owners.iter().filter(|owner| owner.get() != 0).count();
                let place = sharing.place(*cluster).expect("a conflict");
                assert_eq!(counts[place] as usize, claims, "{case:?}: {cluster}");
            }
            assert_eq!(sharing.place(0), None);
            for (inode, claims) in sharing.of_each_inode().filter(|(inode, _)| inode.get() != 0) {
                let share = sharers.share(inode, claims);
                let of_conflict = |conflict: &Range<u64>| -> BTreeSet<InodeNo> {
                    conflict.clone().flat_map(|cluster| owners[&cluster].iter().copied()).collect()
                };
                let own = sharing.conflicts.iter().map(of_conflict).filter(|all| all.contains(&inode));
                let own: Vec<BTreeSet<InodeNo>> = own.collect();
                let files = |all: &BTreeSet<InodeNo>| -> Vec<InodeNo> {
                    all.iter().copied().filter(|other| other.get() != 0 && *other != inode).collect()
                };
                let others = own.iter().map(|all| files(all).len()).max().unwrap_or_default();
                let named = own.iter().map(files).find(|files| files.len() == others).unwrap_or_default();
                assert_eq!(share.others, others as u64, "{case:?}");
                assert_eq!(share.named, named.into_iter().take(NAMED).collect::<Vec<_>>(), "{case:?}");
                assert_eq!(share.with_metadata, own.iter().any(|all| all.contains(&InodeNo(0))), "{case:?}");
                let claimed = |all: &Vec<InodeNo>| all.iter().filter(|owner| **owner == inode).count();
                assert_eq!(share.clusters, owners.values().map(claimed).sum::<usize>() as u64, "{case:?}");
                let first = owners.iter().find(|(_, all)| all.contains(&inode)).map(|(cluster, _)| *cluster);
                assert_eq!(Some(share.first), first, "{case:?}");
            }
        }
    }

    #[test]
    fn many_long_claims_on_many_short_runs_are_counted_once() {
        // 100 000 claims on each of 100 000 runs: only work in proportion to their sum ends
        let runs = 100_000u64;
        let conflicts = (0..runs).map(|n| 2 * n..2 * n + 1).collect();
        let record = |n: u64| OwnerRecord { inode: InodeNo(n as u32 + 12), start: 0, end: 2 * runs - 1 };
        let sharing = Sharing::new(conflicts, (0..runs).map(record).collect());
        let sharers = Sharers::of(&sharing);
        for (inode, claims) in sharing.of_each_inode() {
            let share = sharers.share(inode, claims);
            assert_eq!((share.first, share.clusters, share.others), (0, runs, runs - 1));
            assert_eq!(share.named.len(), NAMED);
        }
        assert!(sharing.claims_on_each(|_| true).into_iter().all(|claims| u64::from(claims) == runs));
    }
}
