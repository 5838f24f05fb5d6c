//! Parsers of text that people and other programs write: e2fsck.conf, options of mounts, lines of mountinfo, features
//! for mkfs. Two of the parsers are parts of programs and no library: their files are compiled in here.

use check::table::Code;
use fs::mkfs::FeatureEdits;
use fuse::MountOptions;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[allow(dead_code, reason = "the program uses what the target does not")]
#[path = "../../crates/cli/src/check/config.rs"]
mod config;
#[allow(dead_code, reason = "the library uses what the target does not")]
#[path = "../../crates/fuse-wire/src/mountinfo.rs"]
mod mountinfo;

/// Texts as each parser expects them, with a byte for the parser before each.
pub(crate) fn texts() -> Vec<Vec<u8>> {
    let conf = "; comment\n[options]\n\tallow_cancellation = true # yes\n broken_system_clock = 1\n log_filename = \"a %N\\n.log\"\n\
                log_dir = /var\n max_count_problems = 16\n[problems]\n 0x040003 = {\n  preen_ok = false\n  max_count = 2\n }\n\
                0x030003 = {\n  force_no = yes\n  no_ok = 1\n  not_a_fix = on\n  preen_nomessage = t\n }\n";
    let mount = "rw,consistency=journal,data=journal,commit=5,errors=remount-ro,fsname=a\\,b,sb=32768,ro,snapshot=x,\
                 snapdir=all,placement=hint,transport=device,nosuid,nodev,relatime,x-gvfs-show,uid=0,journal_path=/x,discard";
    let info = "22 7 0:21 / /mnt/a\\040b ro,nosuid,relatime - fuse.extant x\\040y rw,user_id=1000\n\
                24 28 7:22 / /mnt/other rw,noatime shared:1 - tmpfs tmpfs rw,sync\n";
    let features = "none,^has_journal,extent,64bit,metadata_csum,FEATURE_C12,default,quota";
    let with = |parser: u8, text: &str| [&[parser], text.as_bytes()].concat();
    vec![with(0, conf), with(1, mount), with(2, mount), with(3, info), with(4, features)]
}

/// A text for one of the parsers. Guarantee: it is understood or refused with one sentence.
pub fn text(data: &[u8]) {
    let Some((&parser, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let refused = match parser % 5 {
        0 => {
            // rules can be asked for any code afterwards
            let settings = config::Settings::parse(&text);
            if let Ok(settings) = &settings {
                Code::ALL.iter().for_each(|code| {
                    _ = std::hint::black_box((
                        settings.problem_settings.preen(*code),
                        settings.problem_settings.never(*code),
                    ))
                });
            }
            settings.err()
        }
        1 => MountOptions::parse(&[&text]).err().map(|e| e.to_string()),
        2 => {
            let parsed = MountOptions::parse_of_mount(&text.split('\n').collect::<Vec<_>>());
            if let Ok(options) = &parsed {
                assert!(!options.volume_options().is_empty());
            }
            parsed.err().map(|e| e.to_string())
        }
        3 => {
            let (dir, lines) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1));
            for dir in [b"/mnt/a b", dir] {
                let found = mountinfo::find(lines, Path::new(std::ffi::OsStr::from_bytes(dir)));
                assert!(found.is_none_or(|found| found.kind.len() <= lines.len()));
            }
            None
        }
        _ => FeatureEdits::default().add(&text).err().map(|e| e.to_string()),
    };
    assert!(refused.is_none_or(|sentence| !sentence.is_empty()));
}
