//! Every instrument passes on what the device below promises.

use extant_simdev::{Faulty, FlashParameters, Model, Parameters, Record, Trace};
use testkit::device::forwards_groups;

#[test]
fn groups_and_fresh_writes_are_passed_on() {
    forwards_groups(Trace::new);
    forwards_groups(Record::in_memory);
    forwards_groups(|below| Faulty::new(below, Vec::new()));
    forwards_groups(|below| Model::new(below, &Parameters::Flash(FlashParameters::default())).unwrap());
}
