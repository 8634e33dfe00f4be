//! Effects one after another: how a commit is carried out where no engine holds everything.
