//! Where the sections of a message are, found by stepping from one to the next.

use std::ops::Range;

use bytes::Bytes;

use super::{Header, Properties, read_binary, read_map};
use crate::{
    decode::{DecodeError, Problem, Reader, Result},
    performative::{descriptors, fields::code_of},
    value::{Map, Value},
};

/// Which of the three kinds of body a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    Data,
    Sequence,
    Value,
}

/// An encoded message and where its sections are. Ranges are of whole sections, descriptors included. Nothing has been read but the
/// constructors, so the sections' contents may still turn out to be nonsense when they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    message: Bytes,
    header: Option<Range<usize>>,
    delivery_annotations: Option<Range<usize>>,
    message_annotations: Option<Range<usize>>,
    properties: Option<Range<usize>>,
    application_properties: Option<Range<usize>>,
    /// All body sections: data and sequence may come several times.
    body: Option<(BodyKind, Range<usize>)>,
    footer: Option<Range<usize>>,
    /// Where the broker's part (header, annotations) ends.
    bare: usize,
}

impl Sections {
    /// Sections have to be in the standard's order, but that the footer may be before the body. A message without any is not a message; one without a body is let through, since
    /// clients write that for an empty one.
    pub fn find(message: Bytes) -> Result<Self> {
        if message.is_empty() {
            return Err(DecodeError { at: 0, problem: Problem::EmptyMessage });
        }
        let mut found = Self {
            message: Bytes::new(),
            header: None,
            delivery_annotations: None,
            message_annotations: None,
            properties: None,
            application_properties: None,
            body: None,
            footer: None,
            bare: 0,
        };
        let mut reader = Reader::new(&message);
        let mut last = 0;
        while !reader.is_empty() {
            let from = reader.position();
            let code = code_of(&mut reader, "message section")?;
            reader.skip()?;
            let range = from..reader.position();
            let repeatable = matches!(code, descriptors::DATA | descriptors::SEQUENCE);
            // rhea writes the footer before the body, so its place among those two does not count.
            let is_footer = code == descriptors::FOOTER;
            let out_of_order = match is_footer {
                true => found.footer.is_some(),
                false => {
                    let behind_footer = found.footer.is_some() && code < descriptors::DATA;
                    code < last || (code == last && !repeatable) || behind_footer
                }
            };
            let parted = found.body.as_ref().is_some_and(|(_, body)| body.end != from);
            let other_body = found.body.is_some() && !is_footer && (code != last || parted);
            if out_of_order || other_body {
                return Err(DecodeError { at: from, problem: Problem::SectionOrder(name(code)) });
            }
            if !is_footer {
                last = code;
            }
            let kind = match code {
                descriptors::DATA => BodyKind::Data,
                descriptors::SEQUENCE => BodyKind::Sequence,
                descriptors::VALUE => BodyKind::Value,
                _ => {
                    let slot = match code {
                        descriptors::HEADER => &mut found.header,
                        descriptors::DELIVERY_ANNOTATIONS => &mut found.delivery_annotations,
                        descriptors::MESSAGE_ANNOTATIONS => &mut found.message_annotations,
                        descriptors::PROPERTIES => &mut found.properties,
                        descriptors::APPLICATION_PROPERTIES => &mut found.application_properties,
                        descriptors::FOOTER => &mut found.footer,
                        _ => {
                            let problem = Problem::UnknownDescriptor { what: "message section" };
                            return Err(DecodeError { at: from, problem });
                        }
                    };
                    if code < descriptors::PROPERTIES {
                        found.bare = range.end;
                    }
                    *slot = Some(range);
                    continue;
                }
            };
            match &mut found.body {
                Some((_, body)) => body.end = range.end,
                body => *body = Some((kind, range)),
            }
        }
        found.message = message;
        Ok(found)
    }

