"""What PyPI azure-servicebus sends to `sprag dev` reaches a handler, once.

SPRAG_COMMAND is the command, SPRAG_COMPONENT a component that takes any event and succeeds.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from scenario import end, scenario

command, component = os.environ["SPRAG_COMMAND"], os.environ["SPRAG_COMPONENT"]
SESSIONS = ["anna", "bo", "cy"]
PATIENCE = 60


def until(what, look):
    began = time.monotonic()
    while not (found := look()):
        assert time.monotonic() - began < PATIENCE, f"waited {PATIENCE} s in vain: {what}"
        time.sleep(0.05)
    return found


class Host:
    """`sprag dev` in a folder with one handler, on free ports."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / ".sprag" / "host.json"
        self.file.unlink(missing_ok=True)
        ports = ["--console", "127.0.0.1:0", "--amqp", "127.0.0.1:0", "--administration", "off"]
        log = open(folder / "log", "a")
        self.process = subprocess.Popen([command, "dev", str(folder), *ports], stdout=log, stderr=log)
        self.amqp = until("the host is ready", self.address)

    def address(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.file.read_text())["amqp"]

    def connection(self):
        key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
        return f"Endpoint=sb://{self.amqp};{key};UseDevelopmentEmulator=true;"

    def events(self):
        listed = [command, "events", "--limit", "1000", "--json", "--dir", str(self.folder)]
        return json.loads(subprocess.run(listed, check=True, capture_output=True, text=True).stdout)["items"]

    def completed(self):
        return [event["event_id"] for event in self.events() if event["outcome"] == "completed"]

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=PATIENCE)


def send(host, ids):
    with ServiceBusClient.from_connection_string(host.connection()) as client:
        with client.get_queue_sender(host.folder.name) as sender:
            for number, name in enumerate(ids):
                message = ServiceBusMessage('{"total": 3}', message_id=name, session_id=SESSIONS[number % 3], subject="OrderPlaced")
                sender.send_messages(message)


with tempfile.TemporaryDirectory() as parent:
    folder = pathlib.Path(parent) / "orders"
    (folder / "handlers").mkdir(parents=True)
    shutil.copy(component, folder / "handlers" / "noop.wasm")
    host = Host(folder)
    ids = [f"m{number}" for number in range(30)]

    @scenario("what an SDK sends is handled")
    def handled():
        send(host, ids)
        until("all are completed", lambda: sorted(host.completed()) == sorted(ids))

    @scenario("the same again, after a kill, does not run again")
    def once():
        global host
        assert host.end(signal.SIGKILL) == -signal.SIGKILL
        host = Host(folder)
        send(host, ids)
        send(host, ["last"] * 3)
        until("the last one is completed", lambda: "last" in host.completed())
        assert sorted(host.completed()) == sorted([*ids, "last"])
        assert all(event["attempts"] == 1 for event in host.events()), host.events()

    @scenario("the host stops while a client is connected")
    def stops():
        with ServiceBusClient.from_connection_string(host.connection()) as client:
            with client.get_queue_sender(folder.name) as sender:
                sender.send_messages(ServiceBusMessage("{}", message_id="at the end", session_id="anna", subject="OrderPlaced"))
                assert host.end() == 0, (folder / "log").read_text()

end()
