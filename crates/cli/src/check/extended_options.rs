//! `-E`: e2fsck's extended options. Some are supported, some have no effect here, the rest are refused.

use std::path::PathBuf;

/// One extended option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Extended {
    /// Only replay the journal.
    JournalOnly,
    /// Copy the output to this file.
    Log(PathBuf),
    /// Write the codes of the problems to this file.
    ProblemLog(PathBuf),
    /// The number of scan segments of a pass, each with a saved block map.
    ScanSegments(u32),
    /// Replace an inode table that cannot be found by an empty one; its files are lost.
    EmptyTables,
    /// Allocate separate blocks for files that share blocks on purpose.
    UnshareBlocks,
    /// No effect.
    Nothing,
}

/// Reads one option of the list.
pub(super) fn parse(word: &str) -> Result<Extended, String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let file = || value.filter(|value| !value.is_empty()).map(PathBuf::from).ok_or(format!("expected {name}=FILE"));
    match name {
        "journal_only" => Ok(Extended::JournalOnly),
        "log_filename" => file().map(Extended::Log),
        "problem_log" => file().map(Extended::ProblemLog),
        "scan_segments" => match value.and_then(|value| value.parse().ok()) {
            Some(n @ 1..=10_000) => Ok(Extended::ScanSegments(n)),
            _ => Err("expected scan_segments=NUMBER, from 1 to 10000".into()),
        },
        "empty_tables" => Ok(Extended::EmptyTables),
        "unshare_blocks" => Ok(Extended::UnshareBlocks),
        // all existing attributes have version 2, except some from 2001
        "ea_ver" => match value {
            Some("1" | "2") => Ok(Extended::Nothing),
            _ => Err("ea_ver must be 1 or 2".into()),
        },
        "readahead_kb" => match value.and_then(|value| value.parse::<u64>().ok()) {
            Some(_) => Ok(Extended::Nothing),
            None => Err("expected readahead_kb=KILOBYTES".into()),
        },
        // no optimisation, no discard, and memory use that does not depend on link counts
        "fixes_only" | "nodiscard" | "no_optimize_extents" | "inode_count_fullmap" | "no_inode_count_fullmap" => {
            Ok(Extended::Nothing)
        }
        "discard" => Err("free blocks are not discarded: mount the volume and use fstrim(8)".into()),
        "optimize_extents" | "bmap2extent" => Err("rebuilding extent trees is not supported: use e2fsck".into()),
        "fragcheck" => Err("fragments of files are not listed: use filefrag(8)".into()),
        "check_encoding" | "clear_all_uninit_bits" => Err("not supported: use e2fsck".into()),
        _ => Err("unknown extended option".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_accepted_refused() {
        assert_eq!(parse("journal_only"), Ok(Extended::JournalOnly));
        assert_eq!(parse("log_filename=/x"), Ok(Extended::Log("/x".into())));
        assert_eq!(parse("scan_segments=40"), Ok(Extended::ScanSegments(40)));
        assert_eq!(parse("empty_tables"), Ok(Extended::EmptyTables));
        assert_eq!(parse("unshare_blocks"), Ok(Extended::UnshareBlocks));
        for word in ["nodiscard", "fixes_only", "ea_ver=2", "readahead_kb=0", "inode_count_fullmap"] {
            assert_eq!(parse(word), Ok(Extended::Nothing), "{word}");
        }
        for word in
            ["ea_ver=3", "scan_segments=0", "readahead_kb=x", "readahead_kb", "discard", "foo", "", "log_filename="]
        {
            assert!(parse(word).is_err(), "{word}");
        }
    }
}
