//! Each encoding against a plain reference implementation.

use proptest::prelude::*;

use super::*;

const SMALL: [(Float, f64, u32); 3] =
    [(Float::Float16, 65504.0, 10), (Float::Float8E5m2, 57344.0, 2), (Float::Float8E4m3fn, 448.0, 3)];

fn cast(dtype: Float, stored: Float) -> Codec {
    Codec::Cast(Cast::new(dtype, stored).unwrap())
}

fn encoded(codec: Codec, values: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut out = vec![0xee; codec.encoded_len(values.len()).unwrap()];
    codec.encode(0, values, &mut out).map(|()| out)
}

fn decoded(codec: Codec, encoded: &[u8], n_bytes: usize) -> Result<Vec<u8>, CodecError> {
    let mut out = vec![0xee; n_bytes];
    codec.decode(0, encoded, &mut out).map(|()| out)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// The values of all codes of a dtype without a sign, by its definition, up to the largest number.
fn all_numbers(stored: Float, mantissa_bits: u32) -> Vec<f64> {
    let exponent_bits = stored.n_bytes() as u32 * 8 - 1 - mantissa_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let n_codes: u32 =
        if stored == Float::Float8E4m3fn { 0x7f } else { ((1 << exponent_bits) - 1) << mantissa_bits };
    let number = |code: u32| {
        let (exponent, mantissa) = ((code >> mantissa_bits) as i32, code & ((1 << mantissa_bits) - 1));
        let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
        if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        }
    };
    (0..n_codes).map(number).collect()
}

fn codes_of(stored: Float, codes: impl Iterator<Item = u32>) -> Vec<u8> {
    let bytes = codes.map(|code| (code as u16).to_le_bytes());
    bytes.flat_map(|bytes| bytes.into_iter().take(stored.n_bytes())).collect()
}

fn code_at(stored: Float, bytes: &[u8], i: usize) -> u32 {
    match stored.n_bytes() {
        1 => u32::from(bytes[i]),
        _ => u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])),
    }
}

#[test]
fn every_code_means_what_its_dtype_says() {
    for (stored, largest, mantissa_bits) in SMALL {
        let numbers = all_numbers(stored, mantissa_bits);
        assert_eq!(numbers.last(), Some(&largest));
        let codes = codes_of(stored, 0..numbers.len() as u32);
        let widened = floats_of(&decoded(cast(Float::Float32, stored), &codes, numbers.len() * 4).unwrap());
        assert_eq!(widened.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), numbers);
        let sign = 1 << (stored.n_bytes() * 8 - 1);
        let negative = codes_of(stored, (0..numbers.len() as u32).map(|code| code | sign));
        let widened =
            floats_of(&decoded(cast(Float::Float32, stored), &negative, numbers.len() * 4).unwrap());
        assert!(widened.iter().zip(&numbers).all(|(a, b)| a.is_sign_negative() && f64::from(-a) == *b));
        // The codes behind the largest number: an infinity, except for float8_e4m3fn, and then NaN.
        let codes = codes_of(stored, numbers.len() as u32..sign);
        let n = codes.len() / stored.n_bytes();
        let rest = floats_of(&decoded(cast(Float::Float32, stored), &codes, n * 4).unwrap());
        let n_infinite = usize::from(stored != Float::Float8E4m3fn);
        assert!(rest[..n_infinite].iter().all(|value| *value == f32::INFINITY));
        assert!(rest[n_infinite..].iter().all(|value| value.is_nan()) && rest.len() > n_infinite);
    }
}

#[test]
fn between_two_numbers_comes_the_nearer_one_and_halfway_the_even_one() {
    for (stored, largest, mantissa_bits) in SMALL {
        let numbers = all_numbers(stored, mantissa_bits);
        let mut wide = Vec::new();
        let mut expected = Vec::new();
        for (code, pair) in numbers.windows(2).enumerate() {
            let code = code as u32;
            let middle = f64::midpoint(pair[0], pair[1]);
            for (value, code) in [
                (pair[0], code),
                (middle.next_down(), code),
                (middle, code + code % 2),
                (middle.next_up(), code + 1),
            ] {
                wide.push(value);
                expected.push(code);
            }
        }
        let last = numbers.len() as u32 - 1;
        for value in [largest * 1.01, largest * 2.0, 1e30, f64::MAX] {
            wide.push(value);
            expected.push(last);
        }
        let sign = 1 << (stored.n_bytes() * 8 - 1);
        for negative in [false, true] {
            let from = |value: f64| if negative { -value } else { value };
            let bytes: Vec<u8> = wide.iter().flat_map(|value| from(*value).to_ne_bytes()).collect();
            let codes = encoded(cast(Float::Float64, stored), &bytes).unwrap();
            for (i, code) in expected.iter().enumerate() {
                let code = if negative { code | sign } else { *code };
                assert_eq!(code_at(stored, &codes, i), code, "{stored:?} of {}", from(wide[i]));
            }
        }
        // And from float32, where the middle and its neighbours are numbers too.
        let middles: Vec<f32> = wide[..4 * (numbers.len() - 1)]
            .chunks(4)
            .flat_map(|four| {
                let middle = four[2] as f32;
                [four[0] as f32, middle.next_down(), middle, middle.next_up()]
            })
            .collect();
        let codes = encoded(cast(Float::Float32, stored), &bytes_of(&middles)).unwrap();
        for (i, value) in middles.iter().enumerate() {
            assert_eq!(code_at(stored, &codes, i), expected[i], "{stored:?} of {value}");
        }
    }
}

