//! The layers of a volume: each is a type that owns the one beneath it and dereferences to it. A layer calls down by
//! name, and cannot call up. ARCHITECTURE.md names them all, [`Disk`](crate::Disk) the lowest and
//! [`Volume`](crate::Volume) the top.

/// Says that one layer stands on another, which it owns in a field.
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
