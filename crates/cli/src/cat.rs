//! `extant cat`: the content of files.

use crate::error_report::{Complaints, Result};
use crate::output::raw_stdout;
use crate::source::Source;
use clap::Args;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Size of a read in bytes: long enough that requests are as long as a file's extents.
const BUFFER: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(
    about = "Print files of a volume",
    after_help = "Examples:
  extant cat volume.img /etc/fstab
  extant cat volume.img /var/log/syslog.1 /var/log/syslog | less
  extant cat backup.img /disk.raw | head -c 512 | hexdump -C

PATH may also be an inode's number in angle brackets, '<12>', as in debugfs. Symbolic links are followed, inside \
    the volume. Holes are written as zeroes; `extant get` preserves them.

Exit status: 0 all was printed, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Cat {
    #[command(flatten)]
    source: Source,

    /// Files of the volume
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

impl Cat {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = self.source.open()?;
        let mut complaints = Complaints::new(&self.source.device);
        let mut out = raw_stdout()?;
        let mut buffer = vec![0; BUFFER];
        for path in &self.paths {
            let inode = match opened.find(path, true) {
                Ok(inode) => inode,
                Err(e) => {
                    complaints.about(path.as_bytes(), e);
                    continue;
                }
            };
            let mut at = 0;
            loop {
                match opened.volume.read_at(&inode, at, &mut buffer) {
                    Ok(0) => break,
                    Ok(len) => {
                        out.write_all(buffer.get(..len).unwrap_or_default())?;
                        at += len as u64;
                    }
                    Err(e) => {
                        let where_it_ends = if at == 0 { String::new() } else { format!("from byte {at} on: ") };
                        complaints.about(path.as_bytes(), format!("{where_it_ends}{e}"));
                        break;
                    }
                }
            }
        }
        Ok(complaints.exit())
    }
}
