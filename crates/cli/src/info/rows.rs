//! The rows of superblock, journal and multiple-mount protection, in display order.

use super::{Section, quoted, space_maps};
use crate::error_report::Complaints;
use crate::output::{SECONDS, counted, human, local_time, utc_time};
use check::render::escape;
use format::feature::{Compat, RoCompat};
use format::hash::HashVersion;
use format::jbd2::JournalSuperblock;
use format::mmp::{Mmp, Use};
use format::superblock::{DiskSuperblock, Flags, State};
use fs::{COUNTED_GROUPS, Generations, SpaceMapSummary, Timestamp, Volume, VolumeSummary};
use serde_json::{Value, json};
use uuid::Uuid;

/// All sections that apply to this volume, which is `mounted` or not.
pub(super) fn sections(
    volume: &Volume,
    summary: &VolumeSummary,
    space_maps: Option<&SpaceMapSummary>,
    mounted: bool,
    complaints: &mut Complaints<'_>,
) -> Vec<Section> {
    let identity = identity(volume, summary, space_maps.is_some());
    let mut sections = vec![identity, state(volume, summary, mounted), space(volume, summary, space_maps)];
    sections.extend(space_maps.map(|found| space_maps::section(found, volume.superblock().geometry.block_size)));
    sections.extend(summary.generations.as_ref().map(generations));
    sections.extend([layout(volume), history(volume)]);
    sections.extend(errors(volume));
    sections.extend(journal(volume, complaints));
    sections.extend(multiple_mount(volume, complaints));
    sections
}

fn identity(volume: &Volume, summary: &VolumeSummary, space_maps: bool) -> Section {
    let sb = volume.superblock();
    let disk = &sb.disk;
    let mut s = Section::new("Volume", "identity");
    let format = summary.format;
    let with = if space_maps { " with space maps" } else { "" };
    s.row("Format", "format", format!("{format}{with}"), format);
    s.row("Label", "label", quoted(&disk.label()), disk.label());
    let uuid = Uuid::from_bytes(disk.s_uuid).to_string();
    s.row("UUID", "uuid", uuid.clone(), uuid);
    s.row("Last mounted at", "last_mounted", quoted(&disk.last_mounted()), disk.last_mounted());
    let revision = disk.s_rev_level.get();
    let name = if revision == 0 { "fixed inode size, no features" } else { "dynamic" };
    s.row("Revision", "revision", format!("{revision} ({name})"), revision);
    let creator = match disk.s_creator_os.get() {
        0 => "Linux",
        1 => "GNU/Hurd",
        2 => "Masix",
        3 => "FreeBSD",
        4 => "Lites",
        _ => "unknown",
    };
    s.row("Creator", "creator", creator, creator);
    let features = sb.features.names();
    s.row("Features", "features", list(&features), features);
    s
}

fn state(volume: &Volume, summary: &VolumeSummary, mounted: bool) -> Section {
    let sb = volume.superblock();
    let disk = &sb.disk;
    let mut s = Section::new("State", "state");
    let state = State::from_bits_retain(disk.s_state.get());
    let recover = sb.features.incompat.contains(format::feature::Incompat::NEEDS_RECOVERY);
    let in_superblock = match (state.contains(State::VALID) && !recover, mounted) {
        (true, _) => "clean",
        (false, true) => "mounted",
        (false, false) => "not unmounted",
    };
    let mut words = vec![summary.state.unwrap_or(in_superblock)];
    match journal_is_empty(volume) {
        Some(false) => words.push("journal not empty"),
        Some(true) if recover => words.push("journal empty"),
        None if recover => words.push("recovery needed"),
        _ => {}
    }
    if state.contains(State::ERROR) {
        words.push("errors detected");
    }
    if state.contains(State::ORPHAN) {
        words.push("orphans are being recovered");
    }
    if state.contains(State::FC_REPLAY) {
        words.push("fast commits are being replayed");
    }
    s.row("State", "state", words.join(", "), words);
    let orphan = disk.s_last_orphan.get();
    if orphan != 0 {
        s.number("First orphan", "first_orphan", orphan);
    }
    if sb.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
        s.row("Orphan file", "orphan_file_used", "has entries", true);
    }
    let on_error = match disk.s_errors.get() {
        1 => "continue",
        2 => "remount read-only",
        3 => "panic",
        _ => "unknown",
    };
    s.row("On errors", "on_errors", on_error, on_error);
    let options = mount_options(disk);
    s.row("Mount options", "mount_options", list(&options), options);
    let flags = Flags::from_bits_retain(disk.s_flags.get());
    let hash = HashVersion::from_raw(disk.s_def_hash_version);
    let name = match hash {
        Some(HashVersion::Legacy | HashVersion::LegacyUnsigned) => "legacy",
        Some(HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned) => "half_md4",
        Some(HashVersion::Tea | HashVersion::TeaUnsigned) => "tea",
        Some(HashVersion::SipHash) => "siphash",
        None => "unknown",
    };
    if sb.features.compat.contains(Compat::DIR_INDEX) {
        let sign = if flags.contains(Flags::UNSIGNED_HASH) { "unsigned" } else { "signed" };
        s.row("Directory hash", "directory_hash", name, name);
        s.row("Hash sign", "directory_hash_sign", sign, sign);
        let seed = Uuid::from_bytes(bytes_of(disk.hash_seed())).to_string();
        s.row("Hash seed", "directory_hash_seed", seed.clone(), seed);
    }
    if disk.s_encoding.get() != 0 {
        let strict = if disk.s_encoding_flags.get() & 1 != 0 { ", strict" } else { "" };
        let name = if disk.s_encoding.get() == 1 { "utf8-12.1" } else { "unknown" };
        s.row("Name encoding", "encoding", format!("{name}{strict}"), name);
    }
    s
}

