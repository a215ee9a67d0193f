//! One element of each dtype: how it lies in memory, how it adds and how it compares.
//!
//! Every function is branch-free and inlined, so that the loop in the parent module vectorises. f16 is added here with
//! integer and f32 operations since that is twice as fast as `half`'s conversions of slices, with their buffers and a
//! call for every eight elements, and the same on every processor.

/// What the kernels need to know of an element type.
pub(super) trait Element: Copy {
    /// The element's bytes: `[u8; N]`.
    type Bytes: Copy;

    /// The whole elements of a slice; a rest shorter than one is left out.
    fn split(bytes: &[u8]) -> &[Self::Bytes];
    /// As [`split`](Self::split), to write to.
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;
    fn add(self, other: Self) -> Self;
    /// Strictly less; false if either is NaN.
    fn less(self, other: Self) -> bool;
    fn is_nan(self) -> bool;
}

/// The methods of [`Element`] that are alike for all: `$size` bytes, read as a `$repr`.
macro_rules! memory {
    ($size:literal, $repr:ty, $from:expr, $into:expr) => {
        type Bytes = [u8; $size];

        #[inline(always)]
        fn split(bytes: &[u8]) -> &[Self::Bytes] {
            bytes.as_chunks().0
        }

        #[inline(always)]
        fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
            bytes.as_chunks_mut().0
        }

        #[inline(always)]
        fn load(bytes: Self::Bytes) -> Self {
            $from(<$repr>::from_ne_bytes(bytes))
        }

        #[inline(always)]
        fn store(self) -> Self::Bytes {
            <$repr>::to_ne_bytes($into(self))
        }
    };
}

macro_rules! integer {
    ($($type:ty, $size:literal;)*) => {$(
        impl Element for $type {
            memory!($size, $type, |value| value, |value| value);

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn less(self, other: Self) -> bool {
                self < other
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    )*};
}

integer! {
    u8, 1; u16, 2; u32, 4; u64, 8;
    i8, 1; i16, 2; i32, 4; i64, 8;
}

macro_rules! float {
    ($($type:ty, $size:literal;)*) => {$(
        impl Element for $type {
            memory!($size, $type, |value| value, |value| value);

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn less(self, other: Self) -> bool {
                self < other
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
        }
    )*};
}

float! { f32, 4; f64, 8; }

/// A truth value, 0 or 1 once loaded.
#[derive(Clone, Copy)]
pub(super) struct Bool(u8);

impl Element for Bool {
    memory!(1, u8, |byte| Self(u8::from(byte != 0)), |value: Self| value.0);

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        self.0 < other.0
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

/// A complex number of two f32, kept as the 64 bits that it is in memory: real part below.
#[derive(Clone, Copy)]
pub(super) struct Complex64(u64);

impl Complex64 {
    #[inline(always)]
    fn re(self) -> f32 {
        f32::from_bits(self.0 as u32)
    }

    #[inline(always)]
    fn im(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }
}

impl Element for Complex64 {
    memory!(8, u64, Self, |value: Self| value.0);

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let re = (self.re() + other.re()).to_bits();
        let im = (self.im() + other.im()).to_bits();
        Self(u64::from(im) << 32 | u64::from(re))
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        (self.re() < other.re()) | ((self.re() == other.re()) & (self.im() < other.im()))
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        self.re().is_nan() | self.im().is_nan()
    }
}

/// Sixteen-bit floats compare as integers: `key` orders them as their values are ordered, with −0 equal to +0.
#[inline(always)]
fn key(bits: u16) -> i16 {
    let sign = (bits as i16) >> 15;
    ((bits & 0x7fff) as i16 ^ sign) - sign
}

/// An IEEE 754 binary16.
#[derive(Clone, Copy)]
pub(super) struct Float16(u16);

impl Float16 {
    const INFINITY: u16 = 0x7c00;

    /// The value times 2⁻¹¹², exactly, if it is finite: its bits moved to where f32 has sign, exponent and mantissa,
    /// without the exponent biases' difference. So f16's subnormals are f32's, and need no case of their own.
    #[inline(always)]
    fn scaled(self) -> f32 {
        let extended = self.0 as i16 as i32 as u32;
        f32::from_bits((extended << 13) & 0x8fff_e000)
    }

    /// Undoes [`scaled`](Self::scaled), rounding to nearest, ties to even: for the sum of two scaled values.
    #[inline(always)]
    fn round(scaled: f32) -> Self {
        let bits = scaled.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Just under half of the last place kept, and one more if that place is odd: it carries exactly when rounding to
        // even goes up. A carry out of the mantissa steps the exponent, which is right too.
        let odd = (magnitude >> 13) & 1;
        let rounded = (magnitude + 0xfff + odd) >> 13;
        // Here f32 had room for greater values than f16 has.
        let finite_or_infinite = rounded.min(u32::from(Self::INFINITY));
        Self((finite_or_infinite | (bits >> 16) & 0x8000) as u16)
    }

    /// The value without its sign, as an integer: ordered as the values are, NaN above infinity.
    #[inline(always)]
    fn magnitude(self) -> i16 {
        (self.0 & 0x7fff) as i16
    }
}

impl Element for Float16 {
    memory!(2, u16, Self, |value: Self| value.0);

    /// Adds in f32 and rounds once. The scale takes no bit away: a sum below f32's normal range is a sum of multiples of
    /// f16's least subnormal, which f32 holds exactly.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let finite = Self::round(self.scaled() + other.scaled());
        // With an infinity or a NaN the sum is the operand of greater magnitude, but opposite infinities make a NaN.
        let greater = if self.magnitude() > other.magnitude() { self } else { other };
        let opposite = if self.0 ^ other.0 == 0x8000 { 0x0200 } else { 0 };
        let largest = (Self::INFINITY - 1) as i16;
        let special = (self.magnitude() > largest) | (other.magnitude() > largest);
        if special { Self(greater.0 | opposite) } else { finite }
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        !self.is_nan() & !other.is_nan() & (key(self.0) < key(other.0))
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        self.magnitude() > Self::INFINITY as i16
    }
}

/// A bfloat16: an f32 without its lower half.
#[derive(Clone, Copy)]
pub(super) struct BFloat16(u16);

impl BFloat16 {
    const INFINITY: u16 = 0x7f80;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest, ties to even: for the sum of two bfloat16.
    ///
    /// Such a sum, when it is a NaN, is an operand's or the processor's own, made quiet or not: its lower half is zero. So
    /// it rounds to itself, and needs no case of its own.
    #[inline(always)]
    fn round(sum: f32) -> Self {
        let bits = sum.to_bits();
        let odd = (bits >> 16) & 1;
        // As in `Float16`: carries exactly when rounding to even goes up.
        Self((bits.wrapping_add(0x7fff + odd) >> 16) as u16)
    }
}

impl Element for BFloat16 {
    memory!(2, u16, Self, |value: Self| value.0);

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self::round(self.to_f32() + other.to_f32())
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        !self.is_nan() & !other.is_nan() & (key(self.0) < key(other.0))
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        (self.0 & 0x7fff) as i16 > Self::INFINITY as i16
    }
}
