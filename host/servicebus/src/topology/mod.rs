//! Which entities an endpoint needs on a namespace (P21), which of them are there, and how the first become the second.
//!
//! Start reading at [`wanted`]: a pure function from an endpoint to its entities ([`wanted_nimbus`] for NimBus's topology; `reach` says who else there could take what is its own). [`current`] reads
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
mod reach;
pub mod view;
mod wanted;

pub use apply::{ApplyError, Progress, Report, apply};
pub use check::{Problem, Severity, check};
pub use current::{Current, Found, current, read_settings};
pub use diff::{Change, Changed, Conflict, Difference, Leftover, diff};
pub use nimbus::{Forward, NimbusEndpoint, nimbus_source_of, wanted_nimbus};
pub use wanted::{Endpoint, Source, source_of, wanted};

use crate::administration::{Path, Rule, Setting};

/// The largest delivery limit that Service Bus takes.
pub const MOST_DELIVERIES: u32 = 2_000;

/// An entity that has to be there, with what matters of it. Settings that are not named may be what they like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub path: Path,
    pub settings: Vec<Setting>,
    /// More of what it is made with when it is not there. Afterwards it may be what whoever it belongs to makes of it.
    pub made_with: Vec<Setting>,
    /// A subscription's.
    pub rules: Vec<Rule>,
    /// A topic on which an endpoint's own messages travel: nobody else's subscription may take them, so all of them are looked at (P21).
    pub carries_stand_ins: bool,
}

impl Wanted {
    pub fn new(path: Path, settings: Vec<Setting>) -> Self {
        Self { path, settings, made_with: Vec::new(), rules: Vec::new(), carries_stand_ins: false }
    }
}
