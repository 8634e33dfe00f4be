//! The store on SQL Server: the suite on a real one if there is one, everything else on a fake (see `sprag_databases::test_server::tds`), because it is
//! about what a server does wrong, or about what is sent.

mod conformance;
mod hosts;
mod interruptions;
mod numbers;
mod opening;
mod outage;
mod shared;
mod support;
mod tls;
mod trips;
