// The handler `{{name}}`.

import { deadLetter, failed, handler, log } from './sprag/index.js';
import * as config from './sprag/config.js'; {{config}}
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
    log.info(`${config.get('greeting') ?? 'Hello'}, ${greeting.name}!`); {{config}}
    log.info(`Hello, ${greeting.name}!`); {{no-config}}
  },
});
