//! The work of the paper: PostMark, Bonnie++, and random writes with a flush after each or after eight.

use crate::Result;
use crate::kero::sizes::Sizes;
use crate::kero::stage::{Job, Stage, Worked};
use fs::InodeNo;
use kero::BLOCK;

/// PostMark's smallest and largest files, in bytes.
const LEAST: u64 = 512;
const MOST: u64 = 1 << 20;
/// Bytes that Bonnie++ reads or writes at once.
const CHUNK: u64 = 64 << 10;
/// Small files of Bonnie++: their name, sizes in bytes, and the fraction of [`Sizes::small`] that are created.
const CLASSES: [(&str, u64, u64, u64); 2] =
    [("files of 2 to 4 KiB", 2 << 10, 4 << 10, 1), ("files of 64 to 128 KiB", 64 << 10, 128 << 10, 16)];

/// A file in a set: name, inode and bytes.
type Named = (String, InodeNo, u64);

/// The files of PostMark.
struct PostMark {
    dir: InodeNo,
    live: Vec<Named>,
    next: u64,
    random: fastrand::Rng,
}

impl PostMark {
    fn create(&mut self, job: &mut Job<'_>) -> fs::Result<()> {
        let (name, bytes) = (self.next.to_string(), self.random.u64(LEAST..=MOST));
        self.next += 1;
        let file = job.create(self.dir, &name)?;
        job.write(file, 0, bytes)?;
        self.live.push((name, file, bytes));
        Ok(())
    }

    fn delete(&mut self, job: &mut Job<'_>) -> fs::Result<()> {
        let (name, ..) = self.live.swap_remove(self.random.usize(..self.live.len()));
        job.unlink(self.dir, &name)
    }

    /// Reads a file or appends to one, and creates or deletes one.
    fn transact(&mut self, job: &mut Job<'_>) -> fs::Result<()> {
        let which = self.random.usize(..self.live.len());
        let (_, file, bytes) = self.live[which];
        if self.random.bool() {
            job.read(file, 0, bytes)?;
        } else if bytes < MOST {
            let more = self.random.u64(1..=MOST - bytes);
            job.write(file, bytes, more)?;
            self.live[which].2 += more;
        }
        if self.random.bool() || self.live.len() == 1 { self.create(job) } else { self.delete(job) }
    }
}

/// PostMark with the parameters of the paper: files of 512 bytes to 1 MiB, as many transactions, no preference for
/// reads or creations; all files are deleted at the end.
///
/// # Errors
/// Those of the volume.
pub(crate) fn postmark(stage: &Stage, sizes: &Sizes) -> Result<Vec<Worked>> {
    let worked = stage.measured("PostMark", |job| {
        let random = fastrand::Rng::with_seed(stage.seed);
        let mut files = PostMark { dir: job.dir("postmark")?, live: Vec::new(), next: 0, random };
        (0..sizes.postmark).try_for_each(|_| files.create(job))?;
        (0..sizes.postmark).try_for_each(|_| files.transact(job))?;
        while !files.live.is_empty() {
            files.delete(job)?;
        }
        Ok(())
    })?;
    Ok(vec![worked])
}

/// The first bytes of the pieces of a file.
fn pieces(bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes).step_by(CHUNK as usize)
}

/// Writes a file in order.
fn output(job: &mut Job<'_>, bytes: u64) -> fs::Result<InodeNo> {
    let file = job.create(InodeNo::ROOT, "large")?;
    pieces(bytes).try_for_each(|at| job.write(file, at, CHUNK))?;
    Ok(file)
}

/// The phases of Bonnie++: a large file written, rewritten and read, small files created, read and deleted.
///
/// # Errors
/// Those of the volume.
pub(crate) fn bonnie(stage: &Stage, sizes: &Sizes) -> Result<Vec<Worked>> {
    let mut large = InodeNo::ROOT;
    let mut rows = vec![stage.measured("Bonnie++: block output", |job| {
        large = output(job, sizes.file)?;
        Ok(())
    })?];
    rows.push(stage.measured("Bonnie++: rewrite", |job| {
        pieces(sizes.file).try_for_each(|at| {
            job.read(large, at, CHUNK)?;
            job.write(large, at, CHUNK)
        })
    })?);
    rows.push(stage.measured("Bonnie++: sequential read", |job| {
        pieces(sizes.file).try_for_each(|at| job.read(large, at, CHUNK))
    })?);
    for (name, least, most, fraction) in CLASSES {
        let mut random = fastrand::Rng::with_seed(stage.seed);
        let (mut dir, mut files) = (InodeNo::ROOT, Vec::<Named>::new());
        rows.push(stage.measured(&format!("Bonnie++: create {name}"), |job| {
            dir = job.dir(name)?;
            (0..sizes.small / fraction).try_for_each(|number| {
                let (name, bytes) = (number.to_string(), random.u64(least..=most));
                let file = job.create(dir, &name)?;
                job.write(file, 0, bytes)?;
                files.push((name, file, bytes));
                Ok::<_, fs::Error>(())
            })
        })?);
        let read = |job: &mut Job<'_>, files: &[Named]| {
            files.iter().try_for_each(|(_, file, bytes)| job.read(*file, 0, *bytes))
        };
        rows.push(stage.measured(&format!("Bonnie++: read {name}"), |job| read(job, &files))?);
        let mut mixed = files.clone();
        random.shuffle(&mut mixed);
        rows.push(stage.measured(&format!("Bonnie++: read {name} at random"), |job| read(job, &mixed))?);
        rows.push(stage.measured(&format!("Bonnie++: delete {name}"), |job| {
            files.iter().try_for_each(|(name, ..)| job.unlink(dir, name))
        })?);
    }
    Ok(rows)
}

/// Blocks of 4 KiB at random locations of a large file, with an fsync after each `batch`: first before a short log
/// wraps, then after at least two laps of it; at the end the file is read in order. On a used device the log contains
/// the file from the start.
///
/// Requests of threads would reach the model in an order that differs between runs. So batches of eight replace eight
/// writers that wait for one flush.
///
/// # Errors
/// Those of the volume.
pub(crate) fn random(stage: &Stage, sizes: &Sizes, batch: u64) -> Result<Vec<Worked>> {
    let mut numbers = fastrand::Rng::with_seed(stage.seed);
    let blocks = sizes.file / BLOCK;
    let mut file = InodeNo::ROOT;
    stage.prepared(|job| {
        file = output(job, sizes.file)?;
        Ok(())
    })?;
    let mut writes = |job: &mut Job<'_>, count: u64| {
        (0..count).try_for_each(|number| {
            job.write(file, numbers.u64(..blocks) * BLOCK, BLOCK)?;
            if number % batch == batch - 1 { job.fsync(file) } else { Ok(()) }
        })
    };
    let part = sizes.short_log / BLOCK / 8;
    let name = match batch {
        1 => "4 KiB writes, fsync for each".to_owned(),
        _ => format!("4 KiB writes, fsync for {batch}"),
    };
    let mut rows = vec![stage.measured(&format!("{name}: first"), |job| writes(job, part))?];
    // at least two blocks of the log for each flush: a header and a block
    stage.prepared(|job| writes(job, sizes.short_log / BLOCK * batch.min(2)))?;
    rows.push(stage.measured(&format!("{name}: after two laps"), |job| writes(job, part))?);
    rows.push(stage.measured(&format!("{name}: sequential read after them"), |job| {
        pieces(sizes.file).try_for_each(|at| job.read(file, at, CHUNK))
    })?);
    Ok(rows)
}
