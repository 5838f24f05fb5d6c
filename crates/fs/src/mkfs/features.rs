//! The features of the volume, and the combinations that are not possible.

use super::MkfsOptions;
use super::error::{Result, refuse};
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::space_map::{LEAST_LOG, MOST_LOG};

/// Features that a native volume may have besides those it always has.
const OPTIONAL: Features = Features {
    compat: Compat::STABLE_INODES,
    incompat: Incompat::CSUM_SEED.union(Incompat::LARGE_DIR).union(Incompat::INLINE_DATA),
    ro_compat: RoCompat::empty(),
};

/// The features that result from `options`.
pub(super) fn resolve(options: &MkfsOptions) -> Result<Features> {
    let mut features = options.features.apply(options.kind.features());
    if options.encoding.is_some() {
        features.incompat |= Incompat::CASEFOLD;
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        features.ro_compat -= RoCompat::GDT_CSUM;
    }
    // features set only by the type are dropped if requested ones exclude them
    let asked = |compat, incompat, ro_compat| options.features.sets(Features { compat, incompat, ro_compat });
    let (none, nothing) = (Compat::empty(), RoCompat::empty());
    if features.incompat.contains(Incompat::META_BG)
        && features.compat.contains(Compat::RESIZE_INODE)
        && !asked(Compat::RESIZE_INODE, Incompat::empty(), nothing)
    {
        features.compat -= Compat::RESIZE_INODE;
    }
    if features.ro_compat.contains(RoCompat::EXTANT_RO)
        && !options.kind.has_space_maps()
        && !asked(Compat::RESIZE_INODE, Incompat::empty(), nothing)
    {
        // the kernel's resizing does not support space maps
        features.compat -= Compat::RESIZE_INODE;
    }
    if !features.incompat.contains(Incompat::EXTENT)
        && options.kind.drops_64bit_without_extents()
        && !asked(none, Incompat::BIT64, nothing)
    {
        features.incompat -= Incompat::BIT64;
    }
    consistent(&features, options)?;
    if options.kind.has_map() && features != options.kind.features() {
        // the required features of the format, and features that would have no effect in it
        let more = features.without(options.kind.features()).without(OPTIONAL);
        let fewer = options.kind.features().without(features);
        if let Some(name) = more.names().first() {
            return refuse(format!("feature {name} is not available with -t extant"));
        }
        if let Some(name) = fewer.names().first() {
            return refuse(format!("feature {name} cannot be omitted with -t extant"));
        }
    }
    Ok(features)
}

fn consistent(features: &Features, options: &MkfsOptions) -> Result<()> {
    let compat = |feature| features.compat.contains(feature);
    let incompat = |feature| features.incompat.contains(feature);
    let ro_compat = |feature| features.ro_compat.contains(feature);
    let regions = options.kind.has_regions();
    let space_maps = ro_compat(RoCompat::EXTANT_RO);
    let rules = [
        (incompat(Incompat::BIT64) && !incompat(Incompat::EXTENT) && !regions, "64bit needs the feature extent"),
        (
            regions && !(incompat(Incompat::EXTANT) && incompat(Incompat::BIT64) && ro_compat(RoCompat::METADATA_CSUM)),
            "rext3 needs the features extant, 64bit and metadata_csum",
        ),
        (
            regions && (compat(Compat::RESIZE_INODE) || ro_compat(RoCompat::BIGALLOC)),
            "rext3 cannot have the features resize_inode and bigalloc",
        ),
        (options.region_bytes.is_some() && !regions, "region= needs the type rext3"),
        (space_maps && options.kind.has_map(), "the type extant cannot have the feature space_maps"),
        (space_maps && !incompat(Incompat::FLEX_BG), "space_maps needs the feature flex_bg"),
        (space_maps && ro_compat(RoCompat::BIGALLOC), "space_maps cannot have the feature bigalloc"),
        (space_maps && compat(Compat::RESIZE_INODE), "space_maps cannot have the feature resize_inode"),
        (space_maps && options.packed_meta_blocks, "space_maps cannot be used with packed_meta_blocks"),
        (options.kind.has_space_maps() && !space_maps, "the type spacemap needs the feature space_maps"),
        (options.metablockgroup_bytes.is_some() && !space_maps, "metablockgroup= needs the feature space_maps"),
        (options.space_map_log.is_some() && !space_maps, "space_map_log= needs the feature space_maps"),
        (
            options.space_map_log.is_some_and(|blocks| !(LEAST_LOG..=MOST_LOG).contains(&blocks)),
            "space_map_log=: a log of space maps has from 4 to 16384 blocks",
        ),
        (ro_compat(RoCompat::BIGALLOC) && !incompat(Incompat::EXTENT), "bigalloc needs the feature extent"),
        (
            compat(Compat::RESIZE_INODE) && incompat(Incompat::META_BG),
            "resize_inode and meta_bg exclude each other: both are ways to grow",
        ),
        (
            compat(Compat::RESIZE_INODE) && !ro_compat(RoCompat::SPARSE_SUPER) && !compat(Compat::SPARSE_SUPER2),
            "resize_inode needs the feature sparse_super: the inode has no space for a copy in every group",
        ),
        (
            incompat(Incompat::CSUM_SEED) && !ro_compat(RoCompat::METADATA_CSUM),
            "metadata_csum_seed needs the feature metadata_csum",
        ),
        (compat(Compat::ORPHAN_FILE) && !compat(Compat::HAS_JOURNAL), "orphan_file needs the feature has_journal"),
        (options.groups_per_flex.is_some() && !incompat(Incompat::FLEX_BG), "-G needs the feature flex_bg"),
        (options.packed_meta_blocks && !incompat(Incompat::FLEX_BG), "packed_meta_blocks needs the feature flex_bg"),
        (options.cluster_size.is_some() && !ro_compat(RoCompat::BIGALLOC), "-C needs the feature bigalloc"),
        (
            options.journal_mib.is_some() && !compat(Compat::HAS_JOURNAL),
            "a journal's size needs the feature has_journal",
        ),
        (
            options.fast_commit_kib.is_some() && !compat(Compat::FAST_COMMIT),
            "a size of the fast-commit area needs the feature fast_commit",
        ),
        (options.resize_blocks.is_some() && !compat(Compat::RESIZE_INODE), "resize= needs the feature resize_inode"),
        (
            options.quota.is_some_and(|kinds| kinds.project) && !ro_compat(RoCompat::PROJECT),
            "quota of projects needs the feature project",
        ),
    ];
    match rules.into_iter().find(|rule| rule.0) {
        Some((_, why)) => refuse(why),
        None => Ok(()),
    }
}
