// SQL in the transaction that the run's commit ends. Needs the import in `wit/world.wit`, `grant = ["sql:NAME"]` in `sprag.toml`, where NAME is the
// endpoint's store, and an inbox with `mode = "transaction"`.
//
// It begins with the first statement and commits together with the record that the message is done. A run that fails, or that turns out to be a
// second copy, leaves nothing. A statement that fails changes nothing, and the run may go on.
//
// Parameters are written `$1`, `$2`. Texts, booleans, bytes, null, whole numbers (numbers and BigInt) and other numbers go in as they are, dates as
// times; `{ tag: 'decimal', val: '1.50' }` and the like say a type. Whole numbers come out as BigInt, decimals, UUIDs and JSON as texts, times as dates.

import * as sql from 'sprag:handler/sql@0.1.0';

import { answered } from './index.js';

// An array with an object for each row.
export function query(database, statement, parameters = []) {
  const { columns, rows } = answered('sql', () => sql.query(database, statement, parameters.map(toValue)));
  return rows.map((row) => Object.fromEntries(row.map((value, i) => [columns[i], fromValue(value)])));
}

// How many rows it inserted, changed or deleted.
export function execute(database, statement, parameters = []) {
  return Number(answered('sql', () => sql.execute(database, statement, parameters.map(toValue))));
}

function toValue(value) {
  if (value === null || value === undefined) return { tag: 'null' };
  switch (typeof value) {
    case 'boolean':
      return { tag: 'boolean', val: value };
    case 'bigint':
      return { tag: 'integer', val: value };
    case 'number':
      return Number.isSafeInteger(value) ? { tag: 'integer', val: BigInt(value) } : { tag: 'float', val: value };
    case 'string':
      return { tag: 'text', val: value };
  }
  if (value instanceof Uint8Array) return { tag: 'bytes', val: value };
  if (value instanceof Date) return { tag: 'timestamp', val: BigInt(value.getTime()) * 1000n };
  return value;
}

function fromValue({ tag, val }) {
  if (tag === 'null') return null;
  return tag === 'timestamp' ? new Date(Number(val / 1000n)) : val;
}