#[test]
fn bfloat16_rounds_the_upper_half_of_a_float32() {
    let codec = cast(Float::Float32, Float::Bfloat16);
    for (bits, code) in [
        (0x0000_0001, 0x0000), // denormal numbers too
        (0x0000_8000, 0x0000),
        (0x0000_8001, 0x0001),
        (0x0001_8000, 0x0002),
        (0x3f80_7fff, 0x3f80),
        (0x3f80_8000, 0x3f80),
        (0x3f81_8000, 0x3f82),
        (0x7f7f_ffff, 0x7f7f), // what is finite stays finite
        (0x7f80_0000, 0x7f80),
        (0xff80_0000, 0xff80),
        (0x7f80_0001, 0x7fc0),
        (0xffff_ffff, 0xffc0),
    ] {
        let code_found = encoded(codec, &bytes_of(&[f32::from_bits(bits)])).unwrap();
        assert_eq!(code_at(Float::Bfloat16, &code_found, 0), code, "{bits:x}");
    }
    // A float64 just above the middle of two bfloat16, and nearest to that middle as float32.
    let above = f64::from(f32::from_bits(0x3f80_8000)).next_up();
    let codec = cast(Float::Float64, Float::Bfloat16);
    let code = encoded(codec, &above.to_ne_bytes()).unwrap();
    assert_eq!(code_at(Float::Bfloat16, &code, 0), 0x3f81);
}

#[test]
fn no_number_and_no_end() {
    for (stored, infinity, nan) in
        [(Float::Float16, 0x7c00, 0x7e00), (Float::Float8E5m2, 0x7c, 0x7e), (Float::Float8E4m3fn, 0x7e, 0x7f)]
    {
        let sign = 1 << (stored.n_bytes() * 8 - 1);
        let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
        let wanted = [infinity, infinity | sign, nan, nan | sign];
        let narrow: Vec<u8> = special.iter().flat_map(|value| (*value as f32).to_ne_bytes()).collect();
        let wide: Vec<u8> = special.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let from = [(Float::Float32, narrow), (Float::Float64, wide)];
        for (dtype, bytes) in from {
            let codes = encoded(cast(dtype, stored), &bytes).unwrap();
            let found: Vec<u32> = (0..4).map(|i| code_at(stored, &codes, i)).collect();
            // The sign of a NaN is not specified.
            assert_eq!(found[..2], wanted[..2]);
            assert!(found[2..].iter().all(|code| code & (sign - 1) == nan));
        }
    }
}

#[test]
fn what_a_cast_takes() {
    assert!(Cast::new(Float::Float16, Float::Bfloat16).is_none(), "as many bytes");
    assert!(Cast::new(Float::Float64, Float::Float32).is_none());
    assert!(Cast::new(Float::Bfloat16, Float::Float8E5m2).is_some());
    assert_eq!(cast(Float::Float32, Float::Float16).encoded_len(6), None);
    let short = cast(Float::Float32, Float::Float16).decode(0, &[0; 3], &mut [0; 8]);
    assert_eq!(short, Err(CodecError::Length { have: 3, need: 4 }));
}

fn int8(block: usize, scale: Float) -> Codec {
    Codec::Int8(Int8::new(Float::Float32, block, scale).unwrap())
}

