//! The layers beneath a file or block device, and the other devices with the same bytes: loop devices, partitions, and
//! devices that device-mapper and md make of others. All of it is read from sysfs, which is the same for every user in
//! every mount namespace, with one exception: the file beneath a loop device is a path there, which may be deleted, or
//! that of another file in the namespace of the process that created the device. So losetup(8) is run, too, which reads
//! the file's inode number from the device if it has permission to open that: for paths that do not exist, and before a
//! path is used.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::{major, makedev, minor};

/// The mount point of sysfs.
const SYSFS: &str = "/sys";
/// The maximum number of devices stacked on top of each other: loop devices and mappings do not form cycles, but sysfs
/// changes while it is read.
const DEEPEST: usize = 32;
/// The unit of starts and sizes in sysfs in bytes, whatever the device's sector size.
const SECTOR: u64 = 512;

/// The file or device that contains bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// A regular file, by the device and the inode number of its file system.
    File { dev: u64, ino: u64 },
    /// A block device, by its number.
    Device(u64),
}

/// The relation of a layer to the one above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// It is the requested file or device itself.
    Itself,
    /// The layer above is a loop device. The kernel does not lock the layer beneath.
    Loop,
    /// The layer above is a partition. The kernel locks both.
    Partition,
    /// The layer above is made of this and other devices, which the kernel locks meanwhile.
    Mapping,
}

/// One of the locations of the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) base: Base,
    pub(crate) kind: LayerKind,
    /// The path with which it can be opened; that may be another file by now.
    pub(crate) path: Option<PathBuf>,
    /// The first of its bytes in question, and their end.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// All of these bytes are in question, and not only some of them.
    pub(crate) exact: bool,
}

impl Layer {
    fn meets(&self, other: &Self) -> bool {
        self.base == other.base && self.start < other.end && other.start < self.end && (self.exact || other.exact)
    }
}

/// A block device of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// The kernel's name.
    pub(crate) name: String,
    pub(crate) number: u64,
    /// It has partitions, which are devices of their own.
    pub(crate) has_partitions: bool,
    /// Its first byte is the first one requested: a volume there is the same one.
    pub(crate) same_start: bool,
}

impl Device {
    /// Its number in the form of the kernel.
    pub(crate) fn numbers(&self) -> String {
        numbers(self.number)
    }
}

