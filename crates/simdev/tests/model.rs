//! Modelled devices: the published figures of the real devices, and properties of every sequence of requests. The times
//! measured here are virtual.

use std::sync::Arc;
use std::time::Duration;

use blockdev::{BlockDevice, Error, MemoryDevice, Op, OpenOptions, Read, Write, open_with};
use extant_simdev::{DiskParameters, Event, FlashParameters, MODEL, Model, Order, Parameters, Report, time_trace};
use proptest::prelude::*;
use testkit::Rng;
use testkit::device::conforms;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 1_465_149_168 * 512;

fn hdd() -> Parameters {
    Parameters::Disk(DiskParameters::default())
}

fn ssd() -> Parameters {
    Parameters::Flash(FlashParameters::default())
}

fn event(op: Op, offset: u64, len: u64) -> Event {
    Event { op, offset, len }
}

const FLUSH: Event = Event { op: Op::Flush, offset: 0, len: 0 };

fn time(parameters: &Parameters, events: &[Event]) -> Report {
    time_trace(parameters, CAPACITY, events).unwrap()
}

/// The time from the end of the first part to the end of the second.
fn after(parameters: &Parameters, first: &[Event], second: &[Event]) -> Duration {
    let all = [first, second].concat();
    time(parameters, &all).time - time(parameters, first).time
}

fn sequence(op: Op, start: u64, request: u64, count: u64) -> Vec<Event> {
    (0..count).map(|n| event(op, start + n * request, request)).collect()
}

fn at_random(op: Op, count: u64) -> Vec<Event> {
    let mut numbers = Rng::new(11);
    (0..count).map(|_| event(op, numbers.below(CAPACITY / 4096) * 4096, 4096)).collect()
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e6
}

#[track_caller]
fn near(seen: f64, published: f64, tolerance: f64) {
    assert!((seen / published - 1.0).abs() <= tolerance, "{seen}, published {published}");
}

#[test]
fn a_hard_disk_reads_in_sequence_at_the_rate_of_its_zone() {
    for request in [128 * KIB, MIB, 16 * MIB] {
        let count = 256 * MIB / request;
        let outer = time(&hdd(), &sequence(Op::Read, 0, request, count));
        near(rate(256 * MIB, outer.time), 100.0, 0.02);
        let there = CAPACITY / 4096 * 4096 - 256 * MIB;
        let inner = after(&hdd(), &[event(Op::Read, there - MIB, MIB)], &sequence(Op::Read, there, request, count));
        near(rate(256 * MIB, inner), 50.0, 0.02);
    }
}

#[test]
fn a_hard_disk_writes_in_sequence_at_the_same_rate() {
    for request in [64 * KIB, MIB] {
        let mut events = sequence(Op::Write, 0, request, 512 * MIB / request);
        events.push(FLUSH);
        near(rate(512 * MIB, time(&hdd(), &events).time), 100.0, 0.03);
    }
    // a file system's journal: small writes in sequence, each of which must be durable, cost a revolution each
    let synced: Vec<_> = sequence(Op::Write, 0, 4 * KIB, 500).into_iter().flat_map(|write| [write, FLUSH]).collect();
    near(time(&hdd(), &synced).time.as_secs_f64() / 500.0, 8.333e-3, 0.05);
}

#[test]
fn a_hard_disk_reads_at_random_in_seek_and_half_a_revolution() {
    let report = time(&hdd(), &at_random(Op::Read, 20_000));
    let each = report.time.as_secs_f64() * 1e3 / 20_000.0;
    let transfer = 4096.0 / 75e6 * 1e3;
    near(each, 9.0 + 4.167 + transfer, 0.05);
    near(report.seek_time.as_secs_f64() * 1e3 / 20_000.0, 9.0, 0.05);
    near(report.rotation_time.as_secs_f64() * 1e3 / 20_000.0, 4.167, 0.02);
    assert_eq!((report.reads, report.bytes_read), (20_000, 20_000 * 4096));
    assert!((19_900..=20_000).contains(&report.seeks), "{}", report.seeks);
}

