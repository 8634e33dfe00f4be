//! A small tree of elements, read and written with `quick-xml`.
//!
//! Requests are read leniently: by local names alone, in any order, because clients differ in prefixes and where they declare them. Answers
//! are written with the prefixes and the order of Azure's, because clients do depend on those: see [`super::atom`].

use std::borrow::Cow;

use quick_xml::{
    Reader, Writer,
    escape::resolve_predefined_entity,
    events::{BytesDecl, BytesEnd, BytesRef, BytesStart, BytesText, Event},
};

/// Deeper than any request of a client; against being made to recurse for ever.
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Element {
    /// Local when read, with its prefix when written.
    pub(super) name: Cow<'static, str>,
    /// Values by name; local names when read.
    pub(super) attributes: Vec<(Cow<'static, str>, String)>,
    pub(super) text: String,
    pub(super) children: Vec<Element>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum XmlError {
    #[error("it is no XML: {0}")]
    Syntax(quick_xml::Error),
    #[error("{0}")]
    Shape(&'static str),
    #[error("the entity &{0}; is not known")]
    Entity(String),
}

impl<E: Into<quick_xml::Error>> From<E> for XmlError {
    fn from(error: E) -> Self {
        Self::Syntax(error.into())
    }
}

impl Element {
    pub(super) fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(super) fn text(name: impl Into<Cow<'static, str>>, text: impl ToString) -> Self {
        Self { text: text.to_string(), ..Self::new(name) }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    pub(super) fn containing(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.children.extend(children);
        self
    }

    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// The type that `i:type` names, without its prefix.
    pub(super) fn type_name(&self) -> Option<&str> {
        self.attribute("type").map(|name| name.rsplit_once(':').map_or(name, |(_, local)| local))
    }

    pub(super) fn read(document: &str) -> Result<Self, XmlError> {
        let mut reader = Reader::from_str(document.trim_start_matches('\u{feff}'));
        let mut open: Vec<Element> = Vec::new();
        let mut root = None;
        loop {
            let closed = match reader.read_event()? {
                Event::Start(_) if open.len() == MAX_DEPTH => return Err(XmlError::Shape("it is too deep")),
                Event::Start(start) => {
                    open.push(opened(&start)?);
                    None
                }
                Event::Empty(start) => Some(opened(&start)?),
                Event::End(_) => open.pop(),
                Event::Text(text) => {
                    append(&mut open, &text.xml10_content());
                    None
                }
                Event::CData(text) => {
                    append(&mut open, &text.xml10_content());
                    None
                }
                Event::GeneralRef(reference) => {
                    append(&mut open, &resolved(&reference)?);
                    None
                }
                Event::DocType(_) => return Err(XmlError::Shape("document types are not taken")),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => None,
                Event::Eof => break,
            };
            let Some(closed) = closed else { continue };
            match open.last_mut() {
                Some(parent) => parent.children.push(closed),
                None if root.is_some() => return Err(XmlError::Shape("it has two roots")),
                None => root = Some(closed),
            }
        }
        match root {
            Some(root) if open.is_empty() => Ok(root),
            _ => Err(XmlError::Shape("it ends too early")),
        }
    }

    pub(super) fn write(&self) -> String {
        let mut writer = Writer::new(Vec::new());
        let declaration = BytesDecl::new("1.0", Some("utf-8"), None);
        let written = writer.write_event(Event::Decl(declaration)).and_then(|()| self.write_to(&mut writer));
        written.expect("memory can be written to");
        String::from_utf8(writer.into_inner()).expect("it was written from strings")
    }

    fn write_to(&self, writer: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
        let attributes = self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_str()));
        let start = BytesStart::new(self.name.as_ref()).with_attributes(attributes);
        if self.text.is_empty() && self.children.is_empty() {
            return writer.write_event(Event::Empty(start));
        }
        writer.write_event(Event::Start(start))?;
        if !self.text.is_empty() {
            writer.write_event(Event::Text(BytesText::new(&self.text)))?;
        }
        self.children.iter().try_for_each(|child| child.write_to(writer))?;
        writer.write_event(Event::End(BytesEnd::new(self.name.as_ref())))
    }
}

fn opened(start: &BytesStart<'_>) -> Result<Element, XmlError> {
    let mut element = Element::new(start.local_name().as_ref().to_owned());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(quick_xml::Error::from)?;
        // Namespaces do not count, and one of them has the prefix `type` nowhere; but `xmlns:type` would have that local name.
        if attribute.key.as_ref().starts_with("xmlns") {
            continue;
        }
        let value = quick_xml::escape::unescape(&attribute.value).map_err(quick_xml::Error::from)?;
        element.attributes.push((attribute.key.local_name().as_ref().to_owned().into(), value.into_owned()));
    }
    Ok(element)
}

fn append(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn resolved(reference: &BytesRef<'_>) -> Result<String, XmlError> {
    if let Some(character) = reference.resolve_char_ref()? {
        return Ok(character.to_string());
    }
    let name: &str = reference;
    resolve_predefined_entity(name).map(str::to_owned).ok_or_else(|| XmlError::Entity(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_references_and_sections_are_read() {
        let document = "\u{feff}<?xml version='1.0'?><!-- x --><a:entry xmlns:a='u' p:type='q:T&amp;'>\
            <b>1 &lt; 2 &amp;&#x26;<![CDATA[<raw>]]></b><c/></a:entry>";
        let root = Element::read(document).unwrap();
        assert_eq!((root.name.as_ref(), root.type_name()), ("entry", Some("T&")));
        assert_eq!(root.child("b").map(|it| it.text.as_str()), Some("1 < 2 &&<raw>"));
        assert!(root.child("c").is_some());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let inner = Element::text("b", " a < b && \"c\" ü ").with("type", "x'\"<&>");
        let root = Element::new("entry").containing([inner, Element::new("empty")]);
        assert_eq!(Element::read(&root.write()).unwrap(), root);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        let deep = format!("{}{}", "<a>".repeat(100), "</a>".repeat(100));
        for document in
            ["", "text", "<a>", "<a></b>", "<a/><b/>", "<a>&other;</a>", "<a b='&other;'/>", "<!DOCTYPE a><a/>", &deep]
        {
            assert!(Element::read(document).is_err(), "{document}");
        }
    }
}
