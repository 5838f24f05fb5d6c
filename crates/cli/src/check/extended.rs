//! `-E`: e2fsck's extended options. Some are done, some ask for what is done or left anyway, the rest are refused.

use std::path::PathBuf;

/// One extended option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Extended {
    /// Replay the journal, and do nothing else.
    JournalOnly,
    /// A copy of what is said goes into this file.
    Log(PathBuf),
    /// The codes of what was found go into this file.
    ProblemLog(PathBuf),
    /// So many snapshots of the block map are taken of a pass.
    Snapshots(u32),
    /// An inode table that cannot be found is made anew, and the files in it are lost.
    EmptyTables,
    /// Files that share blocks on purpose get blocks of their own.
    UnshareBlocks,
    /// It changes nothing here.
    Nothing,
}

/// Reads one option of the list.
pub(super) fn parse(word: &str) -> Result<Extended, String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let file = || value.filter(|value| !value.is_empty()).map(PathBuf::from).ok_or(format!("give {name}=FILE"));
    match name {
        "journal_only" => Ok(Extended::JournalOnly),
        "log_filename" => file().map(Extended::Log),
        "problem_log" => file().map(Extended::ProblemLog),
        "snapshots" => match value.and_then(|value| value.parse().ok()) {
            Some(n @ 1..=10_000) => Ok(Extended::Snapshots(n)),
            _ => Err("give snapshots=NUMBER, from 1 to 10000".into()),
        },
        "empty_tables" => Ok(Extended::EmptyTables),
        "unshare_blocks" => Ok(Extended::UnshareBlocks),
        // all attributes that exist have version 2 but for some of the year 2001
        "ea_ver" => match value {
            Some("1" | "2") => Ok(Extended::Nothing),
            _ => Err("ea_ver is 1 or 2".into()),
        },
        "readahead_kb" => match value.and_then(|value| value.parse::<u64>().ok()) {
            Some(_) => Ok(Extended::Nothing),
            None => Err("give readahead_kb=KILOBYTES".into()),
        },
        // nothing is optimised, nothing is discarded, and memory does not grow with link counts
        "fixes_only" | "nodiscard" | "no_optimize_extents" | "inode_count_fullmap" | "no_inode_count_fullmap" => {
            Ok(Extended::Nothing)
        }
        "discard" => Err("free blocks are not discarded: mount the volume and use fstrim(8)".into()),
        "optimize_extents" | "bmap2extent" => Err("extent trees are repaired, but not built anew: use e2fsck".into()),
        "fragcheck" => Err("pieces of files are not listed: use filefrag(8)".into()),
        "check_encoding" | "clear_all_uninit_bits" => Err("it is not available: use e2fsck".into()),
        _ => Err("there is no such option".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_accepted_refused() {
        assert_eq!(parse("journal_only"), Ok(Extended::JournalOnly));
        assert_eq!(parse("log_filename=/x"), Ok(Extended::Log("/x".into())));
        assert_eq!(parse("snapshots=40"), Ok(Extended::Snapshots(40)));
        assert_eq!(parse("empty_tables"), Ok(Extended::EmptyTables));
        assert_eq!(parse("unshare_blocks"), Ok(Extended::UnshareBlocks));
        for word in ["nodiscard", "fixes_only", "ea_ver=2", "readahead_kb=0", "inode_count_fullmap"] {
            assert_eq!(parse(word), Ok(Extended::Nothing), "{word}");
        }
        for word in ["ea_ver=3", "snapshots=0", "readahead_kb=x", "readahead_kb", "discard", "foo", "", "log_filename="]
        {
            assert!(parse(word).is_err(), "{word}");
        }
    }
}
