//! The parameters of a modelled device: two tables of them, and their text form.
//!
//! The text has lines `key = value`; `#` begins a comment. `kind = disk` or `kind = flash` comes first; a missing key
//! has the value of `model:hdd` or `model:ssd`. Times have the form `9 ms`, `67 us`, `100 ns` or `1 s`, optionally with
//! a fraction; rates the form `100 MB/s`, in powers of 1000; sizes that of [`parse_size`].

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use blockdev::{Error, Result, parse_size};

/// The reason why there is no model of a name.
const NO_MODEL: &str = "no such model: use hdd, ssd, or a file of parameters";

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// The order in which a disk serves the requests that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// First the one that it reaches first, by seek and rotation, among as many as the queue depth.
    ShortestPositioning,
    /// The order of submission.
    AsSubmitted,
}

/// A type of values of parameters.
trait Value: Sized {
    fn read(text: &str) -> Option<Self>;
    fn text(&self) -> String;
}

/// Splits `12.5 ms` into digits, their number after the decimal point, and the unit.
fn decimal(text: &str) -> Option<(u64, u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, u32::try_from(fraction.len()).ok()?, unit.trim()))
}

/// `digits` with the last `places` of them after the decimal point, times `unit`; `None` if that is not a whole number.
fn scaled(digits: u64, places: u32, unit: u64) -> Option<u64> {
    let (product, power) = (digits.checked_mul(unit)?, 10_u64.checked_pow(places)?);
    product.is_multiple_of(power).then_some(product / power)
}

impl Value for Duration {
    fn read(text: &str) -> Option<Self> {
        let (digits, places, unit) = decimal(text)?;
        let unit = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return None,
        };
        scaled(digits, places, unit).map(Self::from_nanos)
    }

    fn text(&self) -> String {
        let ns = self.as_nanos();
        match ns {
            _ if ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
            _ if ns.is_multiple_of(1_000) => format!("{} us", ns / 1_000),
            _ => format!("{ns} ns"),
        }
    }
}

impl Value for Rate {
    fn read(text: &str) -> Option<Self> {
        let (digits, places, unit) = decimal(text)?;
        let unit = match unit {
            "B/s" => 1,
            "kB/s" => 1_000,
            "MB/s" => 1_000_000,
            "GB/s" => 1_000_000_000,
            _ => return None,
        };
        scaled(digits, places, unit).map(Self)
    }

    fn text(&self) -> String {
        if self.0.is_multiple_of(1_000_000) {
            format!("{} MB/s", self.0 / 1_000_000)
        } else {
            format!("{} B/s", self.0)
        }
    }
}

impl Value for u64 {
    fn read(text: &str) -> Option<Self> {
        parse_size(text).ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        }
    }

    fn text(&self) -> String {
        if *self { "yes" } else { "no" }.to_owned()
    }
}

impl Value for Order {
    fn read(text: &str) -> Option<Self> {
        match text {
            "shortest-positioning" => Some(Self::ShortestPositioning),
            "as-submitted" => Some(Self::AsSubmitted),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::ShortestPositioning => "shortest-positioning",
            Self::AsSubmitted => "as-submitted",
        }
        .to_owned()
    }
}

/// One table: the struct, its values in `Default`, its keys in the text, and the limits of valid values.
macro_rules! table {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, $limits:expr;)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            /// Sets the parameter `key`; the error is a description.
            fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
                match key {
                    $(stringify!($field) => {
                        self.$field = <$type as Value>::read(value).ok_or("invalid value")?;
                    })+
                    _ => return Err("unknown parameter"),
                }
                Ok(())
            }

            /// The first parameter that is outside its limits.
            fn beyond_limits(&self) -> Option<&'static str> {
                $(if !$limits.contains(&self.$field) {
                    return Some(stringify!($field));
                })+
                None
            }

            fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{} = {}", stringify!($field), self.$field.text())?;)+
                Ok(())
            }
        }
    };
}

/// No limits, for parameters of any type.
struct Any;

