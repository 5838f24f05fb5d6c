//! The cost of the layer on a modelled hard disk: `cargo run --release -p extant-kero --example speed [FOLDER
//! [opening]]`.
//!
//! Times are those of the model's clock, so that other load of the machine does not affect them; look-ups are timed by
//! the machine's clock. The device is a sparse file of 16 GiB in FOLDER.

use std::path::Path;
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, FileDevice, OpenOptions};
use extant_kero::{BLOCK, FormatOptions, Gap, Kero, Options, drain, format};
use simdev::{Model, Parameters};

const BYTES: usize = BLOCK as usize;
const LEN: u64 = 16 << 30;
const LOG: u64 = 1 << 30;

type Disk = Model<FileDevice>;
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn disk(path: &Path, make: bool) -> Outcome<Disk> {
    if make {
        let file = std::fs::File::create(path)?;
        file.set_len(LEN)?;
    }
    let file = FileDevice::open(path, OpenOptions { write: true, ..OpenOptions::default() })?;
    Ok(Model::new(file, &Parameters::named("hdd")?)?)
}

fn layer(path: &Path, empty: bool, gap: Gap) -> Outcome<Kero<Disk>> {
    let disk = disk(path, true)?;
    format(&disk, &FormatOptions { log: Some(LOG), empty, ..FormatOptions::default() })?;
    Ok(Kero::open(disk, Options { gap, ..Options::default() })?)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Writes `count` blocks of 4 KiB at random in the first 8 GiB, with a flush after each `group`.
fn random(device: &dyn BlockDevice, count: u64, group: u64, seed: u64) -> Outcome<()> {
    let mut numbers = fastrand::Rng::with_seed(seed);
    for number in 0..count {
        device.write(numbers.u64(0..(8 << 30) / BLOCK) * BLOCK, &[number as u8; BYTES])?;
        if number % group == group - 1 {
            device.flush()?;
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let path = folder.join("kero-speed.img");

    if std::env::args().nth(2).as_deref() != Some("opening") {
        writes(&path)?;
        let kero = opened(&path, "a log that wrapped, groups of 8")?;
        drop(kero);
    }
    opening(&path)?;
    std::fs::remove_file(&path)?;
    Ok(())
}

fn writes(path: &Path) -> Outcome<()> {
    println!("4 KiB random writes, a flush after each group:");
    for group in [1, 8, 64] {
        let count = 64 * group.max(8);
        let plain = disk(path, true)?;
        let begun = plain.clock();
        random(&plain, count, group, 1)?;
        let in_place = seconds(plain.clock() - begun) / count as f64;
        drop(plain);
        let kero = layer(path, false, Gap::Measured)?;
        random(&kero, 64, 1, 7)?;
        let (begun, before) = (kero.device().clock(), kero.stats());
        random(&kero, count, group, 1)?;
        let log = seconds(kero.device().clock() - begun) / count as f64;
        let stats = kero.stats();
        println!(
            "  groups of {group}: {:.3} ms a block in place, {:.3} ms with the layer ({:.1} times), {:.2} bytes a byte",
            in_place * 1e3,
            log * 1e3,
            in_place / log,
            (stats.log_bytes - before.log_bytes) as f64 / (stats.written_bytes - before.written_bytes) as f64
        );
    }

    println!("4 KiB random writes in groups of 8 until the log has been written three times:");
    let kero = layer(path, false, Gap::Measured)?;
    let begun = kero.device().clock();
    let (mut last, mut lap, mut count) = (begun, 0, 0);
    while lap < 3 {
        random(&kero, 8192, 8, count)?;
        count += 8192;
        let laps = kero.stats().log_bytes / LOG;
        if laps > lap {
            lap = laps;
            let now = kero.device().clock();
            println!(
                "  lap {lap}: {:.3} ms a block in all, {:.1} s since the lap before",
                seconds(now - begun) * 1e3 / count as f64,
                seconds(now - last)
            );
            last = now;
        }
    }
    let stats = kero.stats();
    println!(
        "  write factor {:.3}, {} groups that made space, memory of the table {:.2} % of the log",
        stats.write_factor(),
        stats.cleaning_groups,
        stats.table_memory as f64 / LOG as f64 * 100.0
    );
    Ok(())
}

fn opened(path: &Path, what: &str) -> Outcome<Kero<Disk>> {
    let disk = disk(path, false)?;
    let begun = Instant::now();
    let kero = Kero::open(disk, Options::default())?;
    println!(
        "opening, {what}: {:.2} s of the disk, {:.2} s of the machine, {} MiB mapped",
        seconds(kero.device().clock()),
        seconds(begun.elapsed()),
        kero.stats().log_mapped >> 20
    );
    Ok(kero)
}

fn opening(path: &Path) -> Outcome<()> {
    for group in [64, 1, 1024] {
        let kero = layer(path, false, Gap::Fixed(0))?;
        let mut numbers = fastrand::Rng::with_seed(group);
        // full, and then as far after a checkpoint as possible: the size of each group is known
        let blocks = group + group / 255 + 1;
        let mut since = u64::MAX;
        let mut checkpoints = 0;
        while kero.stats().cleaning_groups < 3 || since > 16_000 || since + 2 * blocks < 15_000 {
            for _ in 0..group {
                kero.write(numbers.u64(0..(8 << 30) / BLOCK) * BLOCK, &[group as u8; BYTES])?;
            }
            kero.flush()?;
            let stats = kero.stats();
            since = if stats.checkpoints > checkpoints { 0 } else { since.saturating_add(blocks) };
            checkpoints = stats.checkpoints;
        }
        drop(kero);
        drop(opened(path, &format!("groups of {group}, full, just before a checkpoint"))?);
    }

    println!("look-ups in a full table:");
    let kero = opened(path, "unchanged")?;
    let mut numbers = fastrand::Rng::with_seed(3);
    let addresses: Vec<u64> = (0..1 << 20).map(|_| numbers.u64(0..(8 << 30) / BLOCK) * BLOCK).collect();
    let begun = Instant::now();
    let found = addresses.iter().filter(|address| kero.is_mapped(**address)).count();
    let each = begun.elapsed().as_nanos() as f64 / addresses.len() as f64;
    println!("  {each:.0} ns each, {found} of {} mapped", addresses.len());

    println!("drain:");
    let disk = kero.into_device();
    let begun = disk.clock();
    drain(&disk, Options::default())?;
    println!("  {:.1} s of the disk", seconds(disk.clock() - begun));
    Ok(())
}