/// Number of free blocks.
pub(super) fn free_blocks(volume: &Volume, summary: &VolumeSummary, space_maps: Option<&SpaceMapSummary>) -> u64 {
    // with space maps the superblock does not count free blocks
    let in_superblock = summary.counts_free && space_maps.is_none();
    if in_superblock { volume.superblock().disk.free_blocks_count() } else { volume.statfs().blocks_free }
}

fn space(volume: &Volume, summary: &VolumeSummary, space_maps: Option<&SpaceMapSummary>) -> Section {
    let sb = volume.superblock();
    let (disk, geometry) = (&sb.disk, &sb.geometry);
    let block_size = u64::from(geometry.block_size);
    let mut s = Section::new("Space", "space");
    let mut blocks = |label, key, count: u64| {
        let size = human(count.saturating_mul(block_size));
        s.row(label, key, format!("{size} ({})", counted(count, "block", "blocks")), count);
    };
    blocks("Size", "blocks", summary.blocks);
    let statfs = volume.statfs();
    blocks("Free", "free_blocks", free_blocks(volume, summary, space_maps));
    blocks("Reserved", "reserved_blocks", disk.reserved_blocks_count());
    let metadata = summary.metadata_blocks.unwrap_or_else(|| summary.blocks.saturating_sub(statfs.blocks));
    blocks("Metadata", "overhead_blocks", metadata);
    let user = u32::from(disk.s_def_resuid_hi.get()) << 16 | u32::from(disk.s_def_resuid.get());
    let group = u32::from(disk.s_def_resgid_hi.get()) << 16 | u32::from(disk.s_def_resgid.get());
    s.row("Reserved for", "reserved_for", format!("user {user}, group {group}"), json!({"uid": user, "gid": group}));
    s.number("Inodes", "inodes", geometry.inodes);
    s.number("Free inodes", "free_inodes", disk.s_free_inodes_count.get());
    s
}

/// The physical layer of a volume with generations.
fn generations(native: &Generations) -> Section {
    let mut s = Section::new("Generations", "native");
    s.number("Generation", "generation", native.superblock.generation);
    s.number("Active superblock", "superblock_block", native.copy);
    let layout = native.layout();
    let levels = u64::from(layout.levels());
    let map = format!("{} of nodes over {} metadata blocks", counted(levels, "level", "levels"), layout.indexes());
    s.row("Map", "map", map, json!({"levels": levels, "indexes": layout.indexes()}));
    let size = |blocks: u64| human(blocks.saturating_mul(format::native::BLOCK_SIZE.into()));
    let chunks = format!("{} ({})", counted(native.chunks, "chunk", "chunks"), size(native.physical_blocks));
    s.row("Metadata regions", "chunks", chunks, native.chunks);
    let mut blocks = |label, key, count: u64| {
        s.row(label, key, format!("{} ({})", size(count), counted(count, "block", "blocks")), count);
    };
    blocks("Metadata in use", "used_physical_blocks", native.used);
    blocks("Metadata pinned by snapshots", "pinned_physical_blocks", native.pinned);
    blocks("Metadata free", "free_physical_blocks", native.physical_blocks.saturating_sub(native.used + native.pinned));
    let snapshots = native.snapshots.iter().map(|snapshot| {
        json!({
            "name": String::from_utf8_lossy(&snapshot.name),
            "generation": snapshot.generation,
            "time": utc_time(Timestamp { seconds: snapshot.time, nanos: 0 }),
        })
    });
    let names: Vec<String> = native.snapshots.iter().map(|snapshot| escape(&snapshot.name)).collect();
    s.row("Snapshots", "snapshots", list(&names), snapshots.collect::<Vec<_>>());
    s
}

