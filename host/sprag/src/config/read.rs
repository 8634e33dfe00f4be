//! Reads a TOML tree by the key table, and says for everything that is wrong where it is and what would be right.

use std::{cell::RefCell, collections::BTreeSet, net::SocketAddr, ops::Range, path::Path, time::Duration};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    keys::{Key, Kind, Section},
    units,
};

/// Something that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Line and column, from 1. None when it is about no place in a file.
    pub at: Option<(usize, usize)>,
    pub code: &'static str,
    pub text: String,
}

pub(crate) const SYNTAX: &str = "SPR0101";
pub(crate) const UNKNOWN_KEY: &str = "SPR0102";
pub(crate) const NOT_YET: &str = "SPR0103";
pub(crate) const BAD_VALUE: &str = "SPR0104";
pub(crate) const MISSING: &str = "SPR0105";
pub(crate) const UNKNOWN_NAME: &str = "SPR0106";
pub(crate) const TWICE: &str = "SPR0107";
pub(crate) const SECRET: &str = "SPR0108";

/// The file being read and what was found in it.
pub(crate) struct Source<'i> {
    text: &'i str,
    pub base: &'i Path,
    findings: RefCell<Vec<Finding>>,
}

impl<'i> Source<'i> {
    pub(crate) fn new(text: &'i str, base: &'i Path) -> Self {
        Self { text, base, findings: RefCell::default() }
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        let mut findings = self.findings.into_inner();
        findings.sort_by_key(|finding| finding.at);
        findings
    }

    pub(crate) fn found(&self, span: Option<Range<usize>>, code: &'static str, text: impl Into<String>) {
        let at = span.map(|span| self.place(span.start));
        self.findings.borrow_mut().push(Finding { at, code, text: text.into() });
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

/// One table, read by its section of the key table.
pub(crate) struct Table<'a, 'i> {
    pub source: &'a Source<'i>,
    section: &'static Section,
    /// None for a table that is not written: every key has its default.
    table: Option<&'a DeTable<'i>>,
    span: Option<Range<usize>>,
    /// For messages: `[host]`, `[[queue]] "orders"`.
    path: String,
}

impl<'a, 'i> Table<'a, 'i> {
    pub(crate) fn new(
        source: &'a Source<'i>,
        section: &'static Section,
        table: Option<(&'a DeTable<'i>, Range<usize>)>,
        path: impl Into<String>,
    ) -> Self {
        let (table, span) = table.map_or((None, None), |(table, span)| (Some(table), Some(span)));
        let this = Self { source, section, table, span, path: path.into() };
        this.refuse_unknown();
        this
    }

    fn refuse_unknown(&self) {
        for name in self.table.into_iter().flat_map(|table| table.keys()) {
            let text = name.get_ref().as_ref();
            if self.section.keys.iter().any(|key| key.name == text) {
                continue;
            }
            if self.section.later.contains(&text) {
                self.source.found(
                    Some(name.span()),
                    NOT_YET,
                    format!("`{text}` in {} is not in this build yet", self.place_name()),
                );
                continue;
            }
            let known = self.section.keys.iter().map(|key| key.name);
            let advice = match nearest(text, known.clone()) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => format!("; it takes {}", known.collect::<Vec<_>>().join(", ")),
            };
            self.source.found(
                Some(name.span()),
                UNKNOWN_KEY,
                format!("unknown key `{text}` in {}{advice}", self.place_name()),
            );
        }
    }

    fn place_name(&self) -> &str {
        if self.path.is_empty() { "the file" } else { &self.path }
    }

    pub(crate) fn span(&self) -> Option<Range<usize>> {
        self.span.clone()
    }

    /// Where a key's value is, else where its table is.
    pub(crate) fn span_of(&self, name: &str) -> Option<Range<usize>> {
        self.table.and_then(|table| table.get(name)).map(Spanned::span).or_else(|| self.span())
    }

    fn key(&self, name: &str) -> &'static Key {
        self.section
            .keys
            .iter()
            .find(|key| key.name == name)
            .unwrap_or_else(|| unreachable!("the reader asks for {name}, which the key table does not declare"))
    }

    fn written(&self, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
        let key = self.key(name);
        let value = self.table.and_then(|table| table.get(name));
        if value.is_none() && key.required {
            self.source.found(
                self.span(),
                MISSING,
                format!("{} needs `{name}`, for instance {name} = {}", self.path, key.example),
            );
        }
        value
    }

    fn bad(&self, name: &str, span: Range<usize>, text: impl std::fmt::Display) {
        self.source.found(Some(span), BAD_VALUE, format!("`{name}` in {}: {text}", self.place_name()));
    }

