//! The store on SQL Server.

mod conformance;
mod support;
