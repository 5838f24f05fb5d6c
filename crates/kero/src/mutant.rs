//! Defects that the tests inject into the layer, to check that the explorer finds them.

/// A defect.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// No defect.
    #[default]
    Identity,
    /// A write to a block that is not in the log is made in place.
    ColdInPlace,
    /// A block that was written home is in no record.
    HomeUnrecorded,
    /// Opening does not verify the blocks that the last group lists as written home.
    HomeUnverified,
    /// Opening accepts headers without a check of their checksum.
    HeaderUnchecked,
    /// Opening accepts any record with the right sequence number as the next one.
    OldEnd,
    /// Slots are reused before the group that frees them is durable.
    ReuseEarly,
    /// Entries leave the log before their blocks are at home.
    TailBeforeHome,
    /// The superblocks are written together with the checkpoint that they name.
    CheckpointUnwritten,
    /// A discard is in no record.
    DiscardUnrecorded,
    /// A block is written home after a newer one was written there.
    LateHome,
    /// A block that the last group lists as written home is overwritten in place.
    FreshOverLast,
    /// A group that opening rejected is not voided before other writes.
    RejectedNotVoided,
    /// A gap is possible before the first record after opening.
    GapAtOnce,
    /// Content that opening read is assumed to be durable.
    TrustRead,
    /// Another instance that writes to the device is not detected.
    NoInstanceCheck,
}
