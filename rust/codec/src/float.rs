//! Floats of fewer bits, to and from float32: without a branch, and without arithmetic on subnormal numbers, which a
//! process may flush to 0.
//!
//! Narrowing rounds to nearest, ties to even. Finite values stay finite: those beyond the largest number of a dtype
//! become that number. An infinity stays one, or in float8_e4m3fn, which has none, becomes the largest number. A NaN
//! stays one.

/// A float dtype, named as torch names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Float {
    Float64,
    Float32,
    Float16,
    Bfloat16,
    Float8E4m3fn,
    Float8E5m2,
}

impl Float {
    /// The dtype of a name such as `float8_e4m3fn`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "float64" => Self::Float64,
            "float32" => Self::Float32,
            "float16" => Self::Float16,
            "bfloat16" => Self::Bfloat16,
            "float8_e4m3fn" => Self::Float8E4m3fn,
            "float8_e5m2" => Self::Float8E5m2,
            _ => return None,
        })
    }

    /// Bytes of one element.
    #[must_use]
    pub fn n_bytes(self) -> usize {
        match self {
            Self::Float64 => 8,
            Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float8E4m3fn | Self::Float8E5m2 => 1,
        }
    }
}

/// Elements of one dtype, as bytes.
pub(crate) trait Elements {
    type Bytes: Copy;
    fn all(bytes: &[u8]) -> &[Self::Bytes];
    fn all_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> f32;
    fn store(value: f32) -> Self::Bytes;
}

macro_rules! elements {
    ($name:ident, $n:literal, $load:expr, $store:expr) => {
        pub(crate) struct $name;

        impl Elements for $name {
            type Bytes = [u8; $n];

            #[inline(always)]
            fn all(bytes: &[u8]) -> &[[u8; $n]] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn all_mut(bytes: &mut [u8]) -> &mut [[u8; $n]] {
                bytes.as_chunks_mut().0
            }

            #[inline(always)]
            fn load(bytes: [u8; $n]) -> f32 {
                $load(bytes)
            }

            #[inline(always)]
            fn store(value: f32) -> [u8; $n] {
                $store(value)
            }
        }
    };
}

elements!(F64, 8, |bytes| to_odd(f64::from_ne_bytes(bytes)), |value| f64::from(value).to_ne_bytes());
elements!(F32, 4, f32::from_ne_bytes, f32::to_ne_bytes);
elements!(Bf16, 2, |bytes| widen_bf16(u16::from_ne_bytes(bytes)), |value| narrow_bf16(value).to_ne_bytes());
elements!(F16, 2, |bytes| E5M10::widen(u32::from(u16::from_ne_bytes(bytes))), |value| {
    (E5M10::narrow(value) as u16).to_ne_bytes()
});
elements!(F8E4m3fn, 1, |[byte]: [u8; 1]| E4M3::widen(u32::from(byte)), |value| [E4M3::narrow(value) as u8]);
elements!(F8E5m2, 1, |[byte]: [u8; 1]| E5M2::widen(u32::from(byte)), |value| [E5M2::narrow(value) as u8]);

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fc0_0000;

/// A float dtype of fewer than 16 bits besides its sign.
trait Small {
    const EXPONENT_BITS: u32;
    const MANTISSA_BITS: u32;
    /// The largest finite number, as bits of float32.
    const LARGEST: u32;
    /// The code of an infinity.
    const INFINITY: u32;
    const HAS_INFINITY: bool;
    const NAN: u32;

    const BIAS: u32 = (1 << (Self::EXPONENT_BITS - 1)) - 1;
    const SHIFT: u32 = 23 - Self::MANTISSA_BITS;
    /// Shift from the sign of a float32 to that of this dtype.
    const SIGN_SHIFT: u32 = 31 - Self::EXPONENT_BITS - Self::MANTISSA_BITS;
    /// Difference between an exponent of float32 and one of this dtype.
    const REBIAS: u32 = (127 - Self::BIAS) << 23;
    /// The smallest normal number, as bits of float32.
    const SMALLEST_NORMAL: u32 = (128 - Self::BIAS) << 23;
    /// A float32 with the same value of the last bit as this dtype's subnormal numbers: adding it rounds to them.
    const ROUNDS_TO_DENORMAL: u32 = (127 - Self::BIAS + Self::SHIFT + 1) << 23;