impl Any {
    fn contains<T>(&self, _: &T) -> bool {
        true
    }
}

/// Limits of rates for which times can be computed.
struct Rates;

impl Rates {
    fn contains(&self, rate: &Rate) -> bool {
        (1_000_000..=1_000_000_000_000).contains(&rate.0)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const NONE: Duration = Duration::ZERO;
const MB: u64 = 1_000_000;

table! {
    /// A hard disk. The values of `Default` describe one like the disk of the ffsck paper (Ma, Dragga, Arpaci-Dusseau
    /// and Arpaci-Dusseau, "ffsck: The Fast File System Checker", FAST 2013): a Seagate Barracuda 7200.12 of 750 GB
    /// with a rate of 100 MB/s according to the paper. Where no published figure is known, the field is marked
    /// "assumed": then it is a usual value for desktop disks of that time, and results that depend on it are
    /// assumptions, too.
    DiskParameters {
        /// Revolutions per minute. Published: 7 200, hence 4.17 ms for half a revolution.
        rpm: u32 = 7200, 60..=1_000_000;
        /// Length of the disk in bytes; the device is at its outer edge, where sector 0 is. 0 spreads the device over
        /// the whole disk: fewer tracks, yet full strokes. Published: 1 465 149 168 sectors.
        capacity: u64 = 1_465_149_168 * 512, 0..=super::LONGEST;
        /// Surfaces. Discs of that family have 500 GB, so 750 GB are three surfaces.
        heads: u32 = 3, 1..=64;
        /// Zones with the same number of cylinders each, with fewer sectors per track from the outer to the inner.
        /// Assumed.
        zones: u32 = 16, 1..=1024;
        /// Sequential rate in the outermost zone, including switches between tracks. Published, in the paper.
        outer_rate: Rate = Rate(100 * MB), Rates;
        /// The same in the innermost zone. Assumed: half, like the radii.
        inner_rate: Rate = Rate(50 * MB), Rates;
        /// Seek to the next cylinder. Assumed.
        track_to_track: Duration = Duration::from_millis(1), NONE..=SECOND;
        /// Mean seek between two random cylinders. Published: 8.5 ms reading, 9.5 ms writing; their mean.
        average_seek: Duration = Duration::from_millis(9), NONE..=SECOND;
        /// Seek from the first cylinder to the last. Assumed: twice the average.
        full_stroke: Duration = Duration::from_millis(18), NONE..=SECOND;
        /// Change to another surface of the same cylinder. Assumed.
        head_switch: Duration = Duration::from_micros(800), NONE..=SECOND;
        /// The fixed time of each command. Assumed.
        command: Duration = Duration::from_micros(100), NONE..=SECOND;
        /// Rate between the disk's buffer and the host. Published: SATA with 3 Gbit/s, 300 MB/s.
        interface_rate: Rate = Rate(300 * MB), Rates;
        /// The number of requests of a batch among which the disk chooses. Published: native command queuing, 32.
        queue_depth: u32 = 32, 1..=1024;
        /// The rule by which it chooses. Assumed.
        order: Order = Order::ShortestPositioning, Any;
        /// Number of ranges of the disk in the track buffer; the least recently used one is replaced. Assumed. Together
        /// with the write cache these are the 32 MiB that are published.
        segments: u32 = 24, 1..=4096;
        /// Length of each range in bytes; half of it is read-ahead after the last request. Assumed.
        segment: u64 = 1 << 20, 4096..=1 << 30;
        /// Whether the sectors that pass under the head on the way to a requested sector are cached. Assumed.
        read_on_arrival: bool = true, Any;
        /// Bytes of writes that the disk accepts before they are on the medium; 0 for none. Assumed.
        write_cache: u64 = 8 << 20, 0..=1 << 30;
        /// The time without a read after which the disk starts to write back its cache. Assumed.
        idle: Duration = Duration::from_millis(10), NONE..=SECOND;
    }
}

table! {
    /// A flash disk. The values of `Default` describe one like a Samsung SSD 850 EVO of 1 TB, of which these figures
    /// are published, each as a maximum: sequential read 540 MB/s, write 520 MB/s; 4 KiB at random, one at a time, 10
    /// 000 reads or 40 000 writes a second; 32 at a time, 98 000 or 90 000. Nothing is published on the internals; the
    /// values are chosen so that these figures come out. Not modelled: garbage collection, wear, and the faster part of
    /// the medium that takes short bursts; so it is a disk that is not full, in a steady state.
    FlashParameters {
        /// Buses to the flash, each shared by as many dies as the next parameter.
        channels: u32 = 8, 1..=1024;
        /// Dies on a channel; each reads or programs one page at a time.
        dies: u32 = 4, 1..=1024;
        /// Bytes read or programmed at once; page n of the device is on die n modulo their number.
        page: u64 = 16 << 10, 512..=1 << 24;
        /// Time from the cells to the die's register.
        read_page: Duration = Duration::from_micros(67), NONE..=SECOND;
        /// Time from the register to the cells.
        program_page: Duration = Duration::from_micros(1000), NONE..=SECOND;
        /// Rate between register and controller, on one channel.
        channel_rate: Rate = Rate(533 * MB), Rates;
        /// The time of each command in the controller before the flash; overlaps for commands in the queue.
        command: Duration = Duration::from_nanos(14_800), NONE..=SECOND;
        /// The time of each command on the way to the host, where commands follow one another.
        interface_command: Duration = Duration::from_nanos(3_100), NONE..=SECOND;
        /// Rate between controller and host: SATA with 6 Gbit/s, less its frames.
        interface_rate: Rate = Rate(560 * MB), Rates;
        /// Requests of a batch in flight at once. Published: native command queuing, 32.
        queue_depth: u32 = 32, 1..=65_536;
        /// Bytes that are read ahead when a read begins at the end of the previous one.
        read_ahead: u64 = 512 << 10, 0..=1 << 30;
        /// Bytes of writes accepted before they are programmed.
        write_buffer: u64 = 16 << 20, 0..=1 << 30;
        /// The time of a flush in addition to programming the content of the buffer: the map of the flash is made
        /// durable.
        flush: Duration = Duration::from_millis(1), NONE..=SECOND;
    }
}

/// The parameters of a modelled device. `Display` writes the text that [`Parameters::parse`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameters {
    /// A hard disk.
    Disk(DiskParameters),
    /// A flash disk.
    Flash(FlashParameters),
}

impl Parameters {
    /// The parameters `name`: `hdd`, `ssd`, or those in the file with that path.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be read, otherwise those of [`Parameters::parse`].
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "hdd" => Ok(Self::Disk(DiskParameters::default())),
            "ssd" => Ok(Self::Flash(FlashParameters::default())),
            path => {
                let text = std::fs::read_to_string(Path::new(path)).map_err(|e| {
                    let source = match e.kind() {
                        io::ErrorKind::NotFound => io::Error::new(e.kind(), NO_MODEL),
                        _ => e,
                    };
                    Error::Open { device: format!("the model '{path}'"), source }
                })?;
                Self::parse(&text)
            }
        }
    }

    /// Parses parameters from text.
    ///
    /// # Errors
    /// [`Error::Parameters`] with the invalid line, or the parameter that is outside its limits.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parameters = None;
        for (line, content) in text.lines().enumerate() {
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let wrong = |why| Error::Parameters(format!("line {}, `{content}`: {why}", line + 1));
            let (key, value) = content.split_once('=').ok_or(wrong("not `key = value`"))?;
            let (key, value) = (key.trim(), value.trim());
            match (&mut parameters, key) {
                (None, "kind") => {
                    parameters = Some(match value {
                        "disk" => Self::Disk(DiskParameters::default()),
                        "flash" => Self::Flash(FlashParameters::default()),
                        _ => return Err(wrong("`kind` must be `disk` or `flash`")),
                    });
                }
                (None, _) => return Err(wrong("`kind` must come first")),
                (Some(Self::Disk(disk)), _) => disk.set(key, value).map_err(wrong)?,
                (Some(Self::Flash(flash)), _) => flash.set(key, value).map_err(wrong)?,
            }
        }
        let parameters = parameters.ok_or(Error::Parameters("no `kind = disk` or `kind = flash`".into()))?;
        parameters.validate()?;
        Ok(parameters)
    }

    /// Checks that the parameters describe a device.
    pub(super) fn validate(&self) -> Result<()> {
        let beyond = match self {
            Self::Disk(disk) => disk.beyond_limits(),
            Self::Flash(flash) => flash.beyond_limits(),
        };
        if let Some(key) = beyond {
            return Err(Error::Parameters(format!("`{key}` is beyond its limits")));
        }
        match self {
            Self::Disk(disk) if disk.inner_rate.0 > disk.outer_rate.0 => {
                Err(Error::Parameters("the inner rate is above the outer rate".into()))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(disk) => {
                writeln!(f, "kind = disk")?;
                disk.write(f)
            }
            Self::Flash(flash) => {
                writeln!(f, "kind = flash")?;
                flash.write(f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for name in ["hdd", "ssd"] {
            let parameters = Parameters::named(name).unwrap();
            assert_eq!(Parameters::parse(&parameters.to_string()).unwrap(), parameters);
        }
        let changed = DiskParameters {
            rpm: 5400,
            average_seek: Duration::from_nanos(12_345_678),
            inner_rate: Rate(33_333_333),
            order: Order::AsSubmitted,
            read_on_arrival: false,
            write_cache: 0,
            ..DiskParameters::default()
        };
        let text = Parameters::Disk(changed.clone()).to_string();
        assert_eq!(Parameters::parse(&text).unwrap(), Parameters::Disk(changed));
        let text =
            "\n# a disk\nkind=disk # of some kind\n average_seek = 8.5 ms\nouter_rate =0.125 GB/s\nsegment = 2M\n";
        let Parameters::Disk(disk) = Parameters::parse(text).unwrap() else { panic!("no disk") };
        assert_eq!(disk.average_seek, Duration::from_micros(8500));
        assert_eq!((disk.outer_rate, disk.segment, disk.rpm), (Rate(125 * MB), 2 << 20, 7200));
    }

    #[test]
    fn wrong_texts() {
        for (text, why) in [
            ("", "no `kind"),
            ("rpm = 7200\nkind = disk", "line 1, `rpm = 7200`: `kind` must come first"),
            ("kind = tape", "`disk` or `flash`"),
            ("kind = disk\nrpm", "line 2, `rpm`: not `key = value`"),
            ("kind = disk\n\nrmp = 1", "line 3, `rmp = 1`: unknown"),
            ("kind = disk\nkind = disk", "unknown parameter"),
            ("kind = flash\nrpm = 7200", "unknown parameter"),
            ("kind = disk\nrpm = fast", "invalid value"),
            ("kind = disk\naverage_seek = 9", "invalid value"),
            ("kind = disk\naverage_seek = 1.5 ns", "invalid value"),
            ("kind = disk\naverage_seek = . ms", "invalid value"),
            ("kind = disk\naverage_seek = 99999999999999999999 ms", "invalid value"),
            ("kind = disk\nread_on_arrival = maybe", "invalid value"),
            ("kind = disk\nheads = 0", "`heads` is beyond"),
            ("kind = disk\ncapacity = 15E", "`capacity` is beyond"),
            ("kind = disk\ninner_rate = 1 B/s", "`inner_rate` is beyond"),
            ("kind = disk\ninner_rate = 200 MB/s", "above the outer"),
            ("kind = flash\npage = 0", "`page` is beyond"),
            ("kind = flash\nflush = 2 s", "`flush` is beyond"),
        ] {
            let message = Parameters::parse(text).unwrap_err().to_string();
            assert!(message.starts_with("invalid parameters: ") && message.contains(why), "{text:?}: {message}");
        }
    }
}
