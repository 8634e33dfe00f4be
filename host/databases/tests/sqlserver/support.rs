//! Stores on fresh schemas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use sprag_databases::sqlserver::{Options, SqlServerStore};

pub(crate) async fn fresh() -> (Arc<SqlServerStore>, ()) {
    let url = std::env::var("SPRAG_TEST_SQLSERVER").unwrap();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let name = format!("t{now}_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let options = Options { pool_size: 8, schema: name.clone(), inbox_schema: name, ..Options::new(url) };
    (Arc::new(SqlServerStore::open(options).await.expect("the store opens")), ())
}
