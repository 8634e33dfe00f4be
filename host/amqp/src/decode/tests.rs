use bytes::Bytes;

use super::*;
use crate::encode;

fn read(bytes: &[u8]) -> Result<Value> {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(&bytes);
    let value = reader.value()?;
    assert!(reader.is_empty(), "all of {bytes:?} is one value");
    let mut skipped = Reader::new(&bytes);
    skipped.skip().expect("what is read can be skipped");
    assert!(skipped.is_empty(), "skipping ends where reading ends");
    Ok(value)
}

fn problem(bytes: &[u8]) -> (usize, Problem) {
    let bytes = Bytes::copy_from_slice(bytes);
    let error = Reader::new(&bytes).value().expect_err("not sound");
    (error.at, error.problem)
}

/// Every constructor of the standard, and what goes back for it.
#[test]
fn every_constructor_is_read_and_written_again() {
    let text = || Value::String("ab".to_owned());
    let symbol = || Value::Symbol(Symbol::from("ab"));
    let binary = || Value::Binary(Bytes::from_static(b"ab"));
    let cases: Vec<(&[u8], Value)> = vec![
        (&[0x40], Value::Null),
        (&[0x41], Value::Bool(true)),
        (&[0x42], Value::Bool(false)),
        // The Python SDK writes booleans in the long form.
        (&[0x56, 0x01], Value::Bool(true)),
        (&[0x56, 0x00], Value::Bool(false)),
        (&[0x50, 0xff], Value::Ubyte(255)),
        (&[0x60, 0x01, 0x02], Value::Ushort(0x102)),
        (&[0x43], Value::Uint(0)),
        (&[0x52, 0x07], Value::Uint(7)),
        (&[0x70, 0, 0, 1, 0], Value::Uint(256)),
        (&[0x44], Value::Ulong(0)),
        (&[0x53, 0x07], Value::Ulong(7)),
        (&[0x80, 0, 0, 0, 0, 0, 0, 1, 0], Value::Ulong(256)),
        (&[0x51, 0xff], Value::Byte(-1)),
        (&[0x61, 0xff, 0xfe], Value::Short(-2)),
        (&[0x54, 0xff], Value::Int(-1)),
        (&[0x71, 0xff, 0xff, 0, 0], Value::Int(-65536)),
        (&[0x55, 0xff], Value::Long(-1)),
        (&[0x81, 0, 0, 0, 0, 0, 0, 1, 0], Value::Long(256)),
        (&[0x72, 0x3f, 0x80, 0, 0], Value::Float(1.0_f32.to_bits())),
        (&[0x82, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0], Value::Double(1.0_f64.to_bits())),
        (&[0x74, 1, 2, 3, 4], Value::Decimal32([1, 2, 3, 4])),
        (&[0x84, 1, 2, 3, 4, 5, 6, 7, 8], Value::Decimal64([1, 2, 3, 4, 5, 6, 7, 8])),
        (
            &[0x94, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8],
            Value::Decimal128([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
        ),
        (&[0x73, 0, 0, 0, 0x41], Value::Char(0x41)),
        (&[0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Value::Timestamp(-1)),
        (&[0x98, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], Value::Uuid([1; 16])),
        (&[0xa0, 2, b'a', b'b'], binary()),
        (&[0xb0, 0, 0, 0, 2, b'a', b'b'], binary()),
        (&[0xa1, 2, b'a', b'b'], text()),
        (&[0xb1, 0, 0, 0, 2, b'a', b'b'], text()),
        (&[0xa3, 2, b'a', b'b'], symbol()),
        (&[0xb3, 0, 0, 0, 2, b'a', b'b'], symbol()),
        (&[0x45], Value::List(vec![])),
        (&[0xc0, 3, 2, 0x40, 0x41], Value::List(vec![Value::Null, Value::Bool(true)])),
        (&[0xd0, 0, 0, 0, 5, 0, 0, 0, 1, 0x40], Value::List(vec![Value::Null])),
        (&[0xc1, 3, 2, 0x43, 0x40], Value::Map(Map(vec![(Value::Uint(0), Value::Null)]))),
        (&[0xd1, 0, 0, 0, 6, 0, 0, 0, 2, 0x43, 0x40], Value::Map(Map(vec![(Value::Uint(0), Value::Null)]))),
        (&[0xe0, 4, 2, 0x55, 1, 0xff], Array::longs([1, -1])),
        (&[0xf0, 0, 0, 0, 7, 0, 0, 0, 2, 0x55, 1, 0xff], Array::longs([1, -1])),
        (&[0xe0, 7, 2, 0xa3, 1, b'a', 2, b'b', b'c'], Array::symbols([Symbol::from("a"), Symbol::from("bc")])),
        (&[0xe0, 2, 0, 0x83], Array::timestamps([])),
        (&[0x00, 0x53, 0x24, 0x45], Value::described(0x24, Value::List(vec![]))),
        (
            &[0x00, 0xa3, 1, b'a', 0x40],
            Value::Described(Box::new(Described { by: Value::Symbol(Symbol::from("a")), value: Value::Null })),
        ),
    ];
    for (bytes, expected) in cases {
        let value = read(bytes).unwrap_or_else(|error| panic!("{bytes:02x?}: {error}"));
        assert_eq!(value, expected, "{bytes:02x?}");
        let mut written = Vec::new();
        encode::value(&mut written, &value);
        assert_eq!(read(&written).expect("our own"), expected, "{bytes:02x?} as {written:02x?}");
        for len in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..len]);
            assert!(Reader::new(&cut).value().is_err(), "{bytes:02x?} cut to {len}");
            assert!(Reader::new(&cut).skip().is_err(), "{bytes:02x?} cut to {len}, skipped");
        }
    }
}

