//! What a kind of damage is: a function that writes it.

use crate::error::Result;
use crate::volume::Volume;

/// How a kind is written: `Unfit` where the volume lacks what it takes.
pub(crate) type Recipe = fn(&mut Volume<'_>) -> Result<()>;

/// A row of the ffsck paper's Table II.
#[derive(Debug, Clone, Copy)]
pub struct Corruption {
    /// What it is called here: structure and field.
    pub name: &'static str,
    /// The field as the paper calls it.
    pub field: &'static str,
    /// What is written, as a sentence.
    pub does: &'static str,
    pub(crate) recipe: Recipe,
}
