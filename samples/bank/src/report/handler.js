// Counts transfers. A counter is what a second delivery would spoil: it commits with the record that the message is done.

import { handler } from './sprag/index.js';
import * as config from './sprag/config.js';
import * as sql from './sprag/sql.js';

export const { describe, handle } = handler({
  TransferBooked(message) {
    const { from, cents } = message.json();
    const database = config.get('database') ?? 'embedded';
    const counted = 'UPDATE report SET transfers = transfers + 1, cents = cents + $1 WHERE name = $2';
    if (sql.execute(database, counted, [cents, from]) === 0) {
      sql.execute(database, 'INSERT INTO report (name, transfers, cents) VALUES ($1, 1, $2)', [from, cents]);
    }
  },
});