fn layout(volume: &Volume) -> Section {
    let sb = volume.superblock();
    let (disk, geometry) = (&sb.disk, &sb.geometry);
    let mut s = Section::new("Layout", "layout");
    let size = |bytes: u32| human(u64::from(bytes));
    s.row("Block size", "block_size", size(geometry.block_size), geometry.block_size);
    if geometry.cluster_blocks > 1 {
        let cluster = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_size);
        s.row("Cluster size", "cluster_size", human(cluster), cluster);
    }
    s.row("Inode size", "inode_size", size(geometry.inode_size), geometry.inode_size);
    if geometry.inode_size > 128 {
        let (least, wanted) = (disk.s_min_extra_isize.get(), disk.s_want_extra_isize.get());
        let text = format!("at least {least} bytes, desired {wanted}");
        s.row("Extra fields", "extra_isize", text, json!({"min": least, "want": wanted}));
    }
    s.number("Groups", "groups", geometry.groups);
    s.number("Blocks in a group", "blocks_per_group", geometry.blocks_per_group);
    let table = counted(u64::from(geometry.itable_blocks), "block", "blocks");
    let inodes = format!("{} in {table}", geometry.inodes_per_group);
    s.row("Inodes in a group", "inodes_per_group", inodes, geometry.inodes_per_group);
    s.row("Descriptor size", "descriptor_size", size(geometry.descriptor_size), geometry.descriptor_size);
    let reserved = geometry.reserved_descriptor_blocks;
    let text = counted(u64::from(reserved), "descriptor block", "descriptor blocks");
    s.row("Reserved for growth", "reserved_descriptor_blocks", text, reserved);
    if geometry.flex_groups > 1 {
        s.row("Flexible group", "flex_groups", format!("{} groups", geometry.flex_groups), geometry.flex_groups);
    }
    if geometry.first_meta_group != u32::MAX {
        s.number("First meta group", "first_meta_group", geometry.first_meta_group);
    }
    s.number("First block", "first_block", geometry.first_data_block);
    s.number("First inode", "first_inode", geometry.first_inode);
    superblock_copies(volume, &mut s);
    if disk.s_raid_stride.get() != 0 || disk.s_raid_stripe_width.get() != 0 {
        let (stride, width) = (disk.s_raid_stride.get(), disk.s_raid_stripe_width.get());
        let text = format!("stride {stride} blocks, stripe {width} blocks");
        s.row("RAID", "raid", text, json!({"stride": stride, "stripe_width": width}));
    }
    let checksums = match (geometry.metadata_csum, geometry.gdt_csum) {
        (true, _) => "crc32c of all metadata",
        (_, true) => "crc16 of group descriptors",
        _ => "none",
    };
    s.row("Checksums", "checksums", checksums, checksums);
    if geometry.metadata_csum {
        let seed = format!("{:#010x}", geometry.checksum_seed);
        s.row("Checksum seed", "checksum_seed", seed.clone(), seed);
        let own = format!("{:#010x}", disk.s_checksum.get());
        s.row("Superblock checksum", "superblock_checksum", own.clone(), own);
    }
    if !geometry.extant.is_empty() {
        let names = geometry.extant.names();
        s.row("Extant's own", "extant_features", list(&names), names);
    }
    if geometry.has_regions() {
        let text = format!("{} in each group at first", counted(disk.x_region_blocks.get().into(), "block", "blocks"));
        s.row("Metadata region", "region_blocks", text, disk.x_region_blocks.get());
    }
    for (label, key, inode) in [
        ("User quota inode", "user_quota_inode", disk.s_usr_quota_inum.get()),
        ("Group quota inode", "group_quota_inode", disk.s_grp_quota_inum.get()),
        ("Project quota inode", "project_quota_inode", disk.s_prj_quota_inum.get()),
        ("Orphan file inode", "orphan_file_inode", disk.s_orphan_file_inum.get()),
    ] {
        if inode != 0 {
            s.number(label, key, inode);
        }
    }
    s
}