/// A device's number in the form of the kernel: `MAJOR:MINOR`.
pub(crate) fn numbers(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The block devices of the system.
pub(crate) struct System {
    sysfs: PathBuf,
    /// The device and inode number of the files beneath loop devices, by the loop devices' names; empty until it is
    /// needed.
    backing: OnceLock<HashMap<String, (u64, u64)>>,
}

impl System {
    /// Creates a view of the block devices of this system.
    pub(crate) fn new() -> Self {
        Self { sysfs: SYSFS.into(), backing: OnceLock::new() }
    }

    /// The files beneath loop devices, as reported by losetup(8).
    fn ask(&self) -> &HashMap<String, (u64, u64)> {
        self.backing.get_or_init(|| ask_losetup().unwrap_or_default())
    }

    /// The layers of an open file or block device of `len` bytes: itself first, then those beneath.
    pub(crate) fn layers(&self, metadata: &Metadata, len: u64) -> Vec<Layer> {
        let block_device = metadata.file_type().is_block_device();
        let base = if block_device {
            Base::Device(metadata.rdev())
        } else {
            Base::File { dev: metadata.dev(), ino: metadata.ino() }
        };
        // a loop device over an empty file has no bytes to share, but will have some when the file grows
        let top = Layer { base, kind: LayerKind::Itself, path: None, start: 0, end: len.max(1), exact: true };
        let found = self.with_those_below(top.clone());
        if self.backing.get().is_none() && found.iter().any(|layer| layer.kind == LayerKind::Loop) {
            self.ask();
            return self.with_those_below(top);
        }
        found
    }

    /// All other devices that contain some of the bytes of these layers.
    pub(crate) fn others(&self, layers: &[Layer]) -> Vec<Device> {
        let found = self.others_as_known(layers);
        if self.backing.get().is_none() && !found.is_empty() {
            self.ask();
            return self.others_as_known(layers);
        }
        found
    }

    fn others_as_known(&self, layers: &[Layer]) -> Vec<Device> {
        let mut found = Vec::new();
        for name in self.names() {
            let dir = self.class(&name);
            let Some(number) = number_in(&dir) else { continue };
            if layers.iter().any(|layer| layer.base == Base::Device(number)) {
                continue;
            }
            let theirs = self.with_those_below(Self::whole(&dir, number, LayerKind::Itself, true));
            // a mapping itself has the devices beneath it open exclusively, with all their partitions
            let of_mapping = |their: &Layer| {
                their.kind == LayerKind::Partition
                    && layers.iter().any(|layer| layer.kind == LayerKind::Mapping && layer.base == their.base)
            };
            if theirs.iter().any(of_mapping) {
                continue;
            }
            if theirs.iter().any(|their| layers.iter().any(|layer| layer.meets(their))) {
                let same = |their: &Layer, layer: &Layer| {
                    layer.base == their.base && layer.start == their.start && layer.exact && their.exact
                };
                let same_start = theirs.iter().any(|their| layers.iter().any(|layer| same(their, layer)));
                found.push(Device { has_partitions: has_partitions(&dir), name, number, same_start });
            }
        }
        found
    }

    /// A device by its number, with all its bytes in question; without a name if there is no sysfs.
    pub(crate) fn device(&self, number: u64) -> Device {
        let dir = self.by_number(number);
        let name = fs::canonicalize(&dir).ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        Device { name: name.unwrap_or_default(), number, has_partitions: has_partitions(&dir), same_start: true }
    }

    /// The block devices among layers.
    pub(crate) fn devices<'l>(&self, layers: impl IntoIterator<Item = &'l Layer>) -> Vec<Device> {
        let devices = layers.into_iter().filter_map(|layer| match layer.base {
            Base::Device(number) => Some(Device { same_start: layer.exact && layer.start == 0, ..self.device(number) }),
            Base::File { .. } => None,
        });
        devices.collect()
    }

    /// The names of the devices that are made of a device.
    pub(crate) fn holders(&self, device: &Device) -> Vec<String> {
        names_in(&self.class(&device.name).join("holders"))
    }

    fn names(&self) -> Vec<String> {
        names_in(&self.sysfs.join("class/block"))
    }

    fn class(&self, name: &str) -> PathBuf {
        self.sysfs.join("class/block").join(name)
    }

    fn by_number(&self, number: u64) -> PathBuf {
        self.sysfs.join("dev/block").join(numbers(number))
    }

    /// The layer of a whole device.
    fn whole(dir: &Path, number: u64, kind: LayerKind, exact: bool) -> Layer {
        let sectors = number_from(&dir.join("size")).unwrap_or(u64::MAX / SECTOR);
        let end = sectors.saturating_mul(SECTOR).max(1);
        Layer { base: Base::Device(number), kind, path: None, start: 0, end, exact }
    }

    fn with_those_below(&self, top: Layer) -> Vec<Layer> {
        let mut found = vec![top];
        let mut next = 0;
        while let Some(layer) = found.get(next).filter(|_| next < DEEPEST) {
            let below = match layer.base {
                Base::Device(number) => self.below(number, layer),
                Base::File { .. } => Vec::new(),
            };
            found.extend(below);
            next += 1;
        }
        found
    }

    /// The layers directly beneath the bytes of a device.
    fn below(&self, number: u64, above: &Layer) -> Vec<Layer> {
        let dir = self.by_number(number);
        let moved = |base, kind, path, by: u64| Layer {
            base,
            kind,
            path,
            start: above.start.saturating_add(by),
            end: above.end.saturating_add(by),
            exact: above.exact,
        };
        if dir.join("partition").exists() {
            // the folder of a partition is in that of its disk
            let disk = fs::canonicalize(&dir).ok().and_then(|dir| number_in(dir.parent()?));
            let start = number_from(&dir.join("start")).unwrap_or(0).saturating_mul(SECTOR);
            return disk.map(|disk| moved(Base::Device(disk), LayerKind::Partition, None, start)).into_iter().collect();
        }
        if let Ok(path) = fs::read_to_string(dir.join("loop/backing_file")) {
            let path = PathBuf::from(path.strip_suffix('\n').unwrap_or(&path));
            let offset = number_from(&dir.join("loop/offset")).unwrap_or(0);
            let base = self.backing_of(number, &path);
            return base.map(|base| moved(base, LayerKind::Loop, Some(path), offset)).into_iter().collect();
        }
        let slaves = dir.join("slaves");
        let slaves = names_in(&slaves).into_iter().map(|name| slaves.join(name));
        // the parts of them that the device consists of are unknown
        slaves.filter_map(|dir| Some(Self::whole(&dir, number_in(&dir)?, LayerKind::Mapping, false))).collect()
    }

    /// The file or device beneath a loop device.
    fn backing_of(&self, number: u64, path: &Path) -> Option<Base> {
        let found = fs::metadata(path).ok();
        let reported = if found.is_some() { self.backing.get() } else { Some(self.ask()) };
        let reported = reported.and_then(|files| files.get(&self.device(number).name)).copied();
        match (reported, found) {
            (reported, Some(found)) if reported.is_none_or(|inode| inode == (found.dev(), found.ino())) => {
                Some(if found.file_type().is_block_device() {
                    Base::Device(found.rdev())
                } else {
                    Base::File { dev: found.dev(), ino: found.ino() }
                })
            }
            (Some((dev, ino)), _) => Some(Base::File { dev, ino }),
            (None, _) => None,
        }
    }
}

