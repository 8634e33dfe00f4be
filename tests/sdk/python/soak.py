"""Sends and receives with PyPI azure-servicebus while faults happen (see faults.py): nothing that was accepted is lost, and nothing that was
completed comes again."""

import logging
import os
import sys
import threading
import time

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

CONNECTION = os.environ["SPRAG_SERVICEBUS"]
UNTIL = time.monotonic() + float(os.environ["SPRAG_SECONDS"])
# Faults make the SDK write a lot.
logging.disable(logging.CRITICAL)

lock = threading.Lock()
# What was handed to us may be completed although we never heard of it, so only what was never handed to us is lost.
accepted, handed, completed, again, faults = set(), set(), set(), [], [0]
stop = threading.Event()


def fault(error):
    with lock:
        faults[0] += 1


def client():
    # A message whose send has failed may be there or not; sent again, it could be there twice.
    return ServiceBusClient.from_connection_string(CONNECTION, retry_total=0, socket_timeout=5)


def send(queue, sessions):
    number = 0
    while time.monotonic() < UNTIL:
        try:
            with client() as own, own.get_queue_sender(queue) as sender:
                while time.monotonic() < UNTIL:
                    ids = [f"{queue}-{number + n}" for n in range(1 + number % 5)]
                    number += len(ids)
                    session = lambda n: f"s{n % 5}" if sessions else None
                    messages = [ServiceBusMessage("x" * 500, message_id=i, session_id=session(number)) for i in ids]
                    sender.send_messages(messages if len(messages) > 1 else messages[0])
                    with lock:
                        accepted.update(ids)
        except Exception as error:  # Whatever a fault makes of it.
            fault(error)
            time.sleep(0.1)


def take(receiver):
    got = receiver.receive_messages(20, max_wait_time=1)
    for message in got:
        with lock:
            handed.add(message.message_id)
            if message.message_id in completed:
                again.append(message.message_id)
        receiver.complete_message(message)
        with lock:
            completed.add(message.message_id)
    return len(got)


def receive(queue):
    while not stop.is_set():
        try:
            with client() as own, own.get_queue_receiver(queue) as receiver:
                while not stop.is_set():
                    take(receiver)
        except Exception as error:
            fault(error)
            time.sleep(0.1)


def receive_sessions(queue):
    while not stop.is_set():
        try:
            with client() as own:
                with own.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2) as session:
                    while not stop.is_set() and take(session):
                        pass
        except Exception as error:
            fault(error)
            time.sleep(0.1)


threads = [
    threading.Thread(target=target, args=arguments, daemon=True)
    for target, arguments in [
        (send, ("soak", False)),
        (send, ("soak-sessions", True)),
        (receive, ("soak",)),
        (receive_sessions, ("soak-sessions",)),
        (receive_sessions, ("soak-sessions",)),
    ]
]
for thread in threads:
    thread.start()
while time.monotonic() < UNTIL + 120:
    time.sleep(0.5)
    with lock:
        if time.monotonic() > UNTIL + 6 and accepted <= handed:
            break
stop.set()
with lock:
    lost = sorted(accepted - handed)
    good = not lost and not again and len(accepted) > 100
    said = f"{len(accepted)} accepted, {len(completed)} completed, {faults[0]} errors"
    print(f"{'ok  ' if good else 'FAIL'} Python under faults: {said}, lost {lost[:5]} ({len(lost)}), again {again[:5]}", flush=True)
os._exit(0 if good else 1)