/// The row of the superblock's copies, at most as many as groups are read.
fn superblock_copies(volume: &Volume, s: &mut Section) {
    let geometry = &volume.superblock().geometry;
    let backups: Vec<u64> = geometry
        .backup_groups()
        .filter_map(|group| geometry.superblock_block(group))
        .map(|block| block.get())
        .take(COUNTED_GROUPS as usize)
        .collect();
    let shown: Vec<_> = backups.iter().take(8).map(u64::to_string).collect();
    let more = match backups.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more if backups.len() == COUNTED_GROUPS as usize => format!(" and at least {more} more"),
        more => format!(" and {more} more"),
    };
    s.row("Superblock copies", "superblock_copies", format!("{}{more}", list(&shown)), backups);
}

fn history(volume: &Volume) -> Section {
    let disk = &volume.superblock().disk;
    let mut s = Section::new("History", "history");
    time(&mut s, "Created", "created", disk.s_mkfs_time.get(), disk.s_mkfs_time_hi);
    time(&mut s, "Last mounted", "mounted", disk.s_mtime.get(), disk.s_mtime_hi);
    time(&mut s, "Last written", "written", disk.s_wtime.get(), disk.s_wtime_hi);
    time(&mut s, "Last checked", "checked", disk.s_lastcheck.get(), disk.s_lastcheck_hi);
    s.number("Mounts", "mounts", disk.s_mnt_count.get());
    let most = disk.s_max_mnt_count.get().cast_signed();
    let due = if most > 0 { counted(most.unsigned_abs().into(), "mount", "mounts") } else { "never".into() };
    s.row("Max mount count", "max_mounts", due, most);
    let interval = disk.s_checkinterval.get();
    let due = match interval {
        0 => "never".to_owned(),
        seconds => counted(u64::from(seconds / 86_400), "day", "days"),
    };
    s.row("Check interval", "check_interval", due, interval);
    let kib = disk.s_kbytes_written.get();
    s.row("Lifetime writes", "kib_written", human(kib.saturating_mul(1024)), kib);
    s
}

/// Errors recorded by the kernel or a checker; `None` if there are none.
fn errors(volume: &Volume) -> Option<Section> {
    let disk = &volume.superblock().disk;
    if disk.s_error_count.get() == 0 {
        return None;
    }
    let mut s = Section::new("Errors met", "errors");
    s.number("Count", "count", disk.s_error_count.get());
    let place = |inode: u32, block: u64, function: &[u8; 32], line: u32| {
        let function = until_nul(function);
        let text = format!("in {} at line {line}, inode {inode}, block {block}", escape(function.as_bytes()));
        (text, json!({"function": function, "line": line, "inode": inode, "block": block}))
    };
    time(&mut s, "First", "first", disk.s_first_error_time.get(), disk.s_first_error_time_hi);
    let (text, value) = place(
        disk.s_first_error_ino.get(),
        disk.s_first_error_block.get(),
        &disk.s_first_error_func,
        disk.s_first_error_line.get(),
    );
    s.row("", "first_place", text, value);
    time(&mut s, "Last", "last", disk.s_last_error_time.get(), disk.s_last_error_time_hi);
    let (text, value) = place(
        disk.s_last_error_ino.get(),
        disk.s_last_error_block.get(),
        &disk.s_last_error_func,
        disk.s_last_error_line.get(),
    );
    s.row("", "last_place", text, value);
    Some(s)
}

fn journal(volume: &Volume, complaints: &mut Complaints<'_>) -> Option<Section> {
    let sb = volume.superblock();
    if !sb.features.compat.contains(Compat::HAS_JOURNAL) {
        return None;
    }
    let mut s = Section::new("Journal", "journal");
    let Some(number) = sb.journal_inode() else {
        let uuid = Uuid::from_bytes(sb.disk.s_journal_uuid).to_string();
        s.row("On the device", "device_uuid", uuid.clone(), uuid);
        return Some(s);
    };
    s.number("Inode", "inode", number.get());
    match journal_superblock(volume, number) {
        Err(e) => complaints.about(b"the journal", e),
        Ok(journal) => {
            let disk = journal.disk();
            let bytes = u64::from(disk.s_maxlen.get()).saturating_mul(u64::from(disk.s_blocksize.get()));
            let text = format!("{} ({} blocks)", human(bytes), disk.s_maxlen);
            s.row("Size", "blocks", text, disk.s_maxlen.get());
            let (compat, incompat) = (disk.compat(), disk.incompat());
            let names = compat.iter_names().map(|(name, _)| name).chain(incompat.iter_names().map(|(name, _)| name));
            let features: Vec<_> =
                names.map(|name| if name == "BIT64" { "64bit".to_owned() } else { name.to_lowercase() }).collect();
            s.row("Features", "features", list(&features), features);
            let fast = journal.fast_commit_blocks();
            if !fast.is_empty() {
                s.number("Fast-commit blocks", "fast_commit_blocks", fast.end - fast.start);
            }
            s.row("Sequence", "sequence", format!("{:#010x}", journal.sequence()), journal.sequence());
            let start = journal.start();
            let text = start.map_or("nothing to replay".to_owned(), |block| format!("at block {block}"));
            s.row("Log begins", "start", text, start);
            if journal.errno() != 0 {
                s.row("Error", "errno", journal.errno().to_string(), journal.errno());
            }
        }
    }
    Some(s)
}

