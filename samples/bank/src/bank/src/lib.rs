//! Moves money between accounts. Adding to a number is what must not happen twice; here it cannot, because it commits with the record that the
//! message is done.

use serde::{Deserialize, Serialize};
use sprag_handler::{Failure, Handler, Message, Outgoing, Success, config, sql};

#[derive(Deserialize)]
struct Account {
    account: String,
    cents: i64,
}

#[derive(Deserialize, Serialize)]
struct Transfer {
    from: String,
    to: String,
    cents: i64,
}

struct Bank;

impl Handler for Bank {
    const EVENT_TYPES: &[&str] = &["BankFounded", "AccountOpened", "TransferRequested"];

    fn handle(message: Message) -> Result<Success, Failure> {
        let name = config::get("database").unwrap_or_else(|| "embedded".to_owned());
        let bank = sql::Database::new(&name);
        match message.event_type.as_str() {
            "BankFounded" => found(&bank),
            "AccountOpened" => open(&bank, message.json()?),
            _ => transfer(&bank, message.json()?),
        }
    }
}

sprag_handler::export!(Bank);

/// On the embedded engine handlers make their tables; on a database server its owner does (`tables.sql`).
fn found(bank: &sql::Database) -> Result<Success, Failure> {
    for statement in include_str!("../../../tables.sql").split(';').map(str::trim).filter(|it| !it.is_empty()) {
        bank.execute(statement, &[])?;
    }
    Ok(Success::Done)
}

fn open(bank: &sql::Database, Account { account, cents }: Account) -> Result<Success, Failure> {
    bank.execute("INSERT INTO account (name, cents) VALUES ($1, $2)", &[account.into(), cents.into()])?;
    Ok(Success::Done)
}

fn transfer(bank: &sql::Database, it: Transfer) -> Result<Success, Failure> {
    let Transfer { from, to, cents } = &it;
    let mut changes = [(from, -cents), (to, *cents)];
    // Everybody takes the accounts in one order, so that no two transfers wait for each other.
    changes.sort_by_key(|(account, _)| account.as_str());
    for (account, cents) in changes {
        let changed = bank.execute(
            "UPDATE account SET cents = cents + $1 WHERE name = $2",
            &[cents.into(), account.as_str().into()],
        );
        match changed {
            Ok(0) => return Err(Failure::failed("no-account", format!("there is no account {account:?}"))),
            Ok(_) => {}
            // The table's check: nothing of the run takes effect, a first half neither.
            Err(sql::SqlError::Failed(failure)) if failure.code.contains("CHECK") || failure.code == "23514" => {
                return Err(Failure::failed("no-funds", format!("account {account:?} has less than {cents} cents")));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Outgoing::new("reports", "TransferBooked").json(&it)?.publish()?;
    Ok(Success::Done)
}