#[test]
fn a_hard_disks_shortest_and_longest_seek() {
    let p = DiskParameters { heads: 1, read_on_arrival: false, ..DiskParameters::default() };
    let p = Parameters::Disk(p);
    // with one head every track is a cylinder; a read in the middle of the next track, not in the buffer
    let seek = |first: u64, second: u64| {
        let one = time(&p, &[event(Op::Read, first, 512)]);
        let both = time(&p, &[event(Op::Read, first, 512), event(Op::Read, second, 512)]);
        assert_eq!(both.seeks - one.seeks, 1);
        both.seek_time - one.seek_time
    };
    assert_eq!(seek(0, 1_000_000), Duration::from_millis(1));
    assert_eq!(seek(1_000_000, 0), Duration::from_millis(1));
    near(seek(0, CAPACITY - 4096).as_secs_f64(), 18e-3, 0.001);
    near(seek(CAPACITY - 4096, 0).as_secs_f64(), 18e-3, 0.001);
}

#[test]
fn rotation_is_exact() {
    // without buffers, the same sector passes once per revolution
    let p = DiskParameters { write_cache: 0, ..DiskParameters::default() };
    let p = Parameters::Disk(p);
    let write = event(Op::Write, 123 * 4096, 4096);
    let mut clocks: Vec<_> = (1..=100).map(|n| time(&p, &vec![write; n]).time.as_nanos()).collect();
    clocks.dedup_by_key(|clock| *clock);
    assert!(clocks.windows(2).all(|two| two[1] - two[0] == 8_333_333), "{clocks:?}");
}

#[test]
fn the_track_buffer_caches_what_passed_under_the_head() {
    let far = event(Op::Read, CAPACITY / 2, 4096);
    let near = event(Op::Read, 400_000, 4096);
    // the sector just before the requested one has passed under the head
    let hit = after(&hdd(), &[far, near], &[event(Op::Read, 400_000 - 4096, 4096)]);
    assert!(hit < Duration::from_micros(200), "{hit:?}");
    let p = Parameters::Disk(DiskParameters { read_on_arrival: false, ..DiskParameters::default() });
    let miss = after(&p, &[far, near], &[event(Op::Read, 400_000 - 4096, 4096)]);
    assert!(miss > Duration::from_millis(7), "{miss:?}");
    // a segment survives seeks to other locations until there are too many of them
    let away = |n: u64| (0..n).map(|n| event(Op::Read, CAPACITY / 100 * (n + 1), 4096)).collect::<Vec<_>>();
    let again = |n| after(&hdd(), &[vec![far, near], away(n)].concat(), &[near]);
    assert!(again(23) < Duration::from_micros(200), "{:?}", again(23));
    assert!(again(24) > Duration::from_millis(2), "{:?}", again(24));
}

#[test]
fn a_write_makes_the_buffer_old_and_is_read_from_the_cache() {
    let read = event(Op::Read, 400_000, 4096);
    let write = event(Op::Write, 400_000, 4096);
    let fast = Duration::from_micros(200);
    assert!(after(&hdd(), &[read], &[read]) < fast);
    assert!(after(&hdd(), &[read, write], &[read]) < fast);
    assert!(after(&hdd(), &[read, write, FLUSH], &[read]) > Duration::from_millis(7));
}

#[test]
fn the_write_cache_answers_at_once_and_a_flush_pays() {
    let writes = at_random(Op::Write, 200);
    let cached = time(&hdd(), &writes).time;
    let flushed = after(&hdd(), &writes, &[FLUSH]);
    assert!(cached < Duration::from_millis(40), "{cached:?}");
    assert!(flushed > Duration::from_millis(200), "{flushed:?}");
    let through = time(&Parameters::Disk(DiskParameters { write_cache: 0, ..DiskParameters::default() }), &writes).time;
    assert!(through > cached + flushed, "in their order {through:?}, in the disk's {:?}", cached + flushed);
    // if there is nothing to write, a flush costs only the time of a command
    assert_eq!(after(&hdd(), &[writes, vec![FLUSH]].concat(), &[FLUSH]), Duration::from_micros(100));
    // a full cache is no faster than the medium
    let many = at_random(Op::Write, 6000);
    assert!(time(&hdd(), &many).time > Duration::from_secs(6));
}

fn batch(parameters: &Parameters, events: &[Event]) -> Duration {
    // the device is too long for memory: its own times, at a length that fits
    let device = Model::new(MemoryDevice::zeroed(64 * MIB).unwrap(), parameters).unwrap();
    let mut buffers: Vec<_> = events.iter().map(|e| (e.offset % (64 * MIB), vec![0; e.len as usize])).collect();
    let mut reads: Vec<_> = buffers.iter_mut().map(|(offset, buf)| Read::new(*offset, buf)).collect();
    device.read_many(&mut reads);
    assert!(reads.iter().all(|r| r.result.is_ok()));
    device.clock()
}

