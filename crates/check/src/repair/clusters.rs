//! Under bigalloc the blocks of one cluster of a file are in one cluster of the volume, at the same positions in it.
//! Where they are not, they are copied into a free one, as multiply-claimed blocks are: their content is the file's.

use super::work::Work;
use blockdev::Result;
use format::extent::Extent;
use format::{FileBlock, FsBlock};
use std::collections::{BTreeSet, HashMap};

/// The extents, ascending and disjoint, with which each cluster is in one place. Where too few clusters are free, all
/// blocks that are not are left out.
pub(super) fn align(work: &Work<'_>, extents: Vec<Extent>) -> Result<Vec<Extent>> {
    let ratio = u64::from(work.volume().geometry.cluster_blocks);
    let apart = apart(&extents, ratio);
    if apart.is_empty() {
        return Ok(extents);
    }
    let copies: Option<HashMap<u64, u64>> = apart.iter().map(|cluster| Some((*cluster, work.allocate()?))).collect();
    let mut aligned = Vec::new();
    for extent in extents {
        let mut done = 0;
        while done < extent.len {
            let (logical, physical) = (extent.logical.get() + u64::from(done), extent.physical.get() + u64::from(done));
            let cluster = logical / ratio;
            let mut len = (ratio - logical % ratio).min(u64::from(extent.len - done));
            let place = if apart.contains(&cluster) {
                let to = copies.as_ref().and_then(|copies| copies.get(&cluster)).map(|to| to + logical % ratio);
                if let Some(to) = to {
                    work.copy_blocks(physical, to, len)?;
                }
                to
            } else {
                // the clusters up to the next one that is copied
                while len < u64::from(extent.len - done) && !apart.contains(&((logical + len) / ratio)) {
                    len = (len + ratio).min(u64::from(extent.len - done));
                }
                Some(physical)
            };
            if let Some(place) = place {
                let (logical, physical) = (FileBlock(logical), FsBlock(place));
                push(&mut aligned, Extent { logical, physical, len: len as u32, unwritten: extent.unwritten });
            }
            done += len as u32;
        }
    }
    Ok(aligned)
}

/// The clusters of the file whose blocks are in several clusters, or at other positions.
fn apart(extents: &[Extent], ratio: u64) -> BTreeSet<u64> {
    let mut apart = BTreeSet::new();
    let mut before: Option<(u64, u64)> = None;
    for extent in extents {
        let (logical, physical, len) = (extent.logical.get(), extent.physical.get(), u64::from(extent.len));
        let clusters = logical / ratio..=(logical + len).saturating_sub(1) / ratio;
        if before.is_some_and(|(file, volume)| file == *clusters.start() && volume != physical / ratio) {
            apart.insert(*clusters.start());
        }
        before = Some((*clusters.end(), (physical + len).saturating_sub(1) / ratio));
        if physical % ratio != logical % ratio {
            apart.extend(clusters);
        }
    }
    apart
}

/// Adds an extent, merged with the last one where they are contiguous.
pub(super) fn push(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.logical.get() + u64::from(last.len) == extent.logical.get()
        && last.physical.get() + u64::from(last.len) == extent.physical.get()
        && last.unwritten == extent.unwritten
        && last.len + extent.len <= u32::from(format::extent::MAX_INIT_LEN) - u32::from(extent.unwritten)
    {
        last.len += extent.len;
    } else {
        extents.push(extent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &[(u64, u64, u32)]) -> Vec<u64> {
        let extent = |&(logical, physical, len)| Extent {
            logical: FileBlock(logical),
            physical: FsBlock(physical),
            len,
            unwritten: false,
        };
        apart(&list.iter().map(extent).collect::<Vec<_>>(), 4).into_iter().collect()
    }

    #[test]
    fn clusters_that_are_not_in_one_place_are_found() {
        assert_eq!(found(&[(0, 40, 9), (9, 49, 2), (12, 80, 8)]), []);
        assert_eq!(found(&[(0, 41, 9)]), [0, 1, 2], "at other positions");
        assert_eq!(found(&[(0, 40, 2), (2, 82, 6)]), [0], "in two clusters");
        assert_eq!(found(&[(0, 40, 2), (3, 43, 1), (4, 47, 1), (5, 45, 3)]), [1]);
        assert_eq!(found(&[(1, 41, 1), (2, 82, 1), (3, 43, 1)]), [0]);
    }
}
