//! Data that depends on seed, rank and position, and the arithmetic of the local reference, for all fourteen dtypes.

use std::fmt::Debug;

use nuvec_core::{Complex64, Element, bf16, f16};

/// A number from a seed and what it is for: SplitMix64's finaliser, as in its authors' `splitmix64.c`.
pub fn hash(seed: u64, rank: usize, position: usize) -> u64 {
    let mut x = seed
        .wrapping_add((rank as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The FNV-1a hash of `words`, taken eight bytes at a time.
pub fn digest(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ (mixed >> 32)
    })
}

/// An element type that can be checked.
pub trait Sample: Element + Debug {
    /// A value of which up to `ranks` can be added in any order with the same exact result: integers that wrap, small
    /// whole numbers as floats, mostly false booleans.
    fn exact(random: u64, ranks: usize) -> Self;
    /// A value whose sums depend on their order, where the type has such.
    fn rough(random: u64) -> Self;
    /// The value's bits.
    fn bits(self) -> u64;
    /// The value of these bits.
    fn from_bits(bits: u64) -> Self;
    /// The sum; of booleans, whether any is true.
    fn sum(self, other: Self) -> Self;
    /// The larger; complex numbers compare by their real, then by their imaginary parts.
    fn max(self, other: Self) -> Self;
    /// The smaller.
    fn min(self, other: Self) -> Self;

    /// Another value.
    fn spoiled(self) -> Self {
        Self::from_bits(self.bits() ^ 1)
    }

    /// The values' bytes in memory order, which is little-endian here as on the wire.
    fn to_bytes(values: &[Self]) -> Vec<u8> {
        let width = Self::DTYPE.size();
        values.iter().flat_map(|value| value.bits().to_le_bytes().into_iter().take(width)).collect()
    }

    /// The values of these bytes.
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            Self::from_bits(u64::from_le_bytes(word))
        };
        bytes.chunks(Self::DTYPE.size()).map(word).collect()
    }
}

macro_rules! integers {
    ($($type:ty as $unsigned:ty),*) => {$(
        impl Sample for $type {
            fn exact(random: u64, _ranks: usize) -> Self {
                random as Self
            }
            fn rough(random: u64) -> Self {
                random as Self
            }
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
        }
    )*};
}

integers!(u8 as u8, u16 as u16, u32 as u32, u64 as u64, i8 as u8, i16 as u16, i32 as u32, i64 as u64);

/// A whole number from −limit to limit, where `ranks` of them add up to at most `exact` in size.
fn whole(random: u64, ranks: usize, exact: u64) -> i32 {
    let limit = (exact / ranks.max(1) as u64).clamp(1, 1000);
    (random % (2 * limit + 1)) as i32 - limit as i32
}

/// From −1 to 1.
fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

macro_rules! floats {
    ($($type:ident, $bits:ty, $exact:expr, $from:expr, $sum:expr;)*) => {$(
        impl Sample for $type {
            fn exact(random: u64, ranks: usize) -> Self {
                $from(f64::from(whole(random, ranks, $exact)))
            }
            fn rough(random: u64) -> Self {
                $from(fraction(random))
            }
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
            fn from_bits(bits: u64) -> Self {
                $type::from_bits(bits as $bits)
            }
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }
            fn max(self, other: Self) -> Self {
                if self < other { other } else { self }
            }
            fn min(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
        }
    )*};
}

// Every whole number up to the third column is exact: 2 to the power of the type's significant bits.
floats! {
    f16, u16, 1 << 11, f16::from_f64, |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32());
    bf16, u16, 1 << 8, bf16::from_f64, |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32());
    f32, u32, 1 << 24, |x: f64| x as f32, |a, b| a + b;
    f64, u64, 1 << 53, |x: f64| x, |a, b| a + b;
}

impl Sample for bool {
    fn exact(random: u64, ranks: usize) -> Self {
        random.is_multiple_of(ranks as u64 + 1)
    }
    fn rough(random: u64) -> Self {
        random & 1 == 1
    }
    fn bits(self) -> u64 {
        u64::from(self)
    }
    fn from_bits(bits: u64) -> Self {
        bits & 0xff != 0
    }
    fn sum(self, other: Self) -> Self {
        self || other
    }
    fn max(self, other: Self) -> Self {
        self || other
    }
    fn min(self, other: Self) -> Self {
        self && other
    }
}