    /// The value if it is written and right, else the default, which always is.
    fn read<T>(&self, name: &str, parse: impl Fn(&DeValue<'_>, &Key) -> Result<T, String>) -> Option<T> {
        let key = self.key(name);
        if let Some(value) = self.written(name) {
            match parse(value.get_ref(), key) {
                Ok(value) => return Some(value),
                Err(text) => self.bad(name, value.span(), text),
            }
        }
        if key.default.is_empty() {
            return None;
        }
        let default = DeValue::parse(key.default).expect("defaults of the key table are TOML");
        Some(parse(default.get_ref(), key).expect("defaults of the key table are right"))
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.read(name, |value, key| {
            let text = as_text(value)?;
            match key.kind {
                Kind::Name => check_name(text)?,
                Kind::Choice(choices) if !choices.contains(&text) => {
                    let advice = nearest(text, choices.iter().copied())
                        .map(|near| format!("; did you mean {near:?}?"))
                        .unwrap_or_default();
                    return Err(format!("{text:?} is not one of {}{advice}", choices.join(", ")));
                }
                _ if text.is_empty() => return Err("it is empty".to_owned()),
                _ => {}
            }
            Ok(text.to_owned())
        })
    }

    pub(crate) fn boolean(&self, name: &str) -> Option<bool> {
        self.read(name, |value, _| {
            value.as_bool().ok_or_else(|| format!("expected true or false, not {}", described(value)))
        })
    }

    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        self.read(name, |value, key| {
            let Kind::Count(least, most) = key.kind else { unreachable!("{name} is no count") };
            let digits =
                value.as_integer().ok_or_else(|| format!("expected a whole number, not {}", described(value)))?;
            let plain = i128::from_str_radix(&digits.as_str().replace('_', ""), digits.radix()).ok();
            match plain.and_then(|n| u64::try_from(n).ok()).filter(|n| (least..=most).contains(n)) {
                Some(n) => Ok(n),
                None => Err(format!("{digits} is not between {least} and {most}")),
            }
        })
    }

    pub(crate) fn duration(&self, name: &str) -> Option<Duration> {
        self.read(name, |value, key| {
            let Kind::Duration(least, most) = key.kind else { unreachable!("{name} is no duration") };
            let text = as_text(value).map_err(|error| format!("{error}, such as \"30s\""))?;
            let duration = units::duration(text)?;
            let range = units::duration(least).expect("a duration")..=units::duration(most).expect("a duration");
            if range.contains(&duration) {
                Ok(duration)
            } else {
                Err(format!("{text:?} is not between {least} and {most}"))
            }
        })
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        self.read(name, |value, key| {
            let Kind::Bytes(least, most) = key.kind else { unreachable!("{name} is no size") };
            let text = as_text(value).map_err(|error| format!("{error}, such as \"64MiB\""))?;
            let size = units::bytes(text)?;
            let range = units::bytes(least).expect("a size")..=units::bytes(most).expect("a size");
            if range.contains(&size) { Ok(size) } else { Err(format!("{text:?} is not between {least} and {most}")) }
        })
    }

    pub(crate) fn address(&self, name: &str) -> Option<SocketAddr> {
        self.read(name, |value, _| {
            let text = as_text(value)?;
            text.replace("localhost:", "127.0.0.1:")
                .parse()
                .map_err(|_| format!("{text:?} is not an address such as \"127.0.0.1:8080\""))
        })
    }

    /// An address, or none for `off`.
    pub(crate) fn address_or_off(&self, name: &str) -> Option<Option<SocketAddr>> {
        self.read(name, |value, _| match as_text(value)? {
            "off" => Ok(None),
            text => text
                .replace("localhost:", "127.0.0.1:")
                .parse()
                .map(Some)
                .map_err(|_| format!("{text:?} is neither an address such as \"127.0.0.1:5672\" nor \"off\"")),
        })
    }

