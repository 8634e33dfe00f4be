//! The HTTP administration API.
