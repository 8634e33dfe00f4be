//! What whole-program tests and the benchmark share.

pub mod machine;
