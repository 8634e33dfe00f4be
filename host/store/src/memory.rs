//! A store in memory, for tests and for `kind = "memory"`.
