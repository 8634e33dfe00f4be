//! What must hold for any bytes at all. The random tests and the fuzz targets of `fuzz/` call the same functions.

mod peer;
#[cfg(test)]
mod random;

use bytes::{Bytes, BytesMut};

use crate::{
    decode::{MAX_ITEMS_WITHOUT_BYTES, Reader},
    encode, frame,
    message::{self, Sections},
    performative::{Performative, Sasl},
    value::Value,
};
pub use peer::{conversation, pieces};

/// A value that can be read can be written, and what was written is read as the same and written the same again.
pub fn value(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut skipped = Reader::new(&bytes);
    let skip = skipped.skip();
    let mut reader = Reader::new(&bytes);
    let Ok(value) = reader.value() else { return };
    skip.expect("what can be read can be skipped");
    assert_eq!(skipped.position(), reader.position(), "reading and skipping end at the same place");
    assert!(values(&value) <= bytes.len() + MAX_ITEMS_WITHOUT_BYTES, "no more values than the input justifies");
    let mut written = Vec::new();
    encode::value(&mut written, &value);
    let written = Bytes::from(written);
    let mut reader = Reader::new(&written);
    assert_eq!(reader.value().as_ref(), Ok(&value), "read again");
    assert!(reader.is_empty(), "all that was written is the value");
    let mut again = Vec::new();
    encode::value(&mut again, &value);
    assert_eq!(again, written, "written again");
}

fn values(value: &Value) -> usize {
    1 + match value {
        Value::List(items) => items.iter().map(values).sum(),
        Value::Array(array) => array.items().iter().map(values).sum(),
        Value::Map(map) => map.iter().map(|(key, value)| values(key) + values(value)).sum::<usize>(),
        Value::Described(described) => values(&described.by) + values(&described.value),
        _ => 0,
    }
}

/// Frames that can be read are written as frames that say the same.
pub fn frames(data: &[u8]) {
    let mut input = BytesMut::from(data);
    while let Ok(Some(frame)) = frame::next(&mut input, 65536) {
        let mut reader = Reader::new(&frame.body);
        match frame.kind {
            frame::Kind::Amqp => {
                let Ok(read) = Performative::read(&mut reader) else { continue };
                let mut written = Vec::new();
                read.write(&mut written);
                let written = Bytes::from(written);
                let mut reader = Reader::new(&written);
                assert_eq!(Performative::read(&mut reader).as_ref(), Ok(&read));
                assert!(reader.is_empty());
            }
            frame::Kind::Sasl => {
                let Ok(read) = Sasl::read(&mut reader) else { continue };
                let mut written = Vec::new();
                read.write(&mut written);
                let written = Bytes::from(written);
                assert_eq!(Sasl::read(&mut Reader::new(&written)).as_ref(), Ok(&read));
            }
        }
    }
}

/// Every part of a message can be asked for; rebuilt, it has the same bare message.
pub fn message(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(sections) = Sections::find(bytes.clone()) else { return };
    // Parts may be nonsense on their own; each says so for itself.
    let header = sections.header();
    let delivery_annotations = sections.delivery_annotations();
    let message_annotations = sections.message_annotations();
    let properties = sections.properties();
    drop((sections.application_properties(), sections.footer(), sections.value(), sections.sequences()));
    if let Ok(data) = sections.data() {
        let len: usize = data.iter().map(Bytes::len).sum();
        assert!(len <= bytes.len(), "data is part of the message");
    }
    if let (Ok(header), Ok(delivery), Ok(annotations)) = (&header, &delivery_annotations, &message_annotations) {
        let mut rebuilt = Vec::new();
        message::write(&mut rebuilt, header.as_ref(), delivery, annotations, &sections.bare());
        if !rebuilt.is_empty() {
            let again = Sections::find(Bytes::from(rebuilt)).expect("sound parts make a sound message");
            assert_eq!(again.bare(), sections.bare());
            assert_eq!((again.header(), again.message_annotations()), (header_of(header), Ok(annotations.clone())));
        }
    }
    if let Ok(Some(properties)) = properties {
        let again = Sections::find(Bytes::from(sections.bare_with(&properties))).expect("sound");
        assert_eq!(again.properties(), Ok(Some(properties)));
        assert_eq!(again.body(), sections.body());
    }
    if let Ok(batch) = message::batch(bytes) {
        assert!(!batch.messages.is_empty());
    }
}

fn header_of(header: &Option<message::Header>) -> crate::decode::Result<Option<message::Header>> {
    Ok(header.clone())
}
