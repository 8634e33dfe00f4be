// Key-value pairs that belong to the endpoint and commit with the run. Needs the import in `wit/world.wit` and
// `grant = ["state"]` in `sprag.toml`.
//
// A run sees its own writes. What it read is checked again when it commits: if another run changed it meanwhile, nothing
// commits and the run is repeated. Values are bytes; `getJson` and `setJson` read and write them as JSON, and a text may be given for bytes.

import * as state from 'sprag:handler/state@0.1.0';

import { answered } from './index.js';

// The value's bytes, or undefined.
export function get(key) {
  return answered('state', () => state.get(key));
}

export function getText(key) {
  const value = get(key);
  return value === undefined ? undefined : new TextDecoder().decode(value);
}

export function getJson(key) {
  const text = getText(key);
  return text === undefined ? undefined : JSON.parse(text);
}

export function set(key, value) {
  answered('state', () => state.set(key, bytes(value)));
}

export function setJson(key, value) {
  set(key, JSON.stringify(value));
}

// Removing what is not there is no error.
export function remove(key) {
  answered('state', () => state.delete(key));
}

// Sets `value` (undefined: deletes) if the key now holds `expected` (undefined: is not there). Answers whether it did.
export function compareAndSet(key, expected, value) {
  return answered('state', () => state.compareAndSet(key, bytes(expected), bytes(value)));
}

// Entries `{ key, value }` whose key starts with `prefix`, in byte order of the keys, after the key `after`, at most `limit` (1 to 1,000).
export function scan(prefix, { after, limit = 1000 } = {}) {
  return answered('state', () => state.scan(prefix, after, limit));
}

function bytes(value) {
  return typeof value === 'string' ? new TextEncoder().encode(value) : value;
}
