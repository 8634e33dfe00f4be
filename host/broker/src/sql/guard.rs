//! What of the file a handler's statement may touch (P37): tables that handlers made, and nothing of the host's, no pragma, no other file.
//!
//! SQLite asks while it prepares a statement, for everything that the statement will do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;
use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

use crate::schema;

/// Virtual machine instructions between two looks at the clock: well under a millisecond.
const STEPS: std::ffi::c_int = 10_000;

/// Watches one connection. The writer's works for the host most of the time, and is watched only [`during`](Guard::during) a handler's statement.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    watches: Arc<AtomicBool>,
    until: Arc<Mutex<Option<Instant>>>,
}

thread_local! {
    /// Why the last statement that this thread prepared was refused. SQLite says only that it was.
    static REFUSED: Mutex<Option<String>> = const { Mutex::new(None) };
}

/// Why the statement that was just prepared here was refused.
pub(super) fn refusal() -> String {
    let text = REFUSED.with(|refused| refused.lock().take());
    text.unwrap_or_else(|| "the statement is not for handlers".to_owned())
}

impl Guard {
    pub(crate) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let guard = self.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            if !guard.watches.load(Relaxed) {
                return Authorization::Allow;
            }
            match why_not(&context.action) {
                None => Authorization::Allow,
                Some(why) => {
                    REFUSED.with(|refused| *refused.lock() = Some(why));
                    Authorization::Deny
                }
            }
        }))?;
        let guard = self.clone();
        let is_over =
            move || guard.watches.load(Relaxed) && guard.until.lock().is_some_and(|until| Instant::now() >= until);
        connection.progress_handler(STEPS, Some(is_over))
    }

    /// What is prepared and run in here is a handler's, and is stopped when its time is over. The connection belongs to this thread.
    pub(crate) fn during<T>(&self, until: Instant, work: impl FnOnce() -> T) -> T {
        *self.until.lock() = Some(until);
        self.watches.store(true, Relaxed);
        let result = work();
        self.watches.store(false, Relaxed);
        result
    }
}

fn of_host(table: &str) -> Option<String> {
    let name = table.to_ascii_lowercase();
    (schema::TABLES.contains(&name.as_str()) || name.starts_with("sprag_"))
        .then(|| format!("{table:?} is a table of the host's, or named like one"))
}

/// SQLite's own tables may be read, and are written by statements that make tables.
fn changes(table: &str) -> Option<String> {
    match table.to_ascii_lowercase().as_str() {
        "sqlite_sequence" => Some("\"sqlite_sequence\" is the host's".to_owned()),
        _ => of_host(table),
    }
}

fn why_not(action: &AuthAction<'_>) -> Option<String> {
    use AuthAction as A;
    match action {
        // An index that is made is filled that way.
        A::Select | A::Recursive | A::Reindex { .. } => None,
        A::Read { table_name, .. } => of_host(table_name),
        A::Insert { table_name } | A::Delete { table_name } | A::Update { table_name, .. } => changes(table_name),
        A::CreateTable { table_name }
        | A::DropTable { table_name }
        | A::AlterTable { table_name, .. }
        | A::CreateIndex { table_name, .. }
        | A::DropIndex { table_name, .. } => of_host(table_name),
        A::CreateView { view_name } | A::DropView { view_name } => of_host(view_name),
        A::Function { function_name } => function_name
            .eq_ignore_ascii_case("load_extension")
            .then(|| "load_extension is not for handlers".to_owned()),
        A::Transaction { .. } | A::Savepoint { .. } => {
            Some("a handler's statements are one transaction, which its run ends: no BEGIN, COMMIT, ROLLBACK or SAVEPOINT".to_owned())
        }
        A::Pragma { pragma_name, .. } => Some(format!("PRAGMA {pragma_name} is not for handlers")),
        A::Attach { .. } | A::Detach { .. } => Some("other files are not for handlers".to_owned()),
        _ => Some("the statement is not for handlers: they select, insert, update, delete, and make tables, indexes and views".to_owned()),
    }
}
