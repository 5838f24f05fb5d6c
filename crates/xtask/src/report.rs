//! The report of a check.

/// The findings and notes of a check.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Sentences that fail the run.
    pub(crate) findings: Vec<String>,
    /// Sentences that do not.
    pub(crate) notes: Vec<String>,
}
