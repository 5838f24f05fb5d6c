//! The problem table: one row per problem, from which the enum, the texts and the documentation are generated.
//!
//! The numbers are those of e2fsck, so that `[problems]` stanzas of `e2fsck.conf` and programs that read its problem
//! log remain valid; names and texts are our own. Numbers from `0x0E0000` on are ours.
//!
//! e2fsck's numbers that are not used, and why, are in [`NOT_USED`].
//!
//! A row reads `number Name Severity preen by Fixer "text" => "repair" [follow-ups];`. The severity follows e2fsck's
//! behaviour under `-n`: it exits 4 (`Error`), 0 (`Advice`) or aborts (`Fatal`). Where its flags and its observed
//! behaviour disagree, the observed one decides; such a row has a comment with the word "seen".
//!
//! A text names its subject, what is wrong, the value found and the value that it should be. A repair is in the past
//! tense, without a capital: it is printed after `FIXED:`.

use serde::{Serialize, Serializer};
use std::fmt::{self, Write as _};

#[macro_use]
mod superblock;
#[macro_use]
mod native;
#[macro_use]
mod inodes;
#[macro_use]
mod directories;
#[macro_use]
mod bitmaps;
#[macro_use]
mod space_maps;

/// The parts of a check, in the order their problems are shown; numbered like e2fsck's passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Superblock, group descriptors, journal, orphan list.
    Superblock,
    /// Each inode by itself: fields, block map, extended attributes.
    Inodes,
    /// Multiply-claimed blocks.
    MultiplyClaimed,
    /// Directory blocks, their entries and hash trees.
    Directories,
    /// Connection of every directory to the root.
    Connectivity,
    /// Link counts and unattached inodes.
    Links,
    /// Bitmaps and free counts.
    Bitmaps,
    /// Quota, orphan file, and problems that are not listed.
    After,
}

impl Phase {
    /// All, in order.
    pub const ALL: &[Phase] = &[
        Phase::Superblock,
        Phase::Inodes,
        Phase::MultiplyClaimed,
        Phase::Directories,
        Phase::Connectivity,
        Phase::Links,
        Phase::Bitmaps,
        Phase::After,
    ];

    /// e2fsck's name of the pass: `0`, `1`, `1B`, `2` … `6`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Phase::Superblock => "0",
            Phase::Inodes => "1",
            Phase::MultiplyClaimed => "1B",
            Phase::Directories => "2",
            Phase::Connectivity => "3",
            Phase::Links => "4",
            Phase::Bitmaps => "5",
            Phase::After => "6",
        }
    }

    /// The subject of the pass, as the end of a heading.
    #[must_use]
    pub const fn subject(self) -> &'static str {
        match self {
            Phase::Superblock => "superblock, group descriptors and journal",
            Phase::Inodes => "inodes, block maps and attributes",
            Phase::MultiplyClaimed => "multiply-claimed blocks",
            Phase::Directories => "directories and entries",
            Phase::Connectivity => "directory connectivity",
            Phase::Links => "link counts",
            Phase::Bitmaps => "bitmaps and free counts",
            Phase::After => "quota and orphan file",
        }
    }
}

/// Severity of a problem; the highest decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A note; the volume counts as clean (exit status 0).
    Advice,
    /// An error: a kernel or `extant mount` refuses the volume. The exit status under `-n` is e2fsck's all the same (0).
    Unmountable,
    /// The volume is damaged (exit status 4).
    Error,
    /// The volume is damaged and the check is aborted (exit status 12).
    Fatal,
}

impl Severity {
    /// Whether the volume is not clean with such a problem.
    #[must_use]
    pub fn is_error(self) -> bool {
        self > Severity::Advice
    }
}

/// Action of `-p` on a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Preen {
    /// Repairs it without asking: no user data can be lost.
    Fixes,
    /// Leaves it and continues.
    Leaves,
    /// Stops: the administrator must decide.
    Stops,
}

/// The part of repair that fixes a problem, in the order in which they run: each runs on the result of the previous
/// ones, so that none repairs a structure that another will drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fixer {
    /// Replays the journal.
    Replay,
    /// Superblock and its backups.
    Superblock,
    /// Group descriptors, and the locations of bitmaps and inode tables.
    Descriptors,
    /// The journal's inode and superblock.
    Journal,
    /// Other system inodes and blocks: resize inode, orphan file, multiple mount protection.
    SystemInodes,
    /// Frees or truncates orphans.
    Orphans,
    /// Inodes, block maps, attributes.
    Inodes,
    /// Multiply-claimed blocks.
    Sharing,
    /// Directory blocks and hash trees.
    Directories,
    /// Root, parents, lost+found.
    Connections,
    /// Link counts and unattached inodes.
    Links,
    /// Bitmaps, counts, descriptors, their checksums.
    Bitmaps,
    /// Quota files.
    Quota,
    /// Backups of the superblock and of the descriptors, after these are repaired.
    Copies,
    /// None: no repair is possible or needed.
    None,
}

