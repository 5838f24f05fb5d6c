//! `extant put`: copies files of this machine into a volume.

use crate::copy_in::{FileAttributes, Filler, Folder, Stop, bytes_below, on_signals};
use crate::error_report::{Failure, Result};
use crate::ls::join;
use crate::output::print_json_object;
use crate::progress::{Bar, Unit, on_terminal};
use crate::source::Target;
use clap::Args;
use fs::{FileKind, InodeNo, Timestamp, WriteOptions};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

#[derive(Debug, Args)]
#[command(
    about = "Copy files of this machine into a volume",
    after_help = "Examples:
  extant put volume.img fstab /etc/fstab       one file, under that name
  extant put -r volume.img ./site /srv         a directory and all below
  extant put volume.img a b c /tmp             several files
  date | extant put volume.img - /etc/issue    standard input

Where DEST is a directory of the volume, files go into it under their own names; otherwise DEST is the new name of \
    the one that is copied. The result is what cp -a would copy to a mounted volume: owners, permissions, \
    times, extended attributes and access control lists are preserved, holes stay holes, hard links one file. No \
    privilege is needed beyond reading the files. Existing files are left alone unless --force is used, \
    and then stay until the new one is complete: there must be space for both. Directories are merged. Symbolic links are copied as they are.

Messages name a file of the volume as DEVICE: PATH, and a file of this machine by its path alone.

The volume must not be mounted. SIGINT and SIGTERM stop the copy and leave the volume consistent.

Exit status: 0 all was copied, 1 something could not be copied, 2 wrong usage."
)]
pub(crate) struct Put {
    #[command(flatten)]
    source: Target,

    /// Files of this machine, - for standard input, then the destination in the volume
    #[arg(value_names = ["FILE", "DEST"], num_args = 2.., required = true, allow_hyphen_values = true)]
    paths: Vec<OsString>,

    /// Copy directories recursively
    #[arg(short, long)]
    recursive: bool,

    /// Replace files that exist
    #[arg(short, long)]
    force: bool,

    /// Block placement: usual, or hint, which puts metadata at the front of each group to make later checks faster
    #[arg(long, value_name = "WHERE", default_value = "usual")]
    placement: fs::Placement,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Put {
    pub(crate) fn run(&self) -> Result<u8> {
        let Some((dest, files)) = self.paths.split_last() else {
            return Err(Failure::Message("specify a FILE and a DEST in the volume".into()));
        };
        let interrupted = on_signals()?;
        let opened =
            self.source.open_for_writing(WriteOptions { placement: self.placement, ..WriteOptions::default() })?;
        let volume = &opened.volume;
        let mut filler = Filler::new(volume, &self.source.device, self.force, interrupted);
        let outcome = match self.destination(volume, dest.as_bytes(), files.len()) {
            Ok(place) => {
                if on_terminal() {
                    let counting = Bar::new("counting files", 0, Unit::Files);
                    let total = files.iter().map(|file| bytes_below(Path::new(file), &counting)).sum();
                    counting.finish();
                    filler.bar = Bar::new("copying", total, Unit::Bytes);
                }
                // the length of standard input is unknown
                if !files.iter().any(|file| file == "-") {
                    let all = || files.iter().map(|file| bytes_below(Path::new(file), &Bar::hidden())).sum();
                    filler.total = Some(Box::new(all));
                }
                self.copy(&mut filler, files, &place)
            }
            Err(stop) => Err(stop),
        };
        let (status, copied) = filler.finish(outcome, self.source.verbose);
        opened.unmount()?;
        if self.json {
            print_json_object(&copied)?;
        }
        Ok(status)
    }

    /// The directory of the volume to copy into, and the file's name there if it differs.
    fn destination(&self, volume: &fs::Volume, dest: &[u8], count: usize) -> Result<Destination, Stop> {
        let wrong = |path: &[u8], why: &dyn ToString| Stop::Failed(path.to_vec(), why.to_string());
        match volume.resolve(dest).and_then(|number| volume.inode(number)) {
            Ok(inode) if inode.kind == FileKind::Directory => {
                return Ok(Destination { dir: inode.number, path: dest.to_vec(), name: None });
            }
            Ok(_) | Err(fs::Error::NotFound) => {}
            Err(e) => return Err(wrong(dest, &e)),
        }
        if count > 1 {
            return Err(wrong(dest, &"not a directory: several files need one as their destination"));
        }
        let dest = trimmed(dest);
        let (parent, name) = match dest.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&dest[..=at], &dest[at + 1..]),
            None => (&b"/"[..], dest),
        };
        let dir = volume.resolve(parent).map_err(|e| wrong(parent, &e))?;
        Ok(Destination { dir, path: parent.to_vec(), name: Some(name.to_vec()) })
    }

    fn copy(&self, filler: &mut Filler<'_>, files: &[OsString], to: &Destination) -> Result<(), Stop> {
        let mut folder = Folder::new(filler, &self.source.device);
        for file in files {
            let source = Path::new(file);
            // `folder/.` has no name of its own, unlike in Path
            let nameless = file == "-" || file.as_bytes().ends_with(b"/.");
            let own_name = source.file_name().map(OsStrExt::as_bytes).filter(|_| !nameless);
            let name = to.name.as_deref().or(own_name);
            if !self.recursive && source.is_dir() && !source.is_symlink() {
                let why = "is a directory: use -r to copy it recursively";
                folder.report_source_error(file.as_bytes(), why);
                continue;
            }
            match name {
                Some(name) if file == "-" => folder.standard_input((to.dir, name), &join(&to.path, name), now())?,
                Some(name) => folder.one(source, (to.dir, name), &join(&to.path, name))?,
                None if file == "-" => folder.report_source_error(b"-", "standard input needs a file name in DEST"),
                // `/`, `.` and `..` have no name of their own: only their content is copied
                None => {
                    let as_it_is = |_: &mut FileAttributes| {};
                    folder.contents(
                        source,
                        to.dir,
                        &to.path,
                        self.force.then_some(&as_it_is as &dyn Fn(&mut FileAttributes)),
                    )?;
                }
            }
        }
        Ok(())
    }
}

struct Destination {
    dir: InodeNo,
    path: Vec<u8>,
    name: Option<Vec<u8>>,
}

/// A path without trailing slashes.
fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}