    /// A reader at the value of a section.
    fn at(&self, range: &Range<usize>) -> Result<Reader<'_>> {
        let mut reader = Reader::at(&self.message, range.start);
        reader.descriptor()?;
        Ok(reader)
    }

    /// The whole message.
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    pub fn header(&self) -> Result<Option<Header>> {
        self.header.as_ref().map(|range| Header::read(&mut self.at(range)?)).transpose()
    }

    pub fn delivery_annotations(&self) -> Result<Map> {
        self.map(self.delivery_annotations.as_ref(), "delivery-annotations")
    }

    pub fn message_annotations(&self) -> Result<Map> {
        self.map(self.message_annotations.as_ref(), "message-annotations")
    }

    pub fn properties(&self) -> Result<Option<Properties>> {
        self.properties.as_ref().map(|range| Properties::read(&mut self.at(range)?)).transpose()
    }

    pub fn application_properties(&self) -> Result<Map> {
        self.map(self.application_properties.as_ref(), "application-properties")
    }

    pub fn footer(&self) -> Result<Map> {
        self.map(self.footer.as_ref(), "footer")
    }

    fn map(&self, range: Option<&Range<usize>>, field: &'static str) -> Result<Map> {
        range.map_or_else(|| Ok(Map::new()), |range| read_map(&mut self.at(range)?, field))
    }

    pub fn body_kind(&self) -> Option<BodyKind> {
        self.body.as_ref().map(|(kind, _)| *kind)
    }

    /// The encoded body sections, sharing memory.
    pub fn body(&self) -> Bytes {
        self.part(self.body.as_ref().map(|(_, range)| range))
    }

    /// The encoded footer, sharing memory.
    pub fn raw_footer(&self) -> Bytes {
        self.part(self.footer.as_ref())
    }

    /// The encoded application properties, sharing memory.
    pub fn raw_application_properties(&self) -> Bytes {
        self.part(self.application_properties.as_ref())
    }

    fn part(&self, range: Option<&Range<usize>>) -> Bytes {
        range.map_or_else(Bytes::new, |range| self.message.slice(range.clone()))
    }

    /// What the sender wrote for the receiver, from the properties to the footer, sharing memory.
    pub fn bare(&self) -> Bytes {
        self.message.slice(self.bare..)
    }

    /// The same behind other properties: a broker gives a message-id to a message that has none.
    pub fn bare_with(&self, properties: &Properties) -> Vec<u8> {
        let rest = self.properties.as_ref().map_or(self.bare, |range| range.end);
        let mut out = Vec::with_capacity(self.message.len() - rest + 64);
        properties.write(&mut out);
        out.extend_from_slice(&self.message[rest..]);
        out
    }

    /// The contents of the data sections, sharing memory; nothing for another kind of body.
    pub fn data(&self) -> Result<Vec<Bytes>> {
        let Some((BodyKind::Data, range)) = &self.body else { return Ok(Vec::new()) };
        let mut sections = Vec::new();
        let mut reader = Reader::at(&self.message, range.start);
        while reader.position() < range.end {
            reader.descriptor()?;
            sections.push(read_binary(&mut reader, "data")?);
        }
        Ok(sections)
    }

    /// The value of a body that is one.
    pub fn value(&self) -> Result<Option<Value>> {
        match &self.body {
            Some((BodyKind::Value, range)) => self.at(range)?.value().map(Some),
            _ => Ok(None),
        }
    }

    /// The lists of a body of sequences.
    pub fn sequences(&self) -> Result<Vec<Value>> {
        let Some((BodyKind::Sequence, range)) = &self.body else { return Ok(Vec::new()) };
        let mut sections = Vec::new();
        let mut reader = Reader::at(&self.message, range.start);
        while reader.position() < range.end {
            reader.descriptor()?;
            sections.push(reader.value()?);
        }
        Ok(sections)
    }
}

fn name(code: u64) -> &'static str {
    match code {
        descriptors::HEADER => "header",
        descriptors::DELIVERY_ANNOTATIONS => "delivery-annotations",
        descriptors::MESSAGE_ANNOTATIONS => "message-annotations",
        descriptors::PROPERTIES => "properties",
        descriptors::APPLICATION_PROPERTIES => "application-properties",
        descriptors::DATA => "data",
        descriptors::SEQUENCE => "amqp-sequence",
        descriptors::VALUE => "amqp-value",
        descriptors::FOOTER => "footer",
        _ => "of an unknown type",
    }
}
