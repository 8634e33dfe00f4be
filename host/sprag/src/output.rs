//! Tables and colours. Colour follows meaning and never stands alone; it is off when piped or when NO_COLOR is set.

use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use sprag_core::{
    operations::{time::Time, view::Listing},
    outcome::Outcome,
};

use crate::failure::Failure;

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const WAITING: Style = AnsiColor::Yellow.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const PLAIN: Style = Style::new();

pub(crate) fn of_outcome(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Completed => GOOD,
        Outcome::Failed | Outcome::DeadLettered => BAD,
        Outcome::Pending | Outcome::Deferred | Outcome::Handoff => WAITING,
        Outcome::Skipped | Outcome::Unsupported => FAINT,
    }
}

/// One cell: its text and what it means.
pub(crate) struct Cell(pub String, pub Style);

impl<T: ToString> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        match value {
            Some(value) => Self(value.to_string(), PLAIN),
            None => Self("-".to_owned(), FAINT),
        }
    }
}

pub(crate) fn cell(value: impl ToString) -> Cell {
    Cell(value.to_string(), PLAIN)
}

pub(crate) fn time(at: Time) -> Cell {
    // To the second: the rest is in --json.
    let text = at.to_string();
    Cell(format!("{} {}", &text[..10.min(text.len())], text.get(11..19).unwrap_or_default()), FAINT)
}

/// Rows under their heads, in columns.
pub(crate) struct Table {
    heads: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

/// A cell is cut beyond this; `--json` has all of it.
const WIDEST: usize = 60;

impl Table {
    pub(crate) fn new(heads: &'static [&'static str]) -> Self {
        Self { heads, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.push(cells);
    }

    pub(crate) fn write(mut self, out: &mut impl io::Write) -> io::Result<()> {
        let mut widths: Vec<usize> = self.heads.iter().map(|head| head.chars().count()).collect();
        for row in &mut self.rows {
            for (cell, width) in row.iter_mut().zip(&mut widths) {
                cell.0 = one_line(&cell.0);
                *width = (*width).max(cell.0.chars().count());
            }
        }
        let heads = self.heads.iter().map(|head| Cell(head.to_string(), Style::new().bold())).collect();
        for row in std::iter::once(heads).chain(self.rows) {
            let last = row.len() - 1;
            for (index, (Cell(text, style), width)) in row.iter().zip(&widths).enumerate() {
                let padding = if index == last { 0 } else { width - text.chars().count() + 2 };
                write!(out, "{style}{text}{style:#}{:padding$}", "")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A text that cannot move the cursor, colour the screen or fill it.
pub(crate) fn one_line(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= WIDEST {
        return clean;
    }
    clean.chars().take(WIDEST - 1).chain(['…']).collect()
}

/// The same for text of several lines: line breaks stay.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?;
    line(&text)
}

/// A line on stdout. A reader that has gone away ends the verb quietly, as with any filter.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    match writeln!(anstream::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(|error| Failure::failed(format!("cannot write the result: {error}"))),
    }
}

/// A listing as JSON or as a table, and how to get what follows.
pub(crate) fn listing<T: Serialize>(
    listing: &Listing<T>,
    as_json: bool,
    nothing: &str,
    heads: &'static [&'static str],
    row: impl Fn(&T) -> Vec<Cell>,
) -> Result<(), Failure> {
    if as_json {
        return json(listing);
    }
    if listing.items.is_empty() {
        anstream::eprintln!("{nothing}");
        return Ok(());
    }
    let mut table = Table::new(heads);
    listing.items.iter().for_each(|item| table.row(row(item)));
    let mut text = Vec::new();
    table.write(&mut text).map_err(|error| Failure::failed(error.to_string()))?;
    line(String::from_utf8_lossy(&text).trim_end())?;
    if let Some(next) = &listing.next {
        anstream::eprintln!("there is more: --after {next}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_cannot_move_the_cursor() {
        assert_eq!(one_line("a\u{1b}[31mb\nc"), "a [31mb c");
        assert_eq!(one_line(&"x".repeat(100)).chars().count(), WIDEST);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["a", "long head", "z"]);
        table.row(vec![cell("first"), cell("x"), cell("1")]);
        table.row(vec![cell("é"), Cell::from(None::<String>), cell("2")]);
        let mut text = Vec::new();
        table.write(&mut text).expect("written");
        let text = String::from_utf8(text).expect("text");
        let text = anstream::adapter::strip_str(&text).to_string();
        let columns: Vec<usize> =
            text.lines().map(|line| line.chars().position(|c| "z12".contains(c)).expect("the last column")).collect();
        assert!(columns.iter().all(|column| *column == columns[0]), "{text}");
    }
}
