"""Writes an account's balance down, as it is when the request is handled."""

from sprag import WitWorld  # noqa: F401 (what the component exports)
from sprag import config, failed, on, sql


@on("StatementRequested")
def state(message):
    request = message.json()
    database = config.get("database", "embedded")
    rows = sql.query(database, "SELECT cents FROM account WHERE name = $1", [request["account"]])
    if not rows:
        raise failed("no-account", f"there is no account {request['account']}")
    sql.execute(
        database,
        "INSERT INTO statement (id, account, cents) VALUES ($1, $2, $3)",
        [request["id"], request["account"], rows[0]["cents"]],
    )
