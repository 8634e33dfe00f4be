//! The store on a real PostgreSQL: see `sprag_databases::test_server`.

mod conformance;
mod hosts;
mod interruptions;
mod language;
mod opening;
mod outage;
mod sql;
mod support;
mod tls;
mod trips;