    /// Source: F. Giesen, `float->half` with round to nearest even (gist rygorous/2156668), for any small float and
    /// with saturation.
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        let size = bits & !SIGN;
        let finite = if (size as i32) < Self::LARGEST as i32 { size } else { Self::LARGEST };
        let odd = (finite >> Self::SHIFT) & 1;
        let normal =
            finite.wrapping_sub(Self::REBIAS).wrapping_add((1 << (Self::SHIFT - 1)) - 1 + odd) >> Self::SHIFT;
        let rounding = f32::from_bits(Self::ROUNDS_TO_DENORMAL);
        let denormal = (f32::from_bits(finite) + rounding).to_bits().wrapping_sub(Self::ROUNDS_TO_DENORMAL);
        let code = if (finite as i32) < Self::SMALLEST_NORMAL as i32 { denormal } else { normal };
        let code = if size == INFINITY { Self::INFINITY } else { code };
        let code = if size as i32 > INFINITY as i32 { Self::NAN } else { code };
        code | ((bits & SIGN) >> Self::SIGN_SHIFT)
    }

    #[inline(always)]
    fn widen(code: u32) -> f32 {
        let sign = SIGN >> Self::SIGN_SHIFT;
        let size = code & (sign - 1);
        let normal = (size << Self::SHIFT).wrapping_add(Self::REBIAS);
        let unit = f32::from_bits((128 - Self::BIAS - Self::MANTISSA_BITS) << 23);
        let denormal = (size as i32 as f32 * unit).to_bits();
        let bits = if (size as i32) < (1 << Self::MANTISSA_BITS) { denormal } else { normal };
        let bits = if Self::HAS_INFINITY && size == Self::INFINITY { INFINITY } else { bits };
        let bits = if size as i32 > Self::INFINITY as i32 { NAN } else { bits };
        f32::from_bits(bits | ((code & sign) << Self::SIGN_SHIFT))
    }
}

struct E5M10;
impl Small for E5M10 {
    const EXPONENT_BITS: u32 = 5;
    const MANTISSA_BITS: u32 = 10;
    const LARGEST: u32 = 65504.0_f32.to_bits();
    const INFINITY: u32 = 0x7c00;
    const HAS_INFINITY: bool = true;
    const NAN: u32 = 0x7e00;
}

struct E5M2;
impl Small for E5M2 {
    const EXPONENT_BITS: u32 = 5;
    const MANTISSA_BITS: u32 = 2;
    const LARGEST: u32 = 57344.0_f32.to_bits();
    const INFINITY: u32 = 0x7c;
    const HAS_INFINITY: bool = true;
    const NAN: u32 = 0x7e;
}

struct E4M3;
impl Small for E4M3 {
    const EXPONENT_BITS: u32 = 4;
    const MANTISSA_BITS: u32 = 3;
    const LARGEST: u32 = 448.0_f32.to_bits();
    const INFINITY: u32 = 0x7e;
    const HAS_INFINITY: bool = false;
    const NAN: u32 = 0x7f;
}

#[inline(always)]
fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let size = bits & !SIGN;
    let largest = 0x7f7f_0000;
    let finite = if (size as i32) < largest as i32 { size } else { largest };
    let rounded = (finite + 0x7fff + ((finite >> 16) & 1)) >> 16;
    let code = if size == INFINITY { INFINITY >> 16 } else { rounded };
    let code = if size as i32 > INFINITY as i32 { NAN >> 16 } else { code };
    (code | ((bits & SIGN) >> 16)) as u16
}

#[inline(always)]
fn widen_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// A float64 rounded to odd: a neighbouring float32, with 1 as its last bit if the rounding was not exact. A second
/// rounding, to at least two bits less, then gives the same result as one from the float64.
///
/// Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
/// odd", IEEE TC 2008.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let towards_zero = bits.wrapping_sub(u32::from(back.abs() > value.abs()));
    let odd = towards_zero | u32::from(back != value);
    // NaN is unequal to itself, and stays as it is.
    f32::from_bits(if value.is_nan() { bits } else { odd })
}