/// e2fsck's numbers that this checker does not report, and why. After the first number of a pass only the lower digits
/// follow.
pub const NOT_USED: &[(&str, &str)] = &[
    (
        "pass rows 0, 0x00003e, 0x010010 13 37, 0x011001 03, 0x013004, 0x050003 06 07 0a",
        "frames of lists, questions for a whole list, sums",
    ),
    (
        "0x00004c, 0x010024-27 2a 2b 38 3b 3d 3f 57 61 7c 7e, 0x011004-07, 0x02001c 1e 1f 21-23 3b 4f, 0x030009-16 but 0e, \
         0x040004, 0x050010-13, 0x060003-06 08 0a 0b",
        "errors of e2fsck itself: memory, writing, its own state",
    ),
    (
        "0x00000a 19 28 29 2b 2c 33, 0x010014 16 18 1d-23 2d 4e 87, 0x013005-08, 0x014001-05, 0x030002 06-08 0e 19 1a, 3A, \
         0x060001 0f 10",
        "questions, steps and hints of repair, options, problems reported twice",
    ),
    (
        "0x000004 06 07 0c 0d 50",
        "no usable superblock: the check is refused with one sentence, or a backup is used (0x000044)",
    ),
    (
        "0x00001a 33, 0x010033",
        "revision 0 of the format is read with the features it names; the number itself has no effect",
    ),
    ("0x000012 13 4a", "the journal's device is not read: a volume with an external journal is refused (0x000011)"),
    (
        "0x000027 2d",
        "any version of a journal's superblock is read as version 2; its copy in the superblock is written unasked",
    ),
    ("0x000021 22", "an orphan is freed with the blocks that belong to it alone, whatever else its map contains"),
    ("0x000041, 0x010064 90", "reported as for any other inode: 0x010003, 0x010063, 0x040002"),
    ("0x00003a", "a log ends before its first incomplete transaction; 0x0e0004 counts those before"),
    ("0x00003f 40", "reported as 0x05000d and 0x05000f"),
    (
        "0x01000a 0b 0f 15 17 19-1c 4d 71 7b, 0x011002 08, 0x013002, 0x020005",
        "owners of a multiply-claimed block are reported as 0x013001 and 0x013003, whatever they are; the volume's own \
         structures as 0x010007 to 09",
    ),
    ("0x010011 12 43", "reported block by block as 0x01000e"),
    ("0x010028 29 2c 56", "reported as 0x0e0000"),
    ("0x010051 52", "reported as 0x010053"),
    ("0x010067", "each field of an inode is checked by itself, besides 0x010068"),
    ("0x010070 77 79", "reported as 0x01006f, 0x010075 and 0x010078"),
    ("0x010072", "reported as 0x020015"),
    ("0x01007f, 0x014006 07", "a tree that could be smaller is valid"),
    ("0x010082", "a time after 2310 is taken as valid"),
    ("0x010085", "reported as 0x010086"),
    ("0x02000e", "reported as 0x020032"),
    ("0x02000f, 0x020010 11", "fields that are not in use on any system"),
    ("0x020014 1d 45 4e", "reported as 0x020013, 0x020034 and 0x01000c"),
    ("0x020041 42 54", "reported as 0x020043"),
    ("0x030017 18 1b", "reported as 0x030004, where lost+found is needed"),
];

/// One row of the table.
struct Row {
    number: u32,
    phase: Phase,
    severity: Severity,
    preen: Preen,
    fixer: Fixer,
    text: &'static str,
    repair: &'static str,
    follow_ups: &'static [Code],
}

macro_rules! preen {
    (repairs) => {
        Preen::Fixes
    };
    (leaves) => {
        Preen::Leaves
    };
    (stops) => {
        Preen::Stops
    };
}

macro_rules! define {
    ([] $( in $phase:ident { $(
        $number:literal $name:ident $severity:ident $preen:ident by $fixer:ident $text:literal => $repair:literal [$($follow:ident)*];
    )* } )*) => {
        /// A kind of problem. The number is e2fsck's, or from `0x0E0000` on Extant's own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Code { $( $( #[doc = $text] $name = $number, )* )* }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &[Code] = &[ $( $( Code::$name, )* )* ];

            /// The code with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Code> {
                match number { $( $( $number => Some(Code::$name), )* )* _ => None }
            }

            const fn row(self) -> &'static Row {
                match self { $( $( Code::$name => &Row {
                    number: $number,
                    phase: Phase::$phase,
                    severity: Severity::$severity,
                    preen: preen!($preen),
                    fixer: Fixer::$fixer,
                    text: $text,
                    repair: $repair,
                    follow_ups: &[ $( Code::$follow, )* ],
                }, )* )* }
            }
        }
    };
}

