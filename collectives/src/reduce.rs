//! Reduction kernels: `mine = mine ⊕ received`, element by element, in place.
//!
//! Here lives the arithmetic alone, over byte slices of any alignment. No kernel knows a rank, a segment or a channel,
//! none allocates, blocks or fails; the engine picks one with [`kernel`] when an operation starts and calls it for every
//! block of whole elements that arrives.
//!
//! What every kernel keeps to:
//! - bool: sum and max are OR, min is AND; any byte other than 0 is true; results are 0 or 1.
//! - Integers wrap.
//! - f16 and bf16 add in f32 and round to nearest even after every addition. Bits never depend on where in a slice an
//!   element lies, nor on the processor, except a NaN's sign and payload.
//! - complex64 adds component by component; it compares by the real part, then by the imaginary one.
//! - max and min compare and select: a tie keeps `mine`, and so do +0 and −0, which are equal.
//! - What a NaN does in max and min is [`NanRule`]'s matter. There it is copied, never computed: its bits survive.
//!
//! All of it is plain safe Rust that the compiler vectorises; `pulp` compiles each loop a second time for AVX2 and picks
//! at run time, since the x86-64 baseline lacks half of the comparisons that integer max and min need.

#[cfg(target_endian = "big")]
compile_error!(
    "nuvec-collectives reduces data as it comes from the wire, which is little-endian: big-endian targets are not supported"
);

mod element;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;

use pulp::{Arch, Simd, WithSimd};

use crate::dtype::DType;
use element::{BFloat16, Bool, Complex64, Element, Float16};

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduction {
    /// Addition; OR for bool.
    Sum = 1,
    /// The greater; OR for bool.
    Max = 2,
    /// The lesser; AND for bool.
    Min = 3,
}

impl Reduction {
    /// Every reduction, in the order of [`code`](Self::code).
    pub const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Min];

    /// `sum`, `max` or `min`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
        }
    }

    /// The number that stands for it in operation headers: 1 to 3, fixed for ever. 0 is none's.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reduction whose [`code`](Self::code) this is; `None` for 0 and for codes that this version does not know.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reduction| reduction.code() == code)
    }
}

/// Writes [`Reduction::name`].
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a NaN does in max and min. Sums do not ask: there a NaN makes a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NanRule {
    /// The native wire's: if either is NaN, so is the result. It is `mine` if that is NaN, else `received`. A complex64 is
    /// NaN if any of its components is.
    Propagate,
    /// The `mlx` wire's, which is what MLX 0.32's ring computes (`MaxOp` and `MinOp` in `mlx/distributed/reduction_ops.h`):
    /// max is `mine < received ? received : mine` and min is `received < mine ? received : mine`. So a received NaN is
    /// dropped and a local one stays.
    Mlx,
}

/// A reduction over one dtype: `mine = mine ⊕ received`.
///
/// Both slices hold elements in the machine's byte order, at any alignment, and have the same length in bytes, a multiple
/// of the dtype's size. If they do not, which a debug build asserts, only whole elements that both slices have are reduced
/// and every other byte of `mine` stays as it is. It never blocks; while it computes, a microsecond goes by for every 5 KiB
/// (f16 sums) to 30 KiB on current processors.
pub type Kernel = fn(mine: &mut [u8], received: &[u8]);

/// Reduces `received` into `mine` with [`kernel`]`(dtype, reduction, rule)`; see [`Kernel`] for what the slices must be.
///
/// ```
/// use nuvec_collectives::DType;
/// use nuvec_collectives::Reduction;
/// use nuvec_collectives::reduce::{NanRule, reduce};
///
/// let mut mine = [250, 1];
/// reduce(DType::U8, Reduction::Sum, NanRule::Propagate, &mut mine, &[10, 2]);
/// assert_eq!(mine, [4, 3]);
/// ```
pub fn reduce(dtype: DType, reduction: Reduction, rule: NanRule, mine: &mut [u8], received: &[u8]) {
    kernel(dtype, reduction, rule)(mine, received);
}