#[test]
fn a_queue_shortens_the_way() {
    let fit = DiskParameters { capacity: 0, ..DiskParameters::default() };
    let events = at_random(Op::Read, 320);
    let deep = batch(&Parameters::Disk(fit.clone()), &events);
    let shallow = batch(&Parameters::Disk(DiskParameters { queue_depth: 4, ..fit.clone() }), &events);
    let submitted = batch(&Parameters::Disk(DiskParameters { order: Order::AsSubmitted, ..fit }), &events);
    assert!(deep < shallow && shallow < submitted, "{deep:?} {shallow:?} {submitted:?}");
    assert!(deep * 2 < submitted, "{deep:?} {submitted:?}");
}

#[test]
fn a_disk_stretched_over_its_device_has_full_strokes() {
    let stretched = Parameters::Disk(DiskParameters { capacity: 0, ..DiskParameters::default() });
    let events = [event(Op::Read, 0, 512), event(Op::Read, 64 * MIB - 512, 512)];
    let whole = time_trace(&stretched, 64 * MIB, &events).unwrap();
    let corner = time_trace(&hdd(), 64 * MIB, &events).unwrap();
    assert!(whole.seek_time > Duration::from_millis(15), "{whole:?}");
    assert!(corner.seek_time < Duration::from_millis(2), "{corner:?}");
}

#[test]
fn a_flash_disk_has_the_published_figures() {
    let one_by_one = |op| 10_000.0 / time(&ssd(), &at_random(op, 10_000)).time.as_secs_f64();
    near(one_by_one(Op::Read), 10_000.0, 0.05);
    near(one_by_one(Op::Write), 40_000.0, 0.05);
    for request in [128 * KIB, MIB] {
        let count = 512 * MIB / request;
        near(rate(512 * MIB, time(&ssd(), &sequence(Op::Read, 0, request, count)).time), 540.0, 0.05);
        near(rate(512 * MIB, time(&ssd(), &sequence(Op::Write, 0, request, count)).time), 520.0, 0.05);
    }
    near(10_000.0 / batch(&ssd(), &at_random(Op::Read, 10_000)).as_secs_f64(), 98_000.0, 0.05);
    let device = Model::new(MemoryDevice::zeroed(64 * MIB).unwrap(), &ssd()).unwrap();
    let mut writes: Vec<_> = (0..10_000).map(|n| Write::new(n * 7919 % 16_384 * 4096, &[1; 4096])).collect();
    device.write_many(&mut writes);
    near(10_000.0 / device.clock().as_secs_f64(), 90_000.0, 0.10);
}

#[test]
fn a_flash_disks_flush() {
    let write = event(Op::Write, 0, 4096);
    let flush = after(&ssd(), &[write], &[FLUSH]);
    // programs the page, then the map
    assert!(flush > Duration::from_millis(2) && flush < Duration::from_micros(2100), "{flush:?}");
    assert_eq!(after(&ssd(), &[write, FLUSH], &[FLUSH]), Duration::from_nanos(14_800));
    assert_eq!(time(&ssd(), &[FLUSH]).time, Duration::from_nanos(14_800));
    let discard = event(Op::Discard, 0, CAPACITY);
    assert!(time(&ssd(), &[discard]).time < Duration::from_micros(20));
}

#[test]
fn a_fixed_sequence_takes_the_same_nanoseconds_everywhere() {
    let mut numbers = Rng::new(1);
    let mut events = Vec::new();
    for n in 0..5000 {
        let op = [Op::Read, Op::Read, Op::Write, Op::Discard][numbers.below(4) as usize];
        events.push(event(op, numbers.below(1 << 31) * 300, numbers.below(100_000)));
        if n % 50 == 0 {
            events.push(FLUSH);
        }
    }
    // a change of the model changes these figures, and all published figures that depend on it
    let seen = [hdd(), ssd()].map(|p| time(&p, &events).time.as_nanos());
    assert_eq!(seen, [44_169_646_214, 1_101_003_988]);
}

