//! The two shapes that nearly every part of the protocol has: a record, which is its fields one after another, and an
//! enumeration, which is a number. Both directions come from one list, so they cannot disagree.

/// A struct whose wire form is that of its fields in order.
macro_rules! record {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::jute::Wire for $name {
            const MIN_BYTES: usize = 0 $(+ <$type as $crate::jute::Wire>::MIN_BYTES)*;

            fn read(reader: &mut $crate::jute::Reader, _: &'static str) -> Result<Self, $crate::jute::DecodeError> {
                Ok(Self {
                    $($field: $crate::jute::Wire::read(reader, concat!(stringify!($name), ".", stringify!($field)))?,)*
                })
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                $($crate::jute::Wire::write(&self.$field, writer);)*
            }
        }
    };
}

/// A closed set of numbers with names.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident ($what:literal) { $($(#[$variant_meta:meta])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// All of them, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The one with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl From<$name> for i32 {
            fn from(value: $name) -> i32 {
                value.number()
            }
        }

        impl TryFrom<i32> for $name {
            type Error = $crate::jute::UnknownNumber;

            fn try_from(number: i32) -> Result<Self, $crate::jute::UnknownNumber> {
                Self::from_number(number).ok_or($crate::jute::UnknownNumber { what: $what, number })
            }
        }

        impl $crate::jute::Wire for $name {
            const MIN_BYTES: usize = 4;

            fn read(reader: &mut $crate::jute::Reader, field: &'static str) -> Result<Self, $crate::jute::DecodeError> {
                let number = reader.int(field)?;
                Self::try_from(number).map_err(|unknown| $crate::jute::DecodeError::Unknown { field, unknown })
            }

            fn write(&self, writer: &mut $crate::jute::Writer<'_>) {
                writer.int(self.number());
            }
        }
    };
}
