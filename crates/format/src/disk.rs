/// The location of a field in a disk structure: the row of its table in FORMAT.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldAt {
    /// The field's name as in the kernel's format documentation.
    pub name: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// Declares a disk structure: each field with its offset, checked at compile time against the layout.
///
/// The type is plain bytes (`zerocopy`): it can be read from any slice that is long enough and has no alignment.
macro_rules! disk_struct {
    ($(#[$meta:meta])* pub struct $name:ident [$size:literal] {
        $( $(#[$fmeta:meta])* $off:literal $field:ident : $ty:ty, )*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq,
                 zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $field) == $off); )*
        };

        impl $name {
            /// Size on the device in bytes.
            pub const SIZE: usize = $size;
            /// The fields in order, as FORMAT.md lists them.
            pub const FIELDS: &'static [$crate::FieldAt] = &[ $( $crate::FieldAt {
                name: stringify!($field), offset: $off, size: core::mem::size_of::<$ty>(),
            }, )* ];
        }
    };
}