#[test]
fn what_is_refused_takes_no_time() {
    for parameters in [hdd(), ssd()] {
        let device = Model::new(MemoryDevice::zeroed(MIB).unwrap(), &parameters).unwrap();
        device.read(MIB, &mut [0]).unwrap_err();
        device.write(u64::MAX, &[0]).unwrap_err();
        device.discard(0, MIB + 1).unwrap_err();
        assert_eq!(device.report(), Report::default());
        device.read(0, &mut []).unwrap();
        assert_eq!(device.report().reads, 1);
        let refused = time_trace(&parameters, MIB, &[event(Op::Read, MIB, 1), event(Op::Write, u64::MAX, u64::MAX)]);
        assert_eq!(refused.unwrap(), Report::default());
    }
    let longer = MemoryDevice::zeroed(2 * MIB).unwrap();
    let small = Parameters::Disk(DiskParameters { capacity: MIB, ..DiskParameters::default() });
    assert!(matches!(Model::new(&longer, &small), Err(Error::Parameters(_))));
    assert!(matches!(time_trace(&ssd(), u64::MAX, &[]), Err(Error::Parameters(_))));
    let none = Parameters::Disk(DiskParameters { heads: 0, ..DiskParameters::default() });
    assert!(matches!(Model::new(&longer, &none), Err(Error::Parameters(_))));
}

#[test]
fn the_bytes_are_those_of_the_device_below() {
    for parameters in [hdd(), ssd(), Parameters::Disk(DiskParameters { write_cache: 0, ..DiskParameters::default() })] {
        conforms(&Model::new(MemoryDevice::zeroed(300_001).unwrap(), &parameters).unwrap());
    }
}

fn events(len: u64) -> impl Strategy<Value = Vec<Event>> {
    let op = prop_oneof![4 => Just(Op::Read), 4 => Just(Op::Write), 1 => Just(Op::Discard), 1 => Just(Op::Flush)];
    let place = prop_oneof![0..len, (0..len / 4096).prop_map(|n| n * 4096), 0..len / 64];
    let size = prop_oneof![0..20_000_u64, Just(4096), Just(512), (0..1_u64 << 22)];
    let event = (op, place, size).prop_map(move |(op, offset, size)| match op {
        Op::Flush => FLUSH,
        _ => event(op, offset, size.min(len - offset)),
    });
    proptest::collection::vec(event, 1..60)
}

