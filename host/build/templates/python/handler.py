"""The handler `{{name}}`."""

from sprag import WitWorld  # noqa: F401 (what the component exports)
from sprag import dead_letter, failed, log, on
from sprag import config {{config}}
from sprag import sql {{sql}}
from sprag import state {{state}}


@on("Greeting")
def greet(message):
    greeting = message.json()
    if not isinstance(greeting.get("name"), str):
        raise dead_letter("bad-body", "a greeting has a name")
    name = greeting["name"]
    if not name:
        raise failed("no-name", "cannot greet somebody without a name")
    key = f"greeted/{name}" {{state}}
    times = state.get_json(key, 0) + 1 {{state}}
    state.set_json(key, times) {{state}}
    log.info(f"{name} was greeted {times} times") {{state}}
    sql.execute("embedded", "CREATE TABLE IF NOT EXISTS greeted (name TEXT PRIMARY KEY, times INTEGER NOT NULL)") {{sql}}
    count = "INSERT INTO greeted VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET times = times + 1" {{sql}}
    sql.execute("embedded", count, [name]) {{sql}}
    log.info(f"{config.get('greeting', 'Hello')}, {name}!") {{config}}
    log.info(f"Hello, {name}!") {{no-config}}