#[test]
fn arrays_of_every_kind_come_back() {
    let of = |code, items| Value::Array(Box::new(Array { described_by: Vec::new(), code, items }));
    let long = "x".repeat(300);
    let arrays = [
        of(codes::BOOLEAN, vec![Value::Bool(true), Value::Bool(false)]),
        of(codes::UINT, vec![Value::Uint(0), Value::Uint(7), Value::Uint(u32::MAX)]),
        of(codes::ULONG, vec![Value::Ulong(0), Value::Ulong(u64::MAX)]),
        of(codes::INT, vec![Value::Int(-1), Value::Int(i32::MIN)]),
        of(codes::UBYTE, vec![Value::Ubyte(1)]),
        of(codes::NULL, vec![Value::Null; 3]),
        of(codes::BINARY32, vec![Value::Binary(Bytes::from_static(b"a")), Value::Binary(Bytes::from(long.clone()))]),
        of(codes::LIST32, vec![Value::List(vec![]), Value::List(vec![Value::Null])]),
        of(codes::MAP32, vec![Value::Map(Map::new()), Value::Map(Map(vec![(Value::Uint(1), Value::from(long))]))]),
        of(codes::ARRAY32, vec![Array::longs([1]), Array::uuids([[1; 16]; 20])]),
        Array::strings(["a".to_owned()]),
        Value::Array(Box::new(Array {
            described_by: vec![Value::Ulong(1), Value::Ulong(2)],
            code: codes::UINT,
            items: vec![Value::Uint(1)],
        })),
    ];
    for array in arrays {
        let mut bytes = Vec::new();
        encode::value(&mut bytes, &array);
        assert_eq!(read(&bytes).unwrap_or_else(|error| panic!("{array:?}: {error}")), array);
    }
}

#[test]
fn long_lists_and_maps_become_wide() {
    let list = Value::List(vec![Value::Null; 256]);
    let map = Value::Map((0..200).map(|n| (n.to_string(), Value::Uint(n))).collect());
    for value in [list, map] {
        let mut bytes = Vec::new();
        encode::value(&mut bytes, &value);
        assert!(matches!(bytes[0], codes::LIST32 | codes::MAP32));
        assert_eq!(read(&bytes).expect("sound"), value);
    }
}