    /// Whether the file has this key.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.is_some_and(|table| table.get(self.key(name).name).is_some())
    }

    /// A secret by reference; never written in the file itself.
    pub(crate) fn secret(&self, name: &str) -> Option<String> {
        let value = self.written(name)?;
        let text = value.get_ref().as_str().unwrap_or_default();
        match units::reference(text, self.source.base) {
            Some(Ok(secret)) => Some(secret),
            Some(Err(error)) => {
                self.source.found(Some(value.span()), SECRET, format!("`{name}` in {}: {error}", self.place_name()));
                None
            }
            None => {
                let text = format!(
                    "`{name}` in {}: secrets are not written here; use \"env:NAME\" or \"file:PATH\"",
                    self.path
                );
                self.source.found(Some(value.span()), SECRET, text);
                None
            }
        }
    }

    /// An array of texts with their places.
    pub(crate) fn texts(&self, name: &str) -> Option<Vec<(String, Range<usize>)>> {
        let value = self.written(name)?;
        let Some(items) = value.get_ref().as_array() else {
            self.bad(
                name,
                value.span(),
                format!("expected a list such as {}, not {}", self.key(name).example, described(value.get_ref())),
            );
            return None;
        };
        let mut seen = BTreeSet::new();
        let mut texts = Vec::new();
        for item in items.iter() {
            let checked = as_text(item.get_ref()).and_then(|text| {
                match self.key(name).kind {
                    Kind::Names => check_name(text)?,
                    _ if text.is_empty() => return Err("an entry is empty".to_owned()),
                    _ => {}
                }
                if seen.insert(text.to_owned()) { Ok(text.to_owned()) } else { Err(format!("{text:?} is there twice")) }
            });
            match checked {
                Ok(text) => texts.push((text, item.span())),
                Err(error) => self.bad(name, item.span(), error),
            }
        }
        Some(texts)
    }

    /// A table within this one; None when it is not written.
    pub(crate) fn table(&self, name: &str) -> Option<Table<'a, 'i>> {
        let Kind::Table(section) = self.key(name).kind else { unreachable!("{name} is no table") };
        let value = self.written(name)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Table::new(self.source, section, Some((table, value.span())), self.within(name))),
            None => {
                self.bad(
                    name,
                    value.span(),
                    format!("expected a table such as {}, not {}", self.key(name).example, described(value.get_ref())),
                );
                None
            }
        }
    }

    /// The tables of an array.
    pub(crate) fn tables(&self, name: &str) -> Vec<Table<'a, 'i>> {
        let Kind::Tables(section) = self.key(name).kind else { unreachable!("{name} is no list of tables") };
        let Some(value) = self.written(name) else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            let hint = if self.path.is_empty() {
                format!("write [[{name}]]")
            } else {
                format!("expected a list such as {}", self.key(name).example)
            };
            self.bad(name, value.span(), format!("{hint}, not {}", described(value.get_ref())));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items.iter() {
            match item.get_ref().as_table() {
                Some(table) => {
                    let label =
                        table.get("name").and_then(|name| name.get_ref().as_str()).map(|name| format!(" {name:?}"));
                    let path = if self.path.is_empty() { format!("[[{name}]]") } else { self.within(name) };
                    tables.push(Table::new(
                        self.source,
                        section,
                        Some((table, item.span())),
                        path + &label.unwrap_or_default(),
                    ));
                }
                None => self.bad(name, item.span(), format!("expected a table, not {}", described(item.get_ref()))),
            }
        }
        tables
    }

    /// A text, or a table within this one.
    pub(crate) fn text_or_table(&self, name: &str) -> Option<TextOrTable<'a, 'i>> {
        let Kind::TextOrTable(section) = self.key(name).kind else { unreachable!("{name} is no text or table") };
        let value = self.written(name)?;
        match value.get_ref() {
            DeValue::String(text) if text.is_empty() => self.bad(name, value.span(), "it is empty"),
            DeValue::String(text) => return Some(TextOrTable::Text(text.to_string())),
            DeValue::Table(table) => {
                let table = Table::new(self.source, section, Some((table, value.span())), self.within(name));
                return Some(TextOrTable::Table(table));
            }
            other => {
                let text =
                    format!("expected a text such as {}, or a table, not {}", self.key(name).example, described(other));
                self.bad(name, value.span(), text);
            }
        }
        None
    }

    /// A table whose keys nobody here knows.
    pub(crate) fn free(&self, name: &str) -> Option<&'a DeTable<'i>> {
        let value = self.written(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.bad(name, value.span(), format!("expected a table, not {}", described(value.get_ref())));
        }
        table
    }

    fn within(&self, name: &str) -> String {
        if self.path.is_empty() { format!("[{name}]") } else { format!("`{name}` of {}", self.path) }
    }
}

/// What stands where both are allowed.
pub(crate) enum TextOrTable<'a, 'i> {
    Text(String),
    Table(Table<'a, 'i>),
}

fn as_text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("expected a text in quotes, not {}", described(value)))
}

fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(n) => format!("the number {n}"),
        DeValue::Boolean(b) => b.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

/// Names go into keys, file names and messages.
pub(crate) fn check_name(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("a name must not be blank".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err(format!("the name {text:?} has control characters"));
    }
    let units = text.encode_utf16().count();
    if units > sprag_core::identity::MAX_ENDPOINT {
        return Err(format!(
            "the name has {units} UTF-16 units; at most {} are allowed",
            sprag_core::identity::MAX_ENDPOINT
        ));
    }
    Ok(())
}

/// The known word that a mistyped one most likely meant.
pub(crate) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
