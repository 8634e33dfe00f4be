// The handler `{{name}}`.

import { deadLetter, failed, handler, log } from './sprag/index.js';
import * as config from './sprag/config.js'; {{config}}
import * as sql from './sprag/sql.js'; {{sql}}
import * as state from './sprag/state.js'; {{state}}

export const { describe, handle } = handler({
  Greeting(message) {
    const greeting = message.json();
    if (typeof greeting.name !== 'string') throw deadLetter('bad-body', 'a greeting has a name');
    if (greeting.name === '') throw failed('no-name', 'cannot greet somebody without a name');
    const key = `greeted/${greeting.name}`; {{state}}
    const times = (state.getJson(key) ?? 0) + 1; {{state}}
    state.setJson(key, times); {{state}}
    log.info(`${greeting.name} was greeted ${times} times`); {{state}}
    sql.execute('embedded', 'CREATE TABLE IF NOT EXISTS greeted (name TEXT PRIMARY KEY, times INTEGER NOT NULL)'); {{sql}}
    const count = 'INSERT INTO greeted VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET times = times + 1'; {{sql}}
    sql.execute('embedded', count, [greeting.name]); {{sql}}
    log.info(`${config.get('greeting') ?? 'Hello'}, ${greeting.name}!`); {{config}}
    log.info(`Hello, ${greeting.name}!`); {{no-config}}
  },
});
