//! The layers of a volume: each is a type that owns the one beneath it and dereferences to it. A layer calls lower ones
//! directly, and cannot call higher ones. ARCHITECTURE.md lists all of them, from [`Disk`](crate::Disk), the lowest, to
//! [`Volume`](crate::Volume), the top.

/// Implements the dereference from a layer to the one beneath it, which it owns in a field.
macro_rules! stands_on {
    ($upper:ident, $field:ident: $lower:ty) => {
        impl std::ops::Deref for $upper {
            type Target = $lower;

            #[inline]
            fn deref(&self) -> &Self::Target {
                &self.$field
            }
        }
    };
}
pub(crate) use stands_on;
