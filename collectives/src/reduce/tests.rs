//! The kernels against a plain reference that shares no code with them, and a table of edge values.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

const RULES: [NanRule; 2] = [NanRule::Propagate, NanRule::Mlx];

fn every_kernel() -> impl Iterator<Item = (DType, Reduction, NanRule)> {
    DType::ALL.into_iter().flat_map(|dtype| {
        Reduction::ALL.into_iter().flat_map(move |reduction| RULES.map(move |rule| (dtype, reduction, rule)))
    })
}

/// Reduces one element the slow way and writes the result to `out`.
fn reference(dtype: DType, reduction: Reduction, rule: NanRule, mine: &[u8], received: &[u8], out: &mut [u8]) {
    macro_rules! number {
        ($type:ty, $add:expr, $nan:expr) => {{
            let a = <$type>::from_ne_bytes(mine.try_into().unwrap());
            let b = <$type>::from_ne_bytes(received.try_into().unwrap());
            let nan: fn($type) -> bool = $nan;
            let add: fn($type, $type) -> $type = $add;
            if reduction == Reduction::Sum {
                return out.copy_from_slice(&add(a, b).to_ne_bytes());
            }
            choose(reduction, rule, (nan(a), nan(b)), a < b, b < a)
        }};
    }
    let replace = match dtype {
        DType::Bool => {
            let (a, b) = (mine[0] != 0, received[0] != 0);
            out[0] = u8::from(if reduction == Reduction::Min { a && b } else { a || b });
            return;
        }
        DType::U8 => number!(u8, u8::wrapping_add, |_| false),
        DType::U16 => number!(u16, u16::wrapping_add, |_| false),
        DType::U32 => number!(u32, u32::wrapping_add, |_| false),
        DType::U64 => number!(u64, u64::wrapping_add, |_| false),
        DType::I8 => number!(i8, i8::wrapping_add, |_| false),
        DType::I16 => number!(i16, i16::wrapping_add, |_| false),
        DType::I32 => number!(i32, i32::wrapping_add, |_| false),
        DType::I64 => number!(i64, i64::wrapping_add, |_| false),
        DType::F16 => number!(f16, |a, b| f16::from_f32(a.to_f32() + b.to_f32()), f16::is_nan),
        DType::BF16 => number!(bf16, |a, b| bf16::from_f32(a.to_f32() + b.to_f32()), bf16::is_nan),
        DType::F32 => number!(f32, |a, b| a + b, f32::is_nan),
        DType::F64 => number!(f64, |a, b| a + b, f64::is_nan),
        DType::Complex64 => {
            let component = |bytes: &[u8], at: usize| f32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let a = [component(mine, 0), component(mine, 4)];
            let b = [component(received, 0), component(received, 4)];
            if reduction == Reduction::Sum {
                out[..4].copy_from_slice(&(a[0] + b[0]).to_ne_bytes());
                out[4..].copy_from_slice(&(a[1] + b[1]).to_ne_bytes());
                return;
            }
            let less = |a: [f32; 2], b: [f32; 2]| if a[0] == b[0] { a[1] < b[1] } else { a[0] < b[0] };
            let nans = (a.iter().any(|x| x.is_nan()), b.iter().any(|x| x.is_nan()));
            choose(reduction, rule, nans, less(a, b), less(b, a))
        }
    };
    out.copy_from_slice(if replace { received } else { mine });
}

/// Whether max or min takes the received element.
fn choose(reduction: Reduction, rule: NanRule, nans: (bool, bool), less: bool, greater: bool) -> bool {
    match (rule, nans) {
        (NanRule::Propagate, (true, _)) => false,
        (NanRule::Propagate, (false, true)) => true,
        _ if reduction == Reduction::Max => less,
        _ => greater,
    }
}

