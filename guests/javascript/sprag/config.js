// The handler's table `config` in `sprag.toml`. Needs the import in `wit/world.wit`.

import * as config from 'sprag:handler/config@0.1.0';

// The value of this key, or undefined: a text as it is, everything else as JSON.
export function get(key) {
  return config.get(key);
}

// All of them: `[[key, value], ...]`.
export function all() {
  return config.all();
}