/// Whether there is nothing to replay in the journal; `None` without one on this device, or where it cannot be read.
fn journal_is_empty(volume: &Volume) -> Option<bool> {
    let number = volume.superblock().journal_inode()?;
    journal_superblock(volume, number).ok().map(|journal| journal.start().is_none())
}

fn journal_superblock(volume: &Volume, number: fs::InodeNo) -> fs::Result<JournalSuperblock> {
    let block_size = volume.superblock().geometry.block_size;
    let inode = volume.inode(number)?;
    let mut block = vec![0; block_size as usize];
    let len = volume.read_at(&inode, 0, &mut block)?;
    let block = block.get(..len).unwrap_or_default();
    Ok(JournalSuperblock::parse(block, block_size, inode.size / u64::from(block_size))?)
}

fn multiple_mount(volume: &Volume, complaints: &mut Complaints<'_>) -> Option<Section> {
    let sb = volume.superblock();
    let at = sb.mmp_block()?;
    let mut s = Section::new("Multiple-mount protection", "mmp");
    s.number("Block", "block", at.get());
    s.row("Interval", "interval", format!("{} s", sb.disk.s_mmp_interval), sb.disk.s_mmp_interval.get());
    match mmp_block(volume, at) {
        Err(e) => complaints.about(b"multiple-mount protection", e),
        Ok(mmp) => {
            let (text, word) = match mmp.disk().usage() {
                Use::Clean => ("no host".to_owned(), "clean"),
                Use::Fsck => ("a checker".to_owned(), "fsck"),
                Use::Mounted(sequence) => (format!("a mount, sequence {sequence:#x}"), "mounted"),
                Use::Invalid(sequence) => (format!("unknown, sequence {sequence:#x}"), "invalid"),
            };
            s.row("In use by", "use", text, word);
            for (label, key, name) in
                [("Last host", "host", mmp.node_name()), ("Last device", "device", mmp.device_name())]
            {
                s.row(label, key, escape(name), String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Some(s)
}

fn mmp_block(volume: &Volume, at: fs::FsBlock) -> fs::Result<Mmp> {
    let geometry = &volume.superblock().geometry;
    let offset = geometry.byte_offset(at).ok_or(fs::Error::Corrupt {
        structure: format::Structure::Superblock,
        at: format::Where::Volume,
        what: "s_mmp_block is outside the volume",
    })?;
    let mut block = vec![0; geometry.block_size as usize];
    volume.device().read(offset, &mut block)?;
    Ok(Mmp::parse(&block, geometry.metadata_csum.then_some(geometry.checksum_seed))?)
}

/// Adds a time of the superblock: 40 bits of seconds, 0 for never.
fn time(s: &mut Section, label: &'static str, key: &'static str, low: u32, high: u8) {
    let seconds = i64::from(high) << 32 | i64::from(low);
    if seconds == 0 {
        return s.row(label, key, "never", Value::Null);
    }
    let at = Timestamp { seconds, nanos: 0 };
    s.row(label, key, local_time(at, SECONDS), utc_time(at));
}

/// `s_default_mount_opts` in the words of mount(8), and `s_mount_opts`.
fn mount_options(disk: &DiskSuperblock) -> Vec<String> {
    const NAMES: [(u32, &str); 9] = [
        (0x1, "debug"),
        (0x2, "bsdgroups"),
        (0x4, "user_xattr"),
        (0x8, "acl"),
        (0x10, "nouid32"),
        (0x100, "nobarrier"),
        (0x200, "block_validity"),
        (0x400, "discard"),
        (0x800, "nodelalloc"),
    ];
    let word = disk.s_default_mount_opts.get();
    let mut options: Vec<String> =
        NAMES.iter().filter(|(bit, _)| word & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    match word & 0x60 {
        0x20 => options.push("data=journal".into()),
        0x40 => options.push("data=ordered".into()),
        0x60 => options.push("data=writeback".into()),
        _ => {}
    }
    let more = until_nul(&disk.s_mount_opts);
    options.extend(more.split(',').filter(|option| !option.is_empty()).map(|option| escape(option.as_bytes())));
    options
}

fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

fn bytes_of(words: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn list(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(" ") }
}