superblock_rows! { [native_rows inode_rows directory_rows space_map_rows bitmap_rows define] }

impl Code {
    /// e2fsck's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.row().number
    }

    /// The phase that finds it.
    #[must_use]
    pub const fn phase(self) -> Phase {
        self.row().phase
    }

    /// Its severity.
    #[must_use]
    pub const fn severity(self) -> Severity {
        self.row().severity
    }

    /// Action of `-p` on it.
    #[must_use]
    pub const fn preen(self) -> Preen {
        self.row().preen
    }

    /// Whether it may be repaired without asking.
    #[must_use]
    pub const fn preen_safe(self) -> bool {
        matches!(self.preen(), Preen::Fixes)
    }

    /// Whether the volume was read through a copy of its superblock or group descriptors: no kernel mounts it in this
    /// state, and the administrator must decide which one is right.
    #[must_use]
    pub const fn is_read_from_a_copy(self) -> bool {
        matches!(self, Self::SuperblockTryBackup | Self::SuperblockFieldTryBackup | Self::GroupDescriptorsTryBackup)
    }

    /// Whether a group's bitmaps or inode table have an impossible location, where other structures may be.
    pub(crate) const fn is_misplaced(self) -> bool {
        matches!(
            self,
            Self::BlockBitmapNotInGroup
                | Self::InodeBitmapNotInGroup
                | Self::InodeTableNotInGroup
                | Self::BlockBitmapConflict
                | Self::InodeBitmapConflict
                | Self::InodeTableConflict
        )
    }

    /// The part of repair that fixes it.
    #[must_use]
    pub const fn fixer(self) -> Fixer {
        self.row().fixer
    }

    /// The text that reports it, with placeholders in braces: see [`PLACEHOLDERS`].
    #[must_use]
    pub const fn text(self) -> &'static str {
        self.row().text
    }

    /// The repair in the past tense, as printed after `FIXED:`.
    #[must_use]
    pub const fn repair(self) -> &'static str {
        self.row().repair
    }

    /// Problems that usually accompany it or follow its repair.
    #[must_use]
    pub const fn follow_ups(self) -> &'static [Code] {
        self.row().follow_ups
    }
}

/// The placeholders a text may contain. Each is a field of [`crate::problem::Problem`]; `{found:x}` and `{expected:x}`
/// are the same numbers in hexadecimal, `{found:o}` in octal, `{found:date}` a time in seconds since 1970 as a date,
/// `{found:type}` and `{expected:type}` the number of a file type in a directory entry as a word; the last three are
/// numbers with a noun, as `1 transaction` or `2 transactions`.
pub const PLACEHOLDERS: &[&str] = &[
    "inode",
    "dir",
    "block",
    "file_block",
    "group",
    "found",
    "expected",
    "found:x",
    "expected:x",
    "found:o",
    "found:date",
    "found:type",
    "expected:type",
    "count",
    "name",
    "path",
    "count:transactions",
    "count:multiply-claimed blocks",
    "found:other files",
];

impl fmt::Display for Code {
    /// The number as e2fsck's problem log writes it: `0x01000c`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.number())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The whole table as a Markdown document, for `docs/PROBLEMS.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Problems the checker knows\n\
         \n\
         Generated from the problem table of `crates/check`; do not edit. Numbers are e2fsck's, from `0x0e0000` on Extant's own.\n\
         *Severity*: an error makes `extant check -n` exit with 4, advice leaves the verdict clean, fatal aborts the check (12).\n\
         Unmountable is an error with the exit status 0 under `-n`, as with e2fsck, though no kernel mounts the volume.\n\
         *-p*: preening fixes the problem without asking, leaves it, or stops for the administrator to decide.\n",
    );
    let mut phase = None;
    for &code in Code::ALL {
        if phase != Some(code.phase()) {
            phase = Some(code.phase());
            let (label, subject) = (code.phase().label(), code.phase().subject());
            // writing to a String cannot fail
            let _ = write!(
                out,
                "\n## Pass {label}: {subject}\n\n\
                 | code | name | severity | -p | text | repair | often with |\n| --- | --- | --- | --- | --- | --- | --- |\n"
            );
        }
        let with: Vec<String> = code.follow_ups().iter().map(|follow| format!("`{follow:?}`")).collect();
        let _ = writeln!(
            out,
            "| `{code}` | `{code:?}` | {} | {} | {} | {} | {} |",
            format!("{:?}", code.severity()).to_lowercase(),
            format!("{:?}", code.preen()).to_lowercase(),
            code.text(),
            code.repair(),
            with.join(", "),
        );
    }
    out.push_str("\n## Numbers of e2fsck that are not used\n\n| numbers | why |\n| --- | --- |\n");
    for (numbers, why) in NOT_USED {
        let _ = writeln!(out, "| {numbers} | {why} |");
    }
    out
}