/// Whether these bytes are a NaN whose bits nothing defines: a sum's, component by component.
fn undefined_nan(dtype: DType, component: &[u8]) -> bool {
    match dtype {
        DType::F16 => f16::from_ne_bytes(component.try_into().unwrap()).is_nan(),
        DType::BF16 => bf16::from_ne_bytes(component.try_into().unwrap()).is_nan(),
        DType::F32 | DType::Complex64 => f32::from_ne_bytes(component.try_into().unwrap()).is_nan(),
        DType::F64 => f64::from_ne_bytes(component.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

/// Equal bits, but a sum's NaN equals any other.
fn same(dtype: DType, reduction: Reduction, got: &[u8], expected: &[u8]) -> bool {
    let width = if dtype == DType::Complex64 { 4 } else { dtype.size() };
    let nan = |component| reduction == Reduction::Sum && undefined_nan(dtype, component);
    got.len() == expected.len()
        && got
            .chunks(width)
            .zip(expected.chunks(width))
            .all(|(got, expected)| if nan(expected) { undefined_nan(dtype, got) } else { got == expected })
}

fn assert_as_reference(
    (dtype, reduction, rule): (DType, Reduction, NanRule),
    mine: &[u8],
    received: &[u8],
    got: &[u8],
    what: &str,
) {
    let size = dtype.size();
    let expected = &mut [0; 8][..size];
    for (at, ((mine, received), got)) in mine.chunks(size).zip(received.chunks(size)).zip(got.chunks(size)).enumerate()
    {
        reference(dtype, reduction, rule, mine, received, expected);
        assert!(
            got == expected || same(dtype, reduction, got, expected),
            "{dtype} {reduction} {rule:?} {what}: element {at}, {mine:02x?} and {received:02x?}, \
             gave {got:02x?}, not {expected:02x?}"
        );
    }
}

/// `bytes` at an address that is `misalignment` more than a multiple of 8, within a buffer to keep.
struct Misaligned(Vec<u8>, std::ops::Range<usize>);

impl Misaligned {
    fn new(bytes: &[u8], misalignment: usize) -> Self {
        let mut buffer = vec![0; bytes.len() + 16];
        let begin = buffer.as_ptr().align_offset(8) + misalignment;
        buffer[begin..begin + bytes.len()].copy_from_slice(bytes);
        Self(buffer, begin..begin + bytes.len())
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.0[self.1.clone()]
    }
}

/// Bytes among which every dtype finds zeros, infinities, NaNs, subnormals and ties more often than by chance.
fn telling_bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(vec![0x00, 0x01, 0x7c, 0x7f, 0x80, 0xf0, 0xfc, 0xff]);
    prop::collection::vec(prop_oneof![2 => any::<u8>(), 3 => telling], len)
}

/// Up to 300 elements of 8 bytes for each side, and how they are misaligned; often the sides agree in places.
fn operands() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, usize, usize)> {
    (0_usize..300).prop_flat_map(|elements| {
        let len = elements * 8;
        let tied = prop::collection::vec(prop::bool::weighted(0.2), elements);
        (telling_bytes(len), telling_bytes(len), tied, 0_usize..8, 0_usize..8).prop_map(
            |(mine, mut received, tied, left, right)| {
                for (at, _) in tied.iter().enumerate().filter(|(_, tied)| **tied) {
                    received[at * 8..at * 8 + 8].copy_from_slice(&mine[at * 8..at * 8 + 8]);
                }
                (mine, received, left, right)
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_kernel_computes_what_the_reference_does((mine, received, left, right) in operands()) {
        for (dtype, reduction, rule) in every_kernel() {
            let len = mine.len() / 8 * dtype.size();
            let (mine, received) = (&mine[..len], &received[..len]);
            let (mut a, mut b) = (Misaligned::new(mine, left), Misaligned::new(received, right));
            reduce(dtype, reduction, rule, a.get(), b.get());
            assert_as_reference((dtype, reduction, rule), mine, received, a.get(), "random");
        }
    }
}

#[test]
fn alignment_changes_nothing() {
    // A fixed sequence that visits every byte value; 67 elements are several vectors and a tail.
    let bytes: Vec<u8> = (0..67_u32 * 16).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
    for (dtype, reduction, rule) in every_kernel() {
        let len = 67 * dtype.size();
        let (mine, received) = (&bytes[..len], &bytes[len..2 * len]);
        for left in 0..8 {
            for right in 0..8 {
                let (mut a, mut b) = (Misaligned::new(mine, left), Misaligned::new(received, right));
                reduce(dtype, reduction, rule, a.get(), b.get());
                let what = format!("misaligned by {left} and {right}");
                assert_as_reference((dtype, reduction, rule), mine, received, a.get(), &what);
            }
        }
    }
}

/// Bit patterns of either 16-bit float around which rounding, overflow and comparison change their ways.
fn telling_halves() -> impl Iterator<Item = u16> {
    let patterns = [
        0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x83ff, 0x0400, 0x93ff, 0x2c01, 0xbbff, 0x3c01, 0xbf81, 0x4c00, 0xe801,
        0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe00, 0x7f7f, 0x7f80, 0xff80, 0x7f81,
    ];
    patterns.into_iter()
}

fn bytes_of(bits: impl Iterator<Item = u16>) -> Vec<u8> {
    bits.flat_map(u16::to_ne_bytes).collect()
}

#[test]
fn every_16_bit_float_reduces_with_every_telling_one_as_half_computes_it() {
    let all = bytes_of(0..=u16::MAX);
    for (dtype, reduction, rule) in every_kernel() {
        // Sums do not ask for the rule.
        if !matches!(dtype, DType::F16 | DType::BF16) || (reduction, rule) == (Reduction::Sum, NanRule::Mlx) {
            continue;
        }
        for other in telling_halves() {
            let received = bytes_of((0..=u16::MAX).map(|_| other));
            let mut mine = all.clone();
            reduce(dtype, reduction, rule, &mut mine, &received);
            assert_as_reference((dtype, reduction, rule), &all, &received, &mine, "exhaustive");
        }
    }
}

#[test]
fn every_16_bit_float_adds_to_one_of_like_exponent_as_half_computes_it() {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::BF16] {
        for distance in (0..5_000).step_by(331) {
            let received = bytes_of((0..=u16::MAX).map(|bits| bits.wrapping_add(distance)));
            let mut mine = all.clone();
            reduce(dtype, Reduction::Sum, NanRule::Propagate, &mut mine, &received);
            let what = format!("{distance} places apart");
            assert_as_reference((dtype, Reduction::Sum, NanRule::Propagate), &all, &received, &mine, &what);
        }
    }
}

#[test]
#[ignore = "about a minute in a release build: all 2^32 pairs of both 16-bit floats"]
fn every_pair_of_16_bit_floats_adds_as_half_computes_it() {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::BF16] {
        for other in 0..=u16::MAX {
            let received = bytes_of((0..=u16::MAX).map(|_| other));
            let mut mine = all.clone();
            reduce(dtype, Reduction::Sum, NanRule::Propagate, &mut mine, &received);
            for (bits, sum) in (0..=u16::MAX).zip(mine.as_chunks::<2>().0) {
                let sum = u16::from_ne_bytes(*sum);
                let (right, nan) = if dtype == DType::F16 {
                    let expected = f16::from_f32(f16::from_bits(bits).to_f32() + f16::from_bits(other).to_f32());
                    (sum == expected.to_bits(), expected.is_nan() && f16::from_bits(sum).is_nan())
                } else {
                    let expected = bf16::from_f32(bf16::from_bits(bits).to_f32() + bf16::from_bits(other).to_f32());
                    (sum == expected.to_bits(), expected.is_nan() && bf16::from_bits(sum).is_nan())
                };
                assert!(right || nan, "{dtype} {bits:#06x} + {other:#06x} gave {sum:#06x}");
            }
        }
    }
}

#[test]
fn every_processor_adds_16_bit_floats_to_the_same_bits() {
    fn check<T: Element>(dtype: DType) {
        let all = bytes_of(0..=u16::MAX);
        for other in telling_halves() {
            let received = bytes_of((0..=u16::MAX).map(|bits| bits.rotate_left(3) ^ other));
            let (mut baseline, mut detected) = (all.clone(), all.clone());
            run_on::<T, Add>(Arch::Scalar, &mut baseline, &received);
            run_on::<T, Add>(Arch::new(), &mut detected, &received);
            assert!(same(dtype, Reduction::Sum, &baseline, &detected), "{dtype} with {other:#06x}");
        }
    }
    check::<Float16>(DType::F16);
    check::<BFloat16>(DType::BF16);
}

#[test]
fn what_is_no_whole_element_of_both_slices_stays_as_it_is() {
    let mut mine = [1_u8; 11];
    run_on::<u32, Add>(Arch::new(), &mut mine, &[1; 9]);
    assert_eq!(mine, [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]);
    run_on::<u32, Add>(Arch::new(), &mut mine, &[]);
    run_on::<u32, Add>(Arch::new(), &mut mine[..3], &[1; 9]);
    assert_eq!(mine, [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]);
}

#[test]
fn codes_and_names_are_the_ones_that_peers_know() {
    assert_eq!(Reduction::ALL.map(|r| (r.code(), r.name())), [(1, "sum"), (2, "max"), (3, "min")]);
    for code in 0..=u8::MAX {
        let known = Reduction::from_code(code);
        assert_eq!(known.map(Reduction::code), (1..=3).contains(&code).then_some(code));
    }
}

/// One element through all kernels of a dtype: `[sum, max, min]` under each rule.
fn six<const N: usize>(dtype: DType, mine: [u8; N], received: [u8; N]) -> [[[u8; N]; 3]; 2] {
    RULES.map(|rule| {
        Reduction::ALL.map(|reduction| {
            let mut result = mine;
            reduce(dtype, reduction, rule, &mut result, &received);
            result
        })
    })
}

/// `mine`, `received`, then sum, max and min, then max and min by MLX's rule where they differ; `None` is "some NaN".
#[track_caller]
fn edge<const N: usize>(
    dtype: DType,
    mine: [u8; N],
    received: [u8; N],
    sum: Option<[u8; N]>,
    native: [[u8; N]; 2],
    mlx: [[u8; N]; 2],
) {
    let got = six(dtype, mine, received);
    match sum {
        Some(sum) => assert_eq!([got[0][0], got[1][0]], [sum, sum], "{dtype}: {mine:02x?} + {received:02x?}"),
        None => assert!(undefined_nan(dtype, &got[0][0]), "{dtype}: {mine:02x?} + {received:02x?} is no NaN"),
    }
    assert_eq!(got[0][1..], native, "{dtype}: max and min of {mine:02x?} and {received:02x?}");
    assert_eq!(got[1][1..], mlx, "{dtype}: max and min by MLX's rule of {mine:02x?} and {received:02x?}");
}

#[test]
fn bool_takes_any_byte_for_true_and_gives_0_or_1() {
    for (mine, received, or, and) in [(0, 0, 0, 0), (2, 0, 1, 0), (0, 255, 1, 0), (2, 255, 1, 1), (1, 1, 1, 1)] {
        let expected = [[or], [and]];
        edge(DType::Bool, [mine], [received], Some([or]), expected, expected);
    }
}

#[test]
fn integers_wrap_and_compare_with_their_sign() {
    macro_rules! check {
        ($($dtype:ident $type:ty),*) => {$({
            let (least, greatest, one) = (<$type>::MIN.to_ne_bytes(), <$type>::MAX.to_ne_bytes(), (1 as $type).to_ne_bytes());
            edge(DType::$dtype, greatest, one, Some(least), [greatest, one], [greatest, one]);
            edge(DType::$dtype, one, greatest, Some(least), [greatest, one], [greatest, one]);
            let below = <$type>::MAX.wrapping_add(<$type>::MIN).to_ne_bytes();
            edge(DType::$dtype, least, greatest, Some(below), [greatest, least], [greatest, least]);
        })*};
    }
    check!(U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64);
}

/// Zeros, infinities, NaNs and overflow, the same for every float; `$least` is the least subnormal.
macro_rules! float_edges {
    ($dtype:ident, $type:ty, $bits:ty, $nan:expr) => {{
        let bytes = |value: $type| value.to_bits().to_ne_bytes();
        let (zero, one): ($type, $type) = (Default::default(), <$type>::from(1_u8));
        let (inf, max) = (<$type>::INFINITY, <$type>::MAX);
        // A NaN with a payload, so that one that was computed and not copied shows.
        let nan = <$type>::from_bits($nan);
        let other_nan = <$type>::from_bits($nan + 1);
        let least = <$type>::from_bits(1);
        let check = |mine, received, sum: Option<$type>, native: [$type; 2], mlx: [$type; 2]| {
            edge(DType::$dtype, bytes(mine), bytes(received), sum.map(bytes), native.map(bytes), mlx.map(bytes));
        };
        check(zero, -zero, Some(zero), [zero, zero], [zero, zero]);
        check(-zero, zero, Some(zero), [-zero, -zero], [-zero, -zero]);
        check(-zero, -zero, Some(-zero), [-zero, -zero], [-zero, -zero]);
        check(one, inf, Some(inf), [inf, one], [inf, one]);
        check(-inf, one, Some(-inf), [one, -inf], [one, -inf]);
        check(inf, inf, Some(inf), [inf, inf], [inf, inf]);
        check(inf, -inf, None, [inf, -inf], [inf, -inf]);
        check(max, max, Some(inf), [max, max], [max, max]);
        check(-max, -max, Some(-inf), [-max, -max], [-max, -max]);
        check(max, least, Some(max), [max, least], [max, least]);
        check(least, least, Some(<$type>::from_bits(2)), [least, least], [least, least]);
        check(least, -least, Some(zero), [least, -least], [least, -least]);
        check(-one, -least, Some(-one), [-least, -one], [-least, -one]);
        check(one, nan, None, [nan, nan], [one, one]);
        check(-inf, nan, None, [nan, nan], [-inf, -inf]);
        check(nan, one, None, [nan, nan], [nan, nan]);
        check(nan, inf, None, [nan, nan], [nan, nan]);
        check(nan, other_nan, None, [nan, nan], [nan, nan]);
        check(-nan, nan, None, [-nan, -nan], [-nan, -nan]);
    }};
}

#[test]
fn floats_keep_ties_and_let_nan_through_by_the_wire_s_rule() {
    float_edges!(F16, f16, u16, 0x7e05);
    float_edges!(BF16, bf16, u16, 0x7fc5);
    float_edges!(F32, f32, u32, 0x7fc0_0005);
    float_edges!(F64, f64, u64, 0x7ff8_0000_0000_0005);
    // Signalling NaNs stay signalling where they are copied.
    float_edges!(F16, f16, u16, 0x7c05);
    float_edges!(BF16, bf16, u16, 0x7f85);
    float_edges!(F32, f32, u32, 0x7f80_0005);
    float_edges!(F64, f64, u64, 0x7ff0_0000_0000_0005);
}

#[test]
fn sixteen_bit_floats_round_to_even_after_every_addition() {
    let sum = |dtype, mine: u16, received: u16| {
        let mut result = mine.to_ne_bytes();
        reduce(dtype, Reduction::Sum, NanRule::Propagate, &mut result, &received.to_ne_bytes());
        u16::from_ne_bytes(result)
    };
    let f16 = |a: f32, b: f32| f16::from_bits(sum(DType::F16, f16::from_f32(a).to_bits(), f16::from_f32(b).to_bits()));
    assert_eq!(f16(2048.0, 1.0).to_f32(), 2048.0, "a tie, down to even");
    assert_eq!(f16(2050.0, 1.0).to_f32(), 2052.0, "a tie, up to even");
    assert_eq!(f16(2048.0, 1.5).to_f32(), 2050.0, "no tie");
    assert_eq!(f16(65504.0, 15.0).to_f32(), 65504.0, "below half a place above the greatest");
    assert_eq!(f16(65504.0, 16.0).to_f32(), f32::INFINITY, "half a place above the greatest");
    let bf16 =
        |a: f32, b: f32| bf16::from_bits(sum(DType::BF16, bf16::from_f32(a).to_bits(), bf16::from_f32(b).to_bits()));
    assert_eq!(bf16(256.0, 1.0).to_f32(), 256.0, "a tie, down to even");
    assert_eq!(bf16(258.0, 1.0).to_f32(), 260.0, "a tie, up to even");
    assert_eq!(bf16(256.0, 1.5).to_f32(), 258.0, "no tie");
}

#[test]
fn complex_numbers_compare_by_the_real_part_then_the_imaginary() {
    let bytes = |[re, im]: [f32; 2]| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&re.to_ne_bytes());
        bytes[4..].copy_from_slice(&im.to_ne_bytes());
        bytes
    };
    let nan = f32::from_bits(0x7fc0_0005);
    // mine, received, [max, min] native, [max, min] by MLX's rule
    let table = [
        ([1.0, 9.0], [2.0, 0.0], [[2.0, 0.0], [1.0, 9.0]], [[2.0, 0.0], [1.0, 9.0]]),
        ([1.0, 2.0], [1.0, 3.0], [[1.0, 3.0], [1.0, 2.0]], [[1.0, 3.0], [1.0, 2.0]]),
        ([0.0, 1.0], [-0.0, 1.0], [[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]),
        ([-0.0, 1.0], [0.0, 2.0], [[0.0, 2.0], [-0.0, 1.0]], [[0.0, 2.0], [-0.0, 1.0]]),
        ([1.0, 1.0], [nan, 0.0], [[nan, 0.0], [nan, 0.0]], [[1.0, 1.0], [1.0, 1.0]]),
        ([1.0, 1.0], [1.0, nan], [[1.0, nan], [1.0, nan]], [[1.0, 1.0], [1.0, 1.0]]),
        // MLX compares by the real part alone here: the NaN beside a greater one is taken along, and one beside a lesser is not.
        ([1.0, 1.0], [2.0, nan], [[2.0, nan], [2.0, nan]], [[2.0, nan], [1.0, 1.0]]),
        ([1.0, nan], [2.0, 5.0], [[1.0, nan], [1.0, nan]], [[2.0, 5.0], [1.0, nan]]),
        ([nan, 1.0], [2.0, nan], [[nan, 1.0], [nan, 1.0]], [[nan, 1.0], [nan, 1.0]]),
    ];
    for (mine, received, native, mlx) in table {
        let got = six(DType::Complex64, bytes(mine), bytes(received));
        assert_eq!(got[0][1..], native.map(bytes), "{mine:?} and {received:?}");
        assert_eq!(got[1][1..], mlx.map(bytes), "{mine:?} and {received:?} by MLX's rule");
    }
    let mut sum = bytes([1.0, -2.0]);
    reduce(DType::Complex64, Reduction::Sum, NanRule::Propagate, &mut sum, &bytes([0.5, 5.0]));
    assert_eq!(sum, bytes([1.5, 3.0]));
}
