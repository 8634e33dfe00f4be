//! Which entities an endpoint needs on a namespace (P21), which of them are there, and how the first become the second.
//!
//! Start reading at [`wanted`]: a pure function from an endpoint to its entities ([`wanted_nimbus`] for NimBus's topology). [`current`] reads
//! what is there, [`diff`] compares the two, and [`apply`] carries the difference out. [`check`] says what is wrong with what is there, and
//! [`view`] is what the verbs `topology show`, `diff` and `apply` print.
//!
//! *Invariants:* nothing is ever deleted or made anew, above all no `<endpoint>.deferred`: what cannot be changed in place is a [`Conflict`], and
//! with one nothing at all is changed. Everything but [`current`] and [`apply`] is pure.

mod apply;
mod check;
mod current;
mod diff;
mod nimbus;
pub mod view;
mod wanted;

pub use apply::{ApplyError, Progress, Report, apply};
pub use check::{Problem, Severity, check};
pub use current::{Current, Found, current, read_settings};
pub use diff::{Change, Changed, Conflict, Difference, Leftover, diff};
pub use nimbus::{Forward, NimbusEndpoint, wanted_nimbus};
pub use wanted::{Endpoint, Source, source_of, wanted};

use crate::administration::{Path, Rule, Setting};

/// The largest delivery limit that Service Bus takes.
pub const MOST_DELIVERIES: u32 = 2_000;

/// An entity that has to be there, with what matters of it. Settings that are not named may be what they like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub path: Path,
    pub settings: Vec<Setting>,
    /// A subscription's.
    pub rules: Vec<Rule>,
}

impl Wanted {
    fn new(path: Path, settings: Vec<Setting>) -> Self {
        Self { path, settings, rules: Vec::new() }
    }
}