impl Sample for Complex64 {
    fn exact(random: u64, ranks: usize) -> Self {
        // Few real parts, so that imaginary ones decide now and then.
        let re = (random >> 40) % 5;
        Self::new(re as f32 - 2.0, whole(random, ranks, 1 << 24) as f32)
    }
    fn rough(random: u64) -> Self {
        Self::new(fraction(random) as f32, fraction(random.rotate_left(32)) as f32)
    }
    fn bits(self) -> u64 {
        u64::from(self.re.to_bits()) | u64::from(self.im.to_bits()) << 32
    }
    fn from_bits(bits: u64) -> Self {
        Self::new(f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32))
    }
    fn sum(self, other: Self) -> Self {
        self + other
    }
    fn max(self, other: Self) -> Self {
        if below(self, other) { other } else { self }
    }
    fn min(self, other: Self) -> Self {
        if below(other, self) { other } else { self }
    }
}

fn below(a: Complex64, b: Complex64) -> bool {
    a.re < b.re || (a.re == b.re && a.im < b.im)
}

/// Calls `$f::<T>($args)` for the element type of each of the fourteen dtypes, in their usual order.
#[macro_export]
macro_rules! for_each_dtype {
    ($f:ident ( $($args:expr),* $(,)? )) => {{
        $f::<bool>($($args),*);
        $f::<u8>($($args),*);
        $f::<u16>($($args),*);
        $f::<u32>($($args),*);
        $f::<u64>($($args),*);
        $f::<i8>($($args),*);
        $f::<i16>($($args),*);
        $f::<i32>($($args),*);
        $f::<i64>($($args),*);
        $f::<nuvec_core::f16>($($args),*);
        $f::<nuvec_core::bf16>($($args),*);
        $f::<f32>($($args),*);
        $f::<f64>($($args),*);
        $f::<nuvec_core::Complex64>($($args),*);
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: usize = 8;

    /// That sums of exact values are the same in every order, bit for bit, and that bits and bytes come back.
    fn check<T: Sample>(seen: &mut usize) {
        for position in 0..500 {
            let values: Vec<T> = (0..RANKS).map(|rank| T::exact(hash(1, rank, position), RANKS)).collect();
            let forward = values.iter().copied().reduce(T::sum).unwrap();
            let backward = values.iter().rev().copied().reduce(T::sum).unwrap();
            let pairs = values.chunks(2).map(|pair| pair[0].sum(pair[1])).reduce(T::sum).unwrap();
            assert_eq!((forward.bits(), forward.bits()), (backward.bits(), pairs.bits()), "{values:?}");
            let back = T::from_bytes(&T::to_bytes(&values));
            assert_eq!(
                back.iter().map(|v| v.bits()).collect::<Vec<_>>(),
                values.iter().map(|v| v.bits()).collect::<Vec<_>>()
            );
            assert_ne!(forward.spoiled().bits(), forward.bits());
        }
        assert_eq!(T::to_bytes(&[T::exact(5, 2); 3]).len(), 3 * T::DTYPE.size());
        *seen += 1;
    }

    #[test]
    fn exact_values_add_up_to_the_same_bits_in_every_order() {
        let mut seen = 0;
        for_each_dtype!(check(&mut seen));
        assert_eq!(seen, 14);
    }

    #[test]
    fn rough_floats_show_the_order_of_their_sum() {
        let differ = (0..200).filter(|&position| {
            let values: Vec<f32> = (0..RANKS).map(|rank| f32::rough(hash(1, rank, position))).collect();
            values.iter().copied().reduce(f32::sum) != values.iter().rev().copied().reduce(f32::sum)
        });
        assert!(differ.count() > 20);
    }

    #[test]
    fn data_depends_on_rank_and_position_and_digests_on_every_word() {
        let all: std::collections::BTreeSet<_> =
            (0..8).flat_map(|rank| (0..1000).map(move |position| hash(3, rank, position))).collect();
        assert_eq!(all.len(), 8000);
        let words: Vec<u64> = (0..100).collect();
        for i in 0..100 {
            let mut other = words.clone();
            other[i] ^= 1 << 63;
            assert_ne!(digest(other), digest(words.clone()));
        }
        assert_ne!(digest([1, 2]), digest([2, 1]));
        assert_ne!(digest([0]), digest([0, 0]));
    }

    #[test]
    fn complex_numbers_compare_by_real_part_then_by_imaginary() {
        let c = Complex64::new;
        assert_eq!(c(1.0, 5.0).max(c(2.0, 0.0)), c(2.0, 0.0));
        assert_eq!(c(1.0, 5.0).max(c(1.0, 6.0)), c(1.0, 6.0));
        assert_eq!(c(1.0, 5.0).min(c(1.0, 6.0)), c(1.0, 5.0));
    }
}
