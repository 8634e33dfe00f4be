//! Entries and lists of them, in Atom: the frame that every description is in.

use super::xml::{Element, XmlError};

const ATOM: &str = "http://www.w3.org/2005/Atom";

/// One description, with the name that its entry has.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) title: String,
    pub(crate) description: Element,
}

/// What an answer holds.
#[derive(Debug)]
pub(crate) enum Answer {
    Entry(Entry),
    /// One page. The service answers an empty one for an entity that is not there.
    List {
        entries: Vec<Entry>,
        /// There is another page behind it.
        more: bool,
    },
}

pub(crate) fn read(document: &str) -> Result<Answer, String> {
    let root = Element::read(document).map_err(|error: XmlError| error.to_string())?;
    match root.local() {
        "entry" => entry(&root, &[]).map(Answer::Entry),
        "feed" => {
            let entries = root.children.iter().filter(|child| child.local() == "entry");
            let entries = entries.map(|child| entry(child, &[&root])).collect::<Result<_, _>>()?;
            let more = root.children.iter().any(|it| it.local() == "link" && it.attribute("rel") == Some("next"));
            Ok(Answer::List { entries, more })
        }
        other => Err(format!("<{other}> is neither an entry nor a feed")),
    }
}

fn entry(entry: &Element, around: &[&Element]) -> Result<Entry, String> {
    let content = entry.child("content").ok_or("an entry has no content")?;
    let description = content.children.first().ok_or("an entry's content is empty")?;
    let mut description = description.clone();
    // The nearest declaration of a prefix is the one that counts.
    for outer in [content, entry].iter().chain(around) {
        description.declare(outer);
    }
    // Atom's own namespace, when the description was written with prefixes only, changes nothing for it.
    Ok(Entry { title: entry.said("title").unwrap_or_default().to_owned(), description })
}

/// What a request sends.
pub(crate) fn write(description: Element) -> String {
    let content = Element::new("content").with("type", "application/xml").containing([description]);
    Element::new("entry").with("xmlns", ATOM).containing([content]).write()
}
