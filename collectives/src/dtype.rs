//! The element types that a collective can reduce, with their sizes, names and wire codes.
//!
//! Nothing here touches data: [`reduce`](crate::reduce) computes, and operation headers carry [`DType::code`].

use std::fmt;

/// The type of an array's elements: MLX's fourteen dtypes.
///
/// In memory a value lies in the machine's byte order, which is little-endian as on the wire: this crate refuses to
/// build for other targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// One byte; every value other than 0 means true.
    Bool = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Unsigned, 16 bits.
    U16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Unsigned, 64 bits.
    U64 = 5,
    /// Two's complement, 8 bits.
    I8 = 6,
    /// Two's complement, 16 bits.
    I16 = 7,
    /// Two's complement, 32 bits.
    I32 = 8,
    /// Two's complement, 64 bits.
    I64 = 9,
    /// IEEE 754 binary16.
    F16 = 10,
    /// The upper half of an [`F32`](Self::F32).
    BF16 = 11,
    /// IEEE 754 binary32.
    F32 = 12,
    /// IEEE 754 binary64.
    F64 = 13,
    /// Two [`F32`](Self::F32): the real part, then the imaginary one.
    Complex64 = 14,
}

impl DType {
    /// Every dtype, in the order of [`code`](Self::code).
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::Complex64,
    ];

    /// The size of one element in bytes: 1, 2, 4 or 8.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Complex64 => 8,
        }
    }

    /// The name that MLX gives it, such as `bfloat16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::Complex64 => "complex64",
        }
    }

    /// The number that stands for it in operation headers: 1 to 14, fixed for ever. 0 is no dtype's, so that a header
    /// can say "raw bytes" with it.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The dtype whose [`code`](Self::code) this is; `None` for 0 and for codes that this version does not know.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == code)
    }
}

/// Writes [`DType::name`].
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_sizes_and_names_are_the_ones_that_peers_and_mlx_know() {
        let table = DType::ALL.map(|dtype| (dtype.code(), dtype.size(), dtype.name()));
        let expected = [
            (1, 1, "bool"),
            (2, 1, "uint8"),
            (3, 2, "uint16"),
            (4, 4, "uint32"),
            (5, 8, "uint64"),
            (6, 1, "int8"),
            (7, 2, "int16"),
            (8, 4, "int32"),
            (9, 8, "int64"),
            (10, 2, "float16"),
            (11, 2, "bfloat16"),
            (12, 4, "float32"),
            (13, 8, "float64"),
            (14, 8, "complex64"),
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn a_code_names_its_dtype_and_every_other_code_none() {
        for code in 0..=u8::MAX {
            let known = DType::from_code(code);
            assert_eq!(known.is_some(), (1..=14).contains(&code), "code {code}");
            assert!(known.is_none_or(|dtype| dtype.code() == code), "code {code}");
        }
    }

    #[test]
    fn display_is_the_name_and_obeys_a_width() {
        assert_eq!(format!("{}|{:>10}", DType::F32, DType::BF16), "float32|  bfloat16");
    }
}
