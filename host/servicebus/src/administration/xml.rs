//! A small tree of elements that loses nothing of what a later write needs: prefixes, namespaces and elements that nobody here knows.
//!
//! The service answers with prefixes of its own choice and may answer more than it did yesterday. So elements are *found* by their local name
//! and *written* as they were read. Comments and the white space between elements are left out.

use quick_xml::{
    Reader, Writer,
    escape::resolve_predefined_entity,
    events::{BytesDecl, BytesEnd, BytesRef, BytesStart, BytesText, Event},
};

/// Deeper than any answer of the service; against being made to recurse for ever.
const MAX_DEPTH: usize = 64;
const NAMESPACE: &str = "xmlns";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Element {
    /// With its prefix.
    pub(crate) name: String,
    /// With their prefixes; those that declare namespaces too.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) text: String,
    pub(crate) children: Vec<Element>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum XmlError {
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

fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

impl Element {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(crate) fn with_text(name: impl Into<String>, text: impl ToString) -> Self {
        Self { text: text.to_string(), ..Self::new(name) }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn containing(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.children.extend(children);
        self
    }

    pub(crate) fn local(&self) -> &str {
        local(&self.name)
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.local() == name)
    }

    /// What a child says. One that says nothing counts as one that is not there.
    pub(crate) fn said(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.trim()).filter(|text| !text.is_empty())
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let given = |(it, _): &&(String, String)| !declares(it) && local(it) == name;
        self.attributes.iter().find(given).map(|(_, value)| value.as_str())
    }

    /// The type that `i:type` names, without its prefix.
    pub(crate) fn type_name(&self) -> Option<&str> {
        self.attribute("type").map(local)
    }

    /// The same with this prefix all the way down, so that it belongs to the namespace of `parent`.
    pub(crate) fn within(mut self, parent: &Element) -> Self {
        if let Some((prefix, _)) = parent.name.rsplit_once(':') {
            self.prefix(prefix);
        }
        self
    }

    fn prefix(&mut self, prefix: &str) {
        self.name = format!("{prefix}:{}", self.local());
        self.children.iter_mut().for_each(|child| child.prefix(prefix));
    }

    /// Namespaces that are declared around it, so that it can stand elsewhere.
    pub(crate) fn declare(&mut self, around: &Element) {
        for (name, value) in around.attributes.iter().filter(|(name, _)| declares(name)) {
            if !self.attributes.iter().any(|(own, _)| own == name) {
                self.attributes.push((name.clone(), value.clone()));
            }
        }
    }

    pub(crate) fn read(document: &str) -> Result<Self, XmlError> {
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
            let Some(mut closed) = closed else { continue };
            if !closed.children.is_empty() && closed.text.trim().is_empty() {
                closed.text.clear();
            }
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

    pub(crate) fn write(&self) -> String {
        let mut writer = Writer::new(Vec::new());
        let declaration = BytesDecl::new("1.0", Some("utf-8"), None);
        let written = writer.write_event(Event::Decl(declaration)).and_then(|()| self.write_to(&mut writer));
        written.expect("memory can be written to");
        String::from_utf8(writer.into_inner()).expect("it was written from strings")
    }

    fn write_to(&self, writer: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
        let attributes = self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let start = BytesStart::new(self.name.as_str()).with_attributes(attributes);
        if self.text.is_empty() && self.children.is_empty() {
            return writer.write_event(Event::Empty(start));
        }
        writer.write_event(Event::Start(start))?;
        if !self.text.is_empty() {
            writer.write_event(Event::Text(BytesText::new(&self.text)))?;
        }
        self.children.iter().try_for_each(|child| child.write_to(writer))?;
        writer.write_event(Event::End(BytesEnd::new(self.name.as_str())))
    }
}

fn declares(attribute: &str) -> bool {
    attribute.strip_prefix(NAMESPACE).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn opened(start: &BytesStart<'_>) -> Result<Element, XmlError> {
    let mut element = Element::new(start.name().as_ref());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(quick_xml::Error::from)?;
        let value = quick_xml::escape::unescape(&attribute.value).map_err(quick_xml::Error::from)?;
        element.attributes.push((attribute.key.as_ref().to_owned(), value.into_owned()));
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
    fn what_is_read_is_written_again() {
        let document = "<?xml version=\"1.0\" encoding=\"utf-8\"?><a:entry xmlns:a=\"u\" xmlns=\"v\">\
            <b p:type=\"q:T&amp;\" xmlns:p=\"w\"> 1 &lt; 2 </b><d2p1:c xmlns:d2p1=\"x\">7</d2p1:c><e/></a:entry>";
        let root = Element::read(document).expect("it is XML");
        assert_eq!(root.write(), document);
        assert_eq!(
            (root.local(), root.said("b"), root.said("c"), root.said("e")),
            ("entry", Some("1 < 2"), Some("7"), None)
        );
        assert_eq!(root.child("b").and_then(Element::type_name), Some("T&"));
        assert_eq!(root.attribute("a"), None, "a namespace is no attribute");
    }

    #[test]
    fn sections_references_and_white_space() {
        let root =
            Element::read("\u{feff}<a>\n  <b>x&#x26;<![CDATA[<y>]]></b>\n  <!-- z -->\n</a>").expect("it is XML");
        assert_eq!(root.write(), "<?xml version=\"1.0\" encoding=\"utf-8\"?><a><b>x&amp;&lt;y&gt;</b></a>");
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
