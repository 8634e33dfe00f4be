"""Runs a client while its broker is killed and its connections are cut.

    python faults.py BROKER SECONDS COMMAND...

BROKER is the program of host/gateway/examples/broker.rs. COMMAND is given SPRAG_SERVICEBUS (a way to the broker that is cut now and then) and
SPRAG_SECONDS (how long the faults go on; afterwards all is quiet, so that the client can look whether everything is there). Needs nothing but
Python. The exit code is the client's.
"""

import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ENTITIES = ["queue:soak,lock=5,deliveries=1000", "queue:soak-sessions,sessions,lock=5,deliveries=1000"]
KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"


class Broker:
    def __init__(self, program, folder):
        self.program, self.folder, self.port, self.process = program, folder, 0, None

    def start(self):
        # A client that does not say how long it waits for a session is answered after 5 s.
        command = [self.program, self.folder, str(self.port), "--keys", "--session-wait", "5", *ENTITIES]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"the broker did not start: {line!r}")
        self.port = int(line.split()[1])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Way:
    """Passes bytes between clients and the broker, until it is cut."""

    def __init__(self, broker):
        self.broker, self.pairs, self.lock = broker, set(), threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.broker.port), timeout=5)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(None)
            pair = (client, server)
            with self.lock:
                self.pairs.add(pair)
            threading.Thread(target=self.carry, args=(pair,), daemon=True).start()

    def carry(self, pair):
        client, server = pair
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            try:
                while True:
                    for key, _ in selector.select():
                        data = key.fileobj.recv(65536)
                        if not data:
                            return
                        key.data.sendall(data)
            except (OSError, ValueError):
                pass
            finally:
                self.end(pair)

    def end(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def cut(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            for end in pair:
                try:
                    # Wakes the one who carries, who closes both.
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        return len(pairs)


def main():
    program, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(program, folder)
        broker.start()
        way = Way(broker)
        connection = f"Endpoint=sb://127.0.0.1:{way.port};{KEY}"
        client = subprocess.Popen(command, env={**os.environ, "SPRAG_SERVICEBUS": connection, "SPRAG_SECONDS": str(seconds)})
        until, kills, cuts = time.monotonic() + seconds, 0, 0
        chance = random.Random(20261130)
        while time.monotonic() < until and client.poll() is None:
            time.sleep(chance.uniform(1, 3))
            if chance.random() < 0.4:
                broker.kill()
                broker.start()
                kills += 1
            else:
                cuts += way.cut()
        try:
            code = client.wait(timeout=180)
        except subprocess.TimeoutExpired:
            client.kill()
            code = 1
            print("FAIL the client did not end", flush=True)
        broker.kill()
    print(f"     {kills} kills, {cuts} connections cut", flush=True)
    return code


sys.exit(main())
