//! What whole-program tests and the benchmark share.

pub mod host;
pub mod ledger;
pub mod machine;
pub mod random;