proptest! {
    #[test]
    fn int8_is_within_half_a_scale(
        values in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL, 0..70),
        block in 8usize..40,
        is_short in any::<bool>(),
    ) {
        let scale = if is_short { Float::Float16 } else { Float::Float32 };
        let codec = int8(block, scale);
        let bytes = bytes_of(&values);
        let largest = |values: &[f32]| values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        match encoded(codec, &bytes) {
            Err(error) => {
                let is_too_large = matches!(error, CodecError::TooLarge { .. });
                prop_assert!(is_short && is_too_large);
                prop_assert!(largest(&values) > 8_319_008.0);
            }
            Ok(data) => {
                prop_assert_eq!(data.len(), values.len() + values.len().div_ceil(block) * scale.n_bytes());
                let back = floats_of(&decoded(codec, &data, bytes.len()).unwrap());
                for (block, back) in values.chunks(block).zip(back.chunks(block)) {
                    let step = f64::from(largest(block)) / 127.0;
                    // The scale is rounded up, to float32 or to float16.
                    let step = if is_short { step * (1.0 + 1.0 / 1024.0) + 2f64.powi(-24) } else { step * (1.0 + 1e-6) + 1.5e-45 };
                    for (value, back) in block.iter().zip(back) {
                        let error = (f64::from(*value) - f64::from(*back)).abs();
                        prop_assert!(error <= step * 0.500_02, "{} was decoded as {}", value, back);
                    }
                }
            }
        }
    }

    #[test]
    fn whatever_bytes_there_are_decoding_ends_well(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 0usize..100) {
        let codecs = [
            cast(Float::Float32, Float::Float8E4m3fn),
            int8(16, Float::Float16),
            Codec::Indices(Indices::new(1000).unwrap()),
            Codec::Indices(Indices::new(100_000).unwrap()),
        ];
        for codec in codecs {
            let need = codec.encoded_len(n * codec.piece().decoded).unwrap();
            let out = decoded(codec, &bytes, n * codec.piece().decoded);
            prop_assert!(out.is_err() || bytes.len() == need);
            if let (Ok(out), Codec::Indices(_)) = (out, codec) {
                let n = if codec.piece().encoded == 2 { 1000 } else { 100_000 };
                prop_assert!(out.as_chunks().0.iter().all(|bytes| (0..n).contains(&i64::from_ne_bytes(*bytes))));
            }
        }
    }

    #[test]
    fn the_largest_come_first(
        mut row in prop::collection::vec(prop_oneof![(-20i8..20).prop_map(f32::from), prop::num::f32::ANY], 1..1500),
        k in 1usize..60,
        sorted in 0..3,
    ) {
        match sorted {
            1 => row.sort_by(f32::total_cmp),
            2 => row.sort_by(|a, b| b.total_cmp(a)),
            _ => {}
        }
        let k = k.min(row.len());
        let (values, indices, _) = top(&row, k);
        let order = |value: f32| if value.is_nan() { f32::NAN.abs() } else { value };
        let mut expected: Vec<usize> = (0..row.len()).collect();
        expected.sort_by(|a, b| order(row[*b]).total_cmp(&order(row[*a])).then(a.cmp(b)));
        prop_assert_eq!(&indices, &expected[..k]);
        for (value, index) in values.iter().zip(indices) {
            prop_assert_eq!(value.to_bits(), row[index].to_bits());
        }
    }

    #[test]
    fn the_sum_is_that_of_all(row in prop::collection::vec(-300.0f32..300.0, 1..3000)) {
        let (_, _, lse) = top(&row, 1);
        let largest = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f64 = row.iter().map(|value| (f64::from(*value) - f64::from(largest)).exp()).sum();
        let expected = f64::from(largest) + sum.ln();
        prop_assert!((f64::from(lse) - expected).abs() <= expected.abs() * 6e-8 + 3e-7, "{} {}", lse, expected);
    }
}

#[test]
fn int8_refuses_what_it_cannot_hold() {
    let codec = int8(8, Float::Float32);
    for (i, bad) in [(0, f32::NAN), (7, f32::INFINITY), (11, f32::NEG_INFINITY)] {
        let mut values = [1.0f32; 12];
        values[i] = bad;
        let error = codec.encode(100, &bytes_of(&values), &mut [0; 20]).unwrap_err();
        assert!(
            matches!(error, CodecError::NotFinite { at, value } if at == 100 + i && value.to_bits() == bad.to_bits())
        );
    }
    let error = encoded(int8(8, Float::Float16), &bytes_of(&[8_320_000.0; 8])).unwrap_err();
    assert_eq!(error, CodecError::TooLarge { at: 0, value: 8_320_000.0 });
    assert!(encoded(int8(8, Float::Float16), &bytes_of(&[8_319_008.0; 8])).is_ok());
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let data: Vec<u8> =
            [1.0f32, bad].iter().flat_map(|scale| [&scale.to_ne_bytes()[..], &[1; 8]].concat()).collect();
        let error = codec.decode(16, &data, &mut [0; 64]).unwrap_err();
        assert!(matches!(error, CodecError::BadScale { at: 24, .. }), "{error}");
    }
}

