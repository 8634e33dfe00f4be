//! A transport in memory, for tests.
