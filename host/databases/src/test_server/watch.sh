#!/bin/sh
# Ends a test server that nobody uses any more. Arguments: its folder, and the seconds for which it must be unused.
# Tests hold `users` (shared) while they live; `lock` is held by whoever starts or ends the server; `watch` says that this is running.
cd "$1" || exit 0
exec 8>watch
flock --nonblock 8 || exit 0
while flock --exclusive users true; do
  sleep "$2"
  # Whoever stopped it in the meantime has removed the folder.
  exec 9<lock || exit 0
  flock 9
  if flock --exclusive --nonblock users true; then
    pid=$(head -n 1 data/postmaster.pid 2>/dev/null)
    if [ -n "$pid" ]; then
      # An immediate stop: nothing in it is worth a checkpoint.
      kill -QUIT "$pid" 2>/dev/null
      tries=0
      while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
      done
    fi
    cd / && rm -rf "$1"
    exit 0
  fi
  exec 9<&-
done
