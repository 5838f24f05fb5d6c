//! The properties of a volume for udev: one line `ID_FS_TYPE=…` each, as `blkid -o udev` prints them.

use fs::{Volume, VolumeSummary};
use std::fmt::Write as _;
use std::io::{self, Write};
use uuid::Uuid;

pub(super) fn print(volume: &Volume, summary: &VolumeSummary, out: &mut impl Write) -> io::Result<()> {
    let disk = &volume.superblock().disk;
    writeln!(out, "ID_FS_TYPE={}\nID_FS_USAGE=filesystem", summary.format)?;
    if disk.s_uuid != [0; 16] {
        let uuid = Uuid::from_bytes(disk.s_uuid);
        writeln!(out, "ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}")?;
    }
    let label = disk.label();
    if !label.is_empty() {
        writeln!(out, "ID_FS_LABEL={}\nID_FS_LABEL_ENC={}", plain(&label), encoded(&label))?;
    }
    Ok(())
}

/// Whether udev accepts a character unescaped, in file names and elsewhere.
fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() && !c.is_control() && c != '\u{FFFD}'
}

/// Replaces each character that is not safe by an underscore.
fn plain(label: &str) -> String {
    label.chars().map(|c| if is_safe(c) { c } else { '_' }).collect()
}

/// Encodes the bytes of each character that is not safe in hexadecimal.
fn encoded(label: &str) -> String {
    label.chars().fold(String::new(), |mut out, c| {
        if is_safe(c) {
            out.push(c);
        } else {
            // writing to a String cannot fail
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| _ = write!(out, "\\x{byte:02x}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_safe_in_lines_and_in_names_of_files() {
        for (label, one, other) in [
            ("data", "data", "data"),
            ("my vol/1", "my_vol_1", r"my\x20vol\x2f1"),
            ("größe", "größe", "größe"),
            ("a\nID_FS_TYPE=ext4\\", "a_ID_FS_TYPE=ext4_", r"a\x0aID_FS_TYPE=ext4\x5c"),
        ] {
            assert_eq!((plain(label).as_str(), encoded(label).as_str()), (one, other));
        }
    }
}
