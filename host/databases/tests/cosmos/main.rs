//! The inbox on Cosmos DB: the suite on a stand-in or on the real one (`sprag_databases::test_server::cosmos`), and what no stand-in does by
//! recorded answers.

mod answers;
mod conformance;
mod purging;
mod recorded;
mod trouble;