#[test]
fn int8_of_the_smallest_numbers() {
    // Where a scale rounded down would be far too small: 190 / 127 of the smallest number there is.
    for (unit, scale) in [(f32::from_bits(1), Float::Float32), (2f32.powi(-24), Float::Float16)] {
        let codec = int8(8, scale);
        let values = [190.0, -100.0, 1.0, 0.0, 127.0, 64.0, -190.0, 3.0].map(|n| n * unit);
        let back = floats_of(&decoded(codec, &encoded(codec, &bytes_of(&values)).unwrap(), 32).unwrap());
        assert_eq!(back[0], 190.0 * unit, "95 steps of 2");
        assert!(values.iter().zip(&back).all(|(value, back)| (value - back).abs() <= unit), "{back:?}");
    }
}

#[test]
fn int8_of_halves() {
    for dtype in [Float::Float16, Float::Bfloat16] {
        let codec = Codec::Int8(Int8::new(dtype, 8, Float::Float32).unwrap());
        let to_half = cast(Float::Float32, dtype);
        let values: Vec<f32> = (0..20).map(|i| i as f32 * 0.25 - 2.0).collect();
        let halves = encoded(to_half, &bytes_of(&values)).unwrap();
        let back = decoded(codec, &encoded(codec, &halves).unwrap(), halves.len()).unwrap();
        for (value, back) in values.iter().zip(floats_of(&decoded(to_half, &back, 80).unwrap())) {
            assert!((value - back).abs() <= 3.0 / 127.0 / 2.0 + 3.0 / 256.0, "{value} {back}");
        }
    }
}

#[test]
fn indices_are_within_their_row() {
    for (len, n_bytes) in [(1, 2), (65_536, 2), (65_537, 4), (i32::MAX as u32, 4)] {
        let indices = Indices::new(len).unwrap();
        assert_eq!(indices.n_bytes(), n_bytes);
        let codec = Codec::Indices(indices);
        let last = i64::from(len - 1);
        let values: Vec<u8> = [0, last].iter().flat_map(|index| index.to_ne_bytes()).collect();
        assert_eq!(decoded(codec, &encoded(codec, &values).unwrap(), 16).unwrap(), values);
        for bad in [last + 1, -1, i64::MAX] {
            let values: Vec<u8> = [0, bad].iter().flat_map(|index| index.to_ne_bytes()).collect();
            let error = codec.encode(5, &values, &mut vec![0; 2 * n_bytes]).unwrap_err();
            assert_eq!(error, CodecError::BadIndex { at: 6, index: bad, len });
        }
        if n_bytes == 4 || len < 65_536 {
            let error = codec.decode(5, &vec![0xff; n_bytes], &mut [0; 8]).unwrap_err();
            assert!(matches!(error, CodecError::BadIndex { at: 5, .. }));
        }
    }
    assert!(Indices::new(0).is_none() && Indices::new(1 << 31).is_none());
}

fn top(row: &[f32], k: usize) -> (Vec<f32>, Vec<usize>, f32) {
    let top = TopK::new(Float::Float32, row.len() as u32, k).unwrap();
    let [mut values, mut indices, mut lse] = top.encoded_lens().map(|len| vec![0; len]);
    top.encode_row(&bytes_of(row), [&mut values, &mut indices, &mut lse], &mut Scratch::default());
    let indices = indices.as_chunks().0.iter().map(|bytes| usize::from(u16::from_ne_bytes(*bytes))).collect();
    (floats_of(&values), indices, floats_of(&lse)[0])
}

#[test]
fn rows_with_infinities() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (row, lse) in [
        (vec![-inf, 0.0, -inf], 0.0),
        (vec![-inf; 3], -inf),
        (vec![1.0, inf, -inf], inf),
        (vec![2.0, 2.0], 2.0 + std::f32::consts::LN_2),
    ] {
        assert_eq!(top(&row, 2).2, lse, "{row:?}");
    }
    assert!(top(&[1.0, nan, inf], 1).2.is_nan());
}

#[test]
fn halves_keep_their_bits() {
    for dtype in [Float::Float16, Float::Bfloat16] {
        let row = encoded(cast(Float::Float32, dtype), &bytes_of(&[0.1, -3.0, 2.5, 2.5])).unwrap();
        let top = TopK::new(dtype, 4, 3).unwrap();
        let [mut values, mut indices, mut lse] = top.encoded_lens().map(|len| vec![0; len]);
        top.encode_row(&row, [&mut values, &mut indices, &mut lse], &mut Scratch::default());
        assert_eq!(values, [&row[4..6], &row[6..8], &row[0..2]].concat());
        assert_eq!(indices, [2u16, 3, 0].iter().flat_map(|index| index.to_ne_bytes()).collect::<Vec<_>>());
        assert!((floats_of(&lse)[0] - 3.241).abs() < 2e-3);
    }
    assert!(TopK::new(Float::Float64, 4, 3).is_none());
    assert!(TopK::new(Float::Float32, 4, 5).is_none() && TopK::new(Float::Float32, 4, 0).is_none());
}