/// The kernel for a dtype, a reduction and a rule, so that a loop over blocks selects once.
pub fn kernel(dtype: DType, reduction: Reduction, rule: NanRule) -> Kernel {
    match dtype {
        DType::Bool => kernel_of::<Bool>(reduction, rule),
        DType::U8 => kernel_of::<u8>(reduction, rule),
        DType::U16 => kernel_of::<u16>(reduction, rule),
        DType::U32 => kernel_of::<u32>(reduction, rule),
        DType::U64 => kernel_of::<u64>(reduction, rule),
        DType::I8 => kernel_of::<i8>(reduction, rule),
        DType::I16 => kernel_of::<i16>(reduction, rule),
        DType::I32 => kernel_of::<i32>(reduction, rule),
        DType::I64 => kernel_of::<i64>(reduction, rule),
        DType::F16 => kernel_of::<Float16>(reduction, rule),
        DType::BF16 => kernel_of::<BFloat16>(reduction, rule),
        DType::F32 => kernel_of::<f32>(reduction, rule),
        DType::F64 => kernel_of::<f64>(reduction, rule),
        DType::Complex64 if reduction == Reduction::Sum => add_complex,
        DType::Complex64 => kernel_of::<Complex64>(reduction, rule),
    }
}

fn kernel_of<T: Element>(reduction: Reduction, rule: NanRule) -> Kernel {
    match (reduction, rule) {
        (Reduction::Sum, _) => run::<T, Add>,
        (Reduction::Max, NanRule::Propagate) => run::<T, Max<true>>,
        (Reduction::Min, NanRule::Propagate) => run::<T, Min<true>>,
        (Reduction::Max, NanRule::Mlx) => run::<T, Max<false>>,
        (Reduction::Min, NanRule::Mlx) => run::<T, Min<false>>,
    }
}

fn run<T: Element, C: Combine>(mine: &mut [u8], received: &[u8]) {
    debug_assert_whole(mine, received, size_of::<T::Bytes>());
    run_on::<T, C>(Arch::new(), mine, received);
}

/// Components add one by one, so the pairs need not be told apart: that is faster by half.
fn add_complex(mine: &mut [u8], received: &[u8]) {
    debug_assert_whole(mine, received, DType::Complex64.size());
    let (mine, received) = (Complex64::split_mut(mine), Complex64::split(received));
    run_on::<f32, Add>(Arch::new(), mine.as_flattened_mut(), received.as_flattened());
}

fn debug_assert_whole(mine: &[u8], received: &[u8], size: usize) {
    debug_assert_eq!(mine.len(), received.len(), "a reduction's slices differ in length");
    debug_assert_eq!(mine.len() % size, 0, "a reduction got part of an element of {size} bytes");
}

fn run_on<T: Element, C: Combine>(arch: Arch, mine: &mut [u8], received: &[u8]) {
    arch.dispatch(ElementWise::<T, C> { mine, received, combine: PhantomData });
}

struct ElementWise<'a, T, C> {
    mine: &'a mut [u8],
    received: &'a [u8],
    combine: PhantomData<(T, C)>,
}

impl<T: Element, C: Combine> WithSimd for ElementWise<'_, T, C> {
    type Output = ();

    // Everything down to one element's arithmetic must be inlined: what is not is compiled for the baseline target.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (mine, received) in T::split_mut(self.mine).iter_mut().zip(T::split(self.received)) {
            *mine = C::combine(T::load(*mine), T::load(*received)).store();
        }
    }
}

trait Combine {
    fn combine<T: Element>(mine: T, received: T) -> T;
}

struct Add;

impl Combine for Add {
    #[inline(always)]
    fn combine<T: Element>(mine: T, received: T) -> T {
        mine.add(received)
    }
}

struct Max<const PROPAGATE: bool>;

impl<const PROPAGATE: bool> Combine for Max<PROPAGATE> {
    #[inline(always)]
    fn combine<T: Element>(mine: T, received: T) -> T {
        replace_if::<T, PROPAGATE>(mine.less(received), mine, received)
    }
}

struct Min<const PROPAGATE: bool>;

impl<const PROPAGATE: bool> Combine for Min<PROPAGATE> {
    #[inline(always)]
    fn combine<T: Element>(mine: T, received: T) -> T {
        replace_if::<T, PROPAGATE>(received.less(mine), mine, received)
    }
}

#[inline(always)]
fn replace_if<T: Element, const PROPAGATE: bool>(better: bool, mine: T, received: T) -> T {
    // No short circuit: a branch per element would keep the loop from being vectorised.
    let replace = if PROPAGATE { !mine.is_nan() & (better | received.is_nan()) } else { better };
    if replace { received } else { mine }
}