#[test]
fn errors_say_what_and_where() {
    assert_eq!(problem(&[0x3f]), (0, Problem::UnknownConstructor(0x3f)));
    assert_eq!(problem(&[0xc0, 2, 1, 0x3f]), (3, Problem::UnknownConstructor(0x3f)));
    assert_eq!(problem(&[0xa1, 1, 0xff]), (1, Problem::NotUtf8));
    assert_eq!(problem(&[0xc1, 2, 1, 0x40]), (3, Problem::OddMap));
    assert_eq!(problem(&[0xc0, 3, 1, 0x40, 0x40]), (4, Problem::SizeMismatch));
    assert_eq!(problem(&[0xc0, 2, 2, 0x40]), (4, Problem::Truncated { needed: 1 }));
    assert_eq!(problem(&[0xb0, 0xff, 0xff, 0xff, 0xff]), (5, Problem::Truncated { needed: 0xffff_ffff }));
    assert_eq!(problem(&[0xe0, 2, 0, 0x3f]), (3, Problem::UnknownConstructor(0x3f)));
    // A list cannot reach beyond the one that it is in.
    assert_eq!(problem(&[0xc0, 4, 1, 0xc0, 3, 1, 0x40]), (5, Problem::Truncated { needed: 2 }));
}

/// `[null; 4294967295]` in ten bytes, and as many lists of such as fit.
#[test]
fn items_without_bytes_do_not_take_memory() {
    let bomb = [0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x40];
    assert_eq!(problem(&bomb).1, Problem::TooManyValues);
    let list = [0xd0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(problem(&list).1, Problem::Truncated { needed: 1 });

    let inner = [0xf0, 0, 0, 0, 5, 0, 0, 4, 0, 0x40];
    let mut many = vec![0xd0, 0, 0, 0, 0, 0, 0, 0, 100];
    (0..100).for_each(|_| many.extend_from_slice(&inner));
    let size = u32::try_from(many.len() - 5).expect("small");
    many[1..5].copy_from_slice(&size.to_be_bytes());
    assert_eq!(problem(&many).1, Problem::TooManyValues, "the allowance is for the whole, not for each array");
}

/// What was read as an array of nulls is as good when it is written in fewer bytes: the allowance does not depend on the length.
#[test]
fn the_allowance_does_not_depend_on_the_length() {
    let [high, low] = u16::try_from(MAX_ITEMS_WITHOUT_BYTES).expect("small").to_be_bytes();
    read(&[0xf0, 0, 0, 0, 5, 0, 0, high, low, 0x40]).expect("as many as allowed");
    assert_eq!(problem(&[0xf0, 0, 0, 0, 5, 0, 0, high, low + 1, 0x40]).1, Problem::TooManyValues);
}

#[test]
fn depth_is_limited_and_skipping_needs_none() {
    let nested = |depth: usize| {
        let mut value = vec![0x40_u8];
        for _ in 0..depth {
            let mut outer = vec![0xd0];
            outer.extend_from_slice(&u32::try_from(value.len() + 4).expect("small").to_be_bytes());
            outer.extend_from_slice(&1_u32.to_be_bytes());
            outer.append(&mut value);
            value = outer;
        }
        value
    };
    read(&nested(MAX_DEPTH)).expect("as deep as allowed");
    assert_eq!(problem(&nested(MAX_DEPTH + 1)).1, Problem::TooDeep);
    let described = [vec![0x00; 100_000], vec![0x40; 100_001]].concat();
    assert_eq!(problem(&described).1, Problem::TooDeep);
    let bytes = Bytes::from(described);
    let mut reader = Reader::new(&bytes);
    reader.skip().expect("descriptors of descriptors are counted, not entered");
    assert!(reader.is_empty());
}

#[test]
fn descriptors_come_in_any_width_and_by_name() {
    let cases: [&[u8]; 4] = [
        &[0x00, 0x53, 0x24],
        &[0x00, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x24],
        &[0x00, 0x52, 0x24],
        &[0x00, 0x70, 0, 0, 0, 0x24],
    ];
    for bytes in cases {
        let bytes = Bytes::copy_from_slice(bytes);
        assert_eq!(Reader::new(&bytes).descriptor(), Ok(Descriptor::Code(0x24)));
    }
    let named = Bytes::from_static(b"\x00\xa3\x01a");
    assert_eq!(Reader::new(&named).descriptor(), Ok(Descriptor::Name(Symbol::from("a"))));
    let other = Bytes::from_static(&[0x00, 0x41]);
    assert!(Reader::new(&other).descriptor().is_err());
}