/// Opens the file or device of a layer, if its path is still that.
pub(crate) fn open(layer: &Layer) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let path = layer.path.as_deref()?;
    // checked before it is opened: opening a named pipe would wait for its other end
    is_at(layer.base, &fs::metadata(path).ok()?).then_some(())?;
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?);
    is_at(layer.base, &file.metadata().ok()?).then_some(file)
}

/// Whether the metadata is that of the base.
pub(crate) fn is_at(base: Base, metadata: &Metadata) -> bool {
    match base {
        Base::File { dev, ino } => (metadata.dev(), metadata.ino()) == (dev, ino),
        Base::Device(number) => metadata.file_type().is_block_device() && metadata.rdev() == number,
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn has_partitions(dir: &Path) -> bool {
    names_in(dir).iter().any(|name| dir.join(name).join("partition").exists())
}

fn number_from(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn number_in(dir: &Path) -> Option<u64> {
    parse_numbers(fs::read_to_string(dir.join("dev")).ok()?.trim())
}

fn parse_numbers(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The files beneath loop devices; `None` if there is no losetup, or no permission to open the devices.
fn ask_losetup() -> Option<HashMap<String, (u64, u64)>> {
    let columns = ["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN,BACK-INO"];
    let said = Command::new("losetup").args(columns).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    Some(parse_losetup(&String::from_utf8_lossy(&said.stdout)))
}

fn parse_losetup(said: &str) -> HashMap<String, (u64, u64)> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.rsplit('/').next()?.to_owned();
        let (dev, ino) = (parse_numbers(words.next()?)?, words.next()?.parse().ok()?);
        (ino != 0).then_some((name, (dev, ino)))
    };
    said.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;

    /// A sysfs of a disk with two partitions, and loop devices.
    struct Made {
        dir: TempDir,
        system: System,
    }

    impl Made {
        fn new() -> Self {
            let dir = TempDir::new().unwrap();
            for folder in ["class/block", "dev/block", "devices"] {
                fs::create_dir_all(dir.path().join(folder)).unwrap();
            }
            let system = System { sysfs: dir.path().to_owned(), backing: HashMap::new().into() };
            Self { dir, system }
        }

        /// Adds a device at `place` under `devices`.
        fn device(&self, place: &str, numbers: &str, bytes: u64, more: &[(&str, String)]) -> u64 {
            let dir = self.dir.path().join("devices").join(place);
            fs::create_dir_all(&dir).unwrap();
            let own = [("dev", format!("{numbers}\n")), ("size", format!("{}\n", bytes / SECTOR))];
            for (name, text) in own.iter().chain(more) {
                fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
                fs::write(dir.join(name), text).unwrap();
            }
            for link in [format!("class/block/{}", dir.file_name().unwrap().display()), format!("dev/block/{numbers}")]
            {
                std::os::unix::fs::symlink(&dir, self.dir.path().join(link)).unwrap();
            }
            parse_numbers(numbers).unwrap()
        }

        fn over(&self, place: &str, numbers: &str, file: &Path, offset: u64, bytes: u64) -> u64 {
            let named = format!("{}\n", file.display());
            self.device(place, numbers, bytes, &[("loop/backing_file", named), ("loop/offset", format!("{offset}\n"))])
        }

        fn partition(&self, place: &str, numbers: &str, start: u64, bytes: u64) -> u64 {
            let more = [("partition", "1\n".to_owned()), ("start", format!("{}\n", start / SECTOR))];
            self.device(place, numbers, bytes, &more)
        }

        /// The names of the devices that share bytes with a device.
        fn beside(&self, number: u64) -> Vec<String> {
            let whole = System::whole(&self.system.by_number(number), number, LayerKind::Itself, true);
            let layers = self.system.with_those_below(whole);
            let mut names: Vec<_> = self.system.others(&layers).into_iter().map(|device| device.name).collect();
            names.sort();
            names
        }

        fn beside_file(&self, file: &Path) -> Vec<String> {
            let metadata = fs::metadata(file).unwrap();
            let layers = self.system.layers(&metadata, metadata.len());
            let mut names: Vec<_> = self.system.others(&layers).into_iter().map(|device| device.name).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn loop_devices_and_partitions_that_share_bytes_are_found_from_each_other() {
        let made = Made::new();
        let file = made.dir.path().join("disk.img");
        File::create(&file).unwrap().set_len(16 * MIB).unwrap();
        let whole = made.over("loop0", "7:0", &file, 0, 16 * MIB);
        let first = made.partition("loop0/loop0p1", "259:1", MIB, 4 * MIB);
        let second = made.partition("loop0/loop0p2", "259:2", 5 * MIB, 4 * MIB);
        let cut = made.over("loop1", "7:1", &file, 6 * MIB, MIB);
        let behind = made.over("loop2", "7:2", &file, 9 * MIB, MIB);
        assert_eq!(made.beside_file(&file), ["loop0", "loop0p1", "loop0p2", "loop1", "loop2"]);
        assert_eq!(made.beside(whole), ["loop0p1", "loop0p2", "loop1", "loop2"]);
        assert_eq!(made.beside(first), [""; 0]);
        assert_eq!(made.beside(second), ["loop1"]);
        // the disk of a partition is not another device for it, but it is one for a loop device that crosses its border
        assert_eq!(made.beside(cut), ["loop0", "loop0p2"]);
        assert_eq!(made.beside(behind), ["loop0"]);
        assert!(made.system.device(whole).has_partitions && !made.system.device(first).has_partitions);
        let other = made.dir.path().join("other.img");
        File::create(&other).unwrap();
        assert_eq!(made.beside_file(&other), [""; 0]);
    }

    #[test]
    fn a_mapping_has_some_bytes_of_what_it_is_made_of() {
        let made = Made::new();
        let file = made.dir.path().join("pool.img");
        File::create(&file).unwrap().set_len(16 * MIB).unwrap();
        let disk = made.over("loop0", "7:0", &file, 0, 16 * MIB);
        let again = made.over("loop1", "7:1", &file, 8 * MIB, MIB);
        let mapped = ["dm-0", "dm-1"].map(|name| {
            let number = made.device(name, &format!("253:{}", &name[3..]), 4 * MIB, &[]);
            let slaves = made.dir.path().join("devices").join(name).join("slaves");
            fs::create_dir(&slaves).unwrap();
            std::os::unix::fs::symlink(made.dir.path().join("devices/loop0"), slaves.join("loop0")).unwrap();
            number
        });
        // two volumes of a pool share no bytes
        assert_eq!(made.beside(mapped[0]), ["loop1"]);
        assert_eq!(made.beside(mapped[1]), ["loop1"]);
        assert_eq!(made.beside(disk), ["dm-0", "dm-1", "loop1"]);
        assert_eq!(made.beside(again), ["dm-0", "dm-1", "loop0"]);
        assert_eq!(made.beside_file(&file), ["dm-0", "dm-1", "loop0", "loop1"]);
        // a partition of the mapping's disk would appear open exclusively because of the mapping
        made.partition("loop0/loop0p1", "259:1", MIB, MIB);
        assert_eq!(made.beside(mapped[0]), ["loop1"]);
    }

    #[test]
    fn a_path_is_not_believed_where_the_device_says_another_file() {
        let mut made = Made::new();
        let file = made.dir.path().join("v.img");
        let theirs = made.dir.path().join("theirs.img");
        for file in [&file, &theirs] {
            File::create(file).unwrap().set_len(MIB).unwrap();
        }
        let named = made.dir.path().join("v.img");
        made.over("loop0", "7:0", &named, 0, MIB);
        made.over("loop1", "7:1", Path::new("/gone/v.img (deleted)"), 0, MIB);
        assert_eq!(made.beside_file(&file), ["loop0"]);
        let of = |file: &Path| fs::metadata(file).map(|found| (found.dev(), found.ino())).unwrap();
        made.system.backing = HashMap::from([("loop0".into(), of(&theirs)), ("loop1".into(), of(&file))]).into();
        assert_eq!(made.beside_file(&file), ["loop1"]);
        assert_eq!(made.beside_file(&theirs), ["loop0"]);
    }

    #[test]
    fn losetups_table_is_read_where_it_says_anything() {
        let said = "/dev/loop0       254:0   9986074\n/dev/loop1 0:0 0\n/dev/loop2\nodd line here\n/dev/loop3      0:45        12\n";
        let found = parse_losetup(said);
        assert_eq!(found.len(), 2);
        assert_eq!(found["loop0"], (makedev(254, 0), 9_986_074));
        assert_eq!(found["loop3"], (makedev(0, 45), 12));
    }
}
