//! Tests that every instrument passes on the guarantees of the underlying device.

use blockdev::MemoryDevice;
use extant_simdev::{Faulty, FlashParameters, Model, PageCache, Parameters, Record, Trace};
use testkit::device::forwards_groups;

#[test]
fn groups_and_fresh_writes_are_passed_on() {
    forwards_groups(Trace::new);
    forwards_groups(Record::in_memory);
    forwards_groups(|below| Faulty::new(below, Vec::new()));
    forwards_groups(|below| Model::new(below, &Parameters::Flash(FlashParameters::default())).unwrap());
}

#[test]
fn a_page_cache_is_a_device() {
    testkit::device::conforms(&PageCache::new(MemoryDevice::zeroed(300_001).unwrap()));
}
