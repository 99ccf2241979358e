//! Enums that know their variants.

/// Defines an enum without data and its constant `ALL`. A list of all variants that is written by
/// hand compiles without a new variant; this one cannot lack it.
#[macro_export]
macro_rules! closed_enum {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident {
        $( $(#[$variant_meta:meta])* $variant:ident ),+ $(,)?
    }) => {
        $(#[$meta])*
        $visibility enum $name {
            $( $(#[$variant_meta])* $variant, )+
        }

        impl $name {
            /// Every variant, in the order of the enum.
            #[allow(unreachable_pub)]
            pub const ALL: [Self; [$( stringify!($variant) ),+].len()] = [$( Self::$variant ),+];
        }
    };
}

#[cfg(test)]
mod tests {
    crate::closed_enum! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Colour {
            Red,
            /// A variant may have attributes.
            Green,
        }
    }

    #[test]
    fn all_has_every_variant_in_order() {
        assert_eq!(Colour::ALL, [Colour::Red, Colour::Green]);
    }
}
