//! The defects that the tests put into the layer, to see that the explorer finds them.

/// One thing that is done wrong.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// Nothing.
    #[default]
    Identity,
    /// A write to a block that is not in the log goes home in place.
    ColdInPlace,
    /// A block that was written in its own place stands in no record.
    HomeUnrecorded,
    /// Opening does not verify what the last group calls home.
    HomeUnverified,
    /// Opening believes headers without a look at their checksum.
    HeaderUnchecked,
    /// Opening takes any record with the right sequence for the next one.
    OldEnd,
    /// Slots are reused before the group that leaves them is durable.
    ReuseEarly,
    /// Entries leave the log before their blocks are at home.
    TailBeforeHome,
    /// The superblocks are written together with the checkpoint that they name.
    CheckpointUnwritten,
    /// A discard stands in no record.
    DiscardUnrecorded,
    /// A block goes home after a newer one was written there.
    LateHome,
    /// A block that the last group calls home is written over in place.
    FreshOverLast,
    /// A group that opening refused is not made void before other writes.
    RefusedStays,
    /// Content that opening read counts as durable.
    BelievesMemory,
    /// It is not looked whether another opening writes to the device.
    Unlooked,
}
