//! Replaces the module of the program that shows progress.

#[derive(Debug)]
pub(crate) struct Bar;

impl Bar {
    pub(crate) fn hidden() -> Self {
        Self
    }

    pub(crate) fn advance(&self, _by: u64) {}

    pub(crate) fn finish(&self) {}
}