/// Disks of many layouts, small enough that requests reach their ends.
fn parameters() -> impl Strategy<Value = Parameters> {
    let disk = (1_u32..4, 1_u32..6, any::<bool>(), any::<bool>(), 0_u64..3, 1_u32..5, 12_u32..21).prop_map(
        |(heads, zones, read_on_arrival, as_submitted, cache, segments, segment)| {
            Parameters::Disk(DiskParameters {
                capacity: 0,
                heads,
                zones,
                read_on_arrival,
                order: if as_submitted { Order::AsSubmitted } else { Order::ShortestPositioning },
                write_cache: cache * 100_000,
                segments,
                segment: 1 << segment,
                ..DiskParameters::default()
            })
        },
    );
    let flash =
        (1_u32..4, 1_u32..4, 9_u32..17, 0_u64..3, 0_u64..3).prop_map(|(channels, dies, page, ahead, buffer)| {
            Parameters::Flash(FlashParameters {
                channels,
                dies,
                page: 1 << page,
                read_ahead: ahead * 50_000,
                write_buffer: buffer * 100_000,
                ..FlashParameters::default()
            })
        });
    prop_oneof![Just(hdd()), Just(ssd()), disk, flash]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every request takes its command time and, if it transfers bytes, at least the time of the interface; the counts
    /// are those of the events; and the parts of the time do not exceed the whole, as far as requests wait for the arm.
    #[test]
    fn time_goes_forward((parameters, events) in (parameters(), events(8 * MIB))) {
        let mut before = Report::default();
        for n in 1..=events.len() {
            let report = time_trace(&parameters, 8 * MIB, &events[..n]).unwrap();
            let Event { op, len, .. } = events[n - 1];
            let moved = if matches!(op, Op::Read | Op::Write) { len } else { 0 };
            let (command, rate) = match &parameters {
                Parameters::Disk(p) => (p.command, p.interface_rate.0),
                Parameters::Flash(p) => (p.command, p.interface_rate.0),
            };
            let least = Duration::from_nanos(moved * 1_000_000_000 / rate);
            prop_assert!(report.time >= before.time + command + least, "{:?}", events[n - 1]);
            prop_assert_eq!(report.reads, before.reads + u64::from(op == Op::Read));
            prop_assert_eq!(report.writes, before.writes + u64::from(op == Op::Write));
            prop_assert_eq!(report.bytes_read + report.bytes_written, before.bytes_read + before.bytes_written + moved);
            prop_assert!(report.seek_time >= before.seek_time && report.seeks >= before.seeks);
            before = report;
        }
        prop_assert!(before.buffered_reads <= before.reads);
    }

    /// A device takes the time of the trace of its requests, and a repetition takes the same.
    #[test]
    fn a_device_and_its_trace_agree((parameters, events) in (parameters(), events(MIB))) {
        let device = Model::new(MemoryDevice::zeroed(MIB).unwrap(), &parameters).unwrap();
        for e in &events {
            let mut bytes = vec![0; if matches!(e.op, Op::Read | Op::Write) { e.len as usize } else { 0 }];
            match e.op {
                Op::Read => device.read(e.offset, &mut bytes).unwrap(),
                Op::Write => device.write(e.offset, &bytes).unwrap(),
                Op::Discard => device.discard(e.offset, e.len).unwrap(),
                _ => device.flush().unwrap(),
            }
        }
        let report = device.report();
        prop_assert_eq!(report.time, device.clock());
        prop_assert_eq!(time_trace(&parameters, MIB, &events).unwrap(), report);
        prop_assert_eq!(time_trace(&parameters, MIB, &events).unwrap(), report);
    }

    /// A batch is no slower than its requests one by one, except for the cost of the nearest request not always being
    /// the best choice, and of the disk not reading ahead between requests: one that the buffer served moves the arm
    /// there and back.
    #[test]
    fn together_is_not_slower(
        (parameters, places) in (parameters(), proptest::collection::vec((0..2 * MIB - 4096, 0..4096_u64), 1..40))
    ) {
        let one_by_one: Vec<_> = places.iter().map(|(offset, len)| event(Op::Read, *offset, *len)).collect();
        let one_by_one = time_trace(&parameters, 2 * MIB, &one_by_one).unwrap();
        let buffered = match &parameters {
            Parameters::Disk(p) => 2 * (p.full_stroke + Duration::from_secs(60) / p.rpm) * one_by_one.buffered_reads as u32,
            Parameters::Flash(_) => Duration::ZERO,
        };
        let device = Model::new(MemoryDevice::zeroed(2 * MIB).unwrap(), &parameters).unwrap();
        let mut buffers: Vec<_> = places.iter().map(|(offset, len)| (*offset, vec![0; *len as usize])).collect();
        let mut reads: Vec<_> = buffers.iter_mut().map(|(offset, buf)| Read::new(*offset, buf)).collect();
        device.read_many(&mut reads);
        let most = one_by_one.time.mul_f64(1.2) + Duration::from_millis(20) + buffered;
        prop_assert!(device.clock() <= most, "{:?} {one_by_one:?}", device.clock());
    }
}

fn open(spec: &str, write: bool) -> Result<Arc<dyn BlockDevice>, Error> {
    let options = OpenOptions { write, ..OpenOptions::default() };
    open_with(spec, options, &[MODEL])
}

#[test]
fn a_model_is_opened_by_its_name() {
    for kind in ["hdd", "ssd"] {
        let model = open(&format!("model:{kind}:mem:1M"), true).unwrap();
        assert_eq!(model.geometry().len, MIB);
        assert!(open(&format!("model:{kind}:mem:1M"), false).unwrap().geometry().read_only);
        assert_eq!(open(&format!("model:ssd:model:{kind}:mem:1M"), true).unwrap().geometry().len, MIB);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "kind = disk\ncapacity = 1M\n").unwrap();
    let spec = |size| format!("model:{}:mem:{size}", file.path().display());
    assert_eq!(open(&spec("1M"), true).unwrap().geometry().len, MIB);
    assert!(matches!(open(&spec("2M"), true), Err(Error::Parameters(_))));
    assert!(matches!(open("model:hdd", true), Err(Error::Open { .. })));
    assert!(matches!(open("model:hdd:", true), Err(Error::Open { .. })));
    let missing = open("model:tape:mem:1M", true).map(drop).unwrap_err().to_string();
    assert!(missing.starts_with("cannot open the model 'tape': ") && missing.contains("hdd, ssd"), "{missing}");
    assert!(matches!(open("model:hdd:mem:lots", true), Err(Error::Size(_))));
}
