//! The recipe of a kind of damage: a function that writes it.

use crate::error::Result;
use crate::volume::Volume;

/// The function that writes a kind of damage; returns `Unfit` where the volume lacks a structure for it.
pub(crate) type Recipe = fn(&mut Volume<'_>) -> Result<()>;

/// A row of the ffsck paper's Table II.
#[derive(Debug, Clone, Copy)]
pub struct Corruption {
    /// The name used here: structure and field.
    pub name: &'static str,
    /// The name of the field in the paper.
    pub field: &'static str,
    /// The damage that is written, as a sentence.
    pub does: &'static str,
    pub(crate) recipe: Recipe,
}
