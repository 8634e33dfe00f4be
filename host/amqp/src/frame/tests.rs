use bytes::BytesMut;

use super::*;

fn take(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    next(&mut BytesMut::from(bytes), 64)
}

#[test]
fn frames_come_out_as_their_bytes_come_in() {
    let mut bytes = Vec::new();
    write(&mut bytes, Kind::Amqp, 7, |out| out.extend_from_slice(b"one"));
    write_empty(&mut bytes);
    write(&mut bytes, Kind::Sasl, 0, |out| out.extend_from_slice(b"two"));
    let mut input = BytesMut::new();
    let mut frames = Vec::new();
    for byte in bytes {
        input.extend_from_slice(&[byte]);
        frames.extend(next(&mut input, 64).expect("sound"));
    }
    let frame = |kind, channel, body: &'static [u8]| Frame { kind, channel, body: Bytes::from_static(body) };
    assert_eq!(frames, [frame(Kind::Amqp, 7, b"one"), frame(Kind::Amqp, 0, b""), frame(Kind::Sasl, 0, b"two")]);
    assert!(input.is_empty());
}

#[test]
fn an_extended_header_is_passed_over() {
    let frame = take(&[0, 0, 0, 13, 3, 0, 0, 1, 0xaa, 0xaa, 0xaa, 0xaa, b'x']).expect("sound").expect("whole");
    assert_eq!((frame.channel, &frame.body[..]), (1, &b"x"[..]));
}

#[test]
fn sizes_that_cannot_be_are_refused_before_the_frame_is_whole() {
    assert_eq!(take(&[0, 0, 0, 7, 2, 0, 0, 0]), Err(FrameError::TooShort { size: 7 }));
    assert_eq!(take(&[0, 0, 0, 65, 2, 0, 0, 0]), Err(FrameError::TooLarge { size: 65, max: 64 }));
    assert_eq!(take(&[0xff; 8]), Err(FrameError::TooLarge { size: u32::MAX, max: 64 }));
    assert_eq!(take(&[0, 0, 0, 16, 1, 0, 0, 0]), Err(FrameError::DataOffset { offset: 4, size: 16 }));
    assert_eq!(take(&[0, 0, 0, 16, 5, 0, 0, 0]), Err(FrameError::DataOffset { offset: 20, size: 16 }));
    assert_eq!(take(&[0, 0, 0, 16, 2, 9, 0, 0]), Err(FrameError::UnknownKind(9)));
    assert_eq!(take(&[0, 0, 0, 64, 2, 0, 0, 0]), Ok(None), "the largest one is waited for");
    assert_eq!(take(&[0xff; 7]), Ok(None));
}

#[test]
fn a_body_shares_memory_with_the_input() {
    let mut bytes = Vec::new();
    write(&mut bytes, Kind::Amqp, 0, |out| out.extend_from_slice(&[1; 40]));
    let mut input = BytesMut::from(&bytes[..]);
    let place = input.as_ptr() as usize + HEADER;
    let frame = next(&mut input, 64).expect("sound").expect("whole");
    assert_eq!(frame.body.as_ptr() as usize, place);
}

#[test]
fn headers_are_told_apart() {
    for layer in [Layer::Amqp, Layer::Tls, Layer::Sasl] {
        assert_eq!(Layer::of(layer.header()), Some(layer));
    }
    assert_eq!(Layer::of(*b"AMQP\x00\x00\x09\x01"), None);
    assert_eq!(Layer::of(*b"GET / HT"), None);
}
