//! Entries and feeds, as Azure writes them and as far as the clients read them.
//!
//! What they depend on: JavaScript takes names from the path of `id` (`/Subscriptions/` and `/Rules/` with capitals), Python from `title`;
//! Python takes the second of exactly two `link`s for the next page, JavaScript the one with `rel="next"`.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sprag_core::time::Timestamp;

use super::xml::Element;

pub(super) const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";
const ATOM: &str = "http://www.w3.org/2005/Atom";
const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
/// What a path cannot have as it is.
const UNSAFE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// One entity or rule.
#[derive(Debug)]
pub(super) struct Entry {
    /// Behind the host.
    pub(super) path: String,
    pub(super) title: String,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// Of Azure's type, without the namespaces.
    pub(super) description: Element,
}

/// What is the same in all of an answer.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// As the client named it.
    pub(super) host: &'a str,
    pub(super) api_version: &'a str,
}

impl Frame<'_> {
    /// Azure's addresses are `https`, and so are these: clients take names from them and do not go there.
    fn address(&self, path: &str, more: &str) -> String {
        let path = utf8_percent_encode(path, UNSAFE);
        let version = utf8_percent_encode(self.api_version, UNSAFE);
        format!("https://{}/{path}?api-version={version}{more}", self.host)
    }

    fn element(&self, entry: Entry) -> Element {
        let address = self.address(&entry.path, "");
        let description = entry.description.with("xmlns", SERVICE_BUS).with("xmlns:i", INSTANCE);
        Element::new("entry").with("xmlns", ATOM).containing([
            Element::text("id", &address),
            Element::text("title", &entry.title).with("type", "text"),
            Element::text("published", entry.created_at),
            Element::text("updated", entry.updated_at),
            Element::new("author").containing([Element::text("name", "sprag")]),
            Element::new("link").with("rel", "self").with("href", address),
            Element::new("content").with("type", "application/xml").containing([description]),
        ])
    }

    pub(super) fn entry(&self, status: StatusCode, entry: Entry) -> Response {
        answer(status, "entry", &self.element(entry))
    }

    /// `next` is where the next page starts and how many it has.
    pub(super) fn feed(
        &self,
        path: &str,
        now: Timestamp,
        entries: Vec<Entry>,
        next: Option<(usize, usize)>,
    ) -> Response {
        let address = self.address(path, "");
        let mut feed = Element::new("feed").with("xmlns", ATOM).containing([
            Element::text("title", path.rsplit('/').next().unwrap_or_default()).with("type", "text"),
            Element::text("id", &address),
            Element::text("updated", now),
            Element::new("link").with("rel", "self").with("href", address),
        ]);
        if let Some((skip, top)) = next {
            let address = self.address(path, &format!("&$skip={skip}&$top={top}"));
            feed.children.push(Element::new("link").with("rel", "next").with("href", address));
        }
        feed.children.extend(entries.into_iter().map(|entry| self.element(entry)));
        answer(StatusCode::OK, "feed", &feed)
    }
}

fn answer(status: StatusCode, kind: &str, body: &Element) -> Response {
    let content_type = format!("application/atom+xml;type={kind};charset=utf-8");
    (status, [(header::CONTENT_TYPE, content_type)], body.write()).into_response()
}
