"""What PyPI azure-servicebus can do with queues, topics and sessions, against a broker whose connection string is in SPRAG_SERVICEBUS.

The entities are those of tests/sdk/entities. Every scenario leaves its entities empty.
"""

import asyncio
import datetime
import time
import uuid

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from scenario import CONNECTION, end, equal, raises, scenario

client = ServiceBusClient.from_connection_string(CONNECTION)
impatient = ServiceBusClient.from_connection_string(CONNECTION, retry_total=0)


def utc(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def body(message):
    return b"".join(message.body)


def receive(receiver, count, wait=5):
    got, until = [], time.monotonic() + wait
    while len(got) < count and time.monotonic() < until:
        got += receiver.receive_messages(count - len(got), max_wait_time=1)
    equal(len(got), count)
    return got


def empty(receiver):
    """Nothing is left, in whatever state."""
    equal([str(m) for m in receiver.peek_messages(10, sequence_number=1)], [])


class raises_context:
    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        assert kind is not None and issubclass(kind, self.kind), f"{self.kind.__name__} was expected, {error!r} came"
        return True


plain = client.get_queue_sender("plain")
queue = client.get_queue_receiver("plain")


@scenario("send one message and complete it")
def _():
    plain.send_messages(ServiceBusMessage("hello", message_id="m1"))
    [message] = receive(queue, 1)
    equal((str(message), message.message_id, message.delivery_count), ("hello", "m1", 0))
    assert message.locked_until_utc > utc(0) and message.lock_token
    queue.complete_message(message)
    empty(queue)


@scenario("every field of a message arrives")
def _():
    sent = ServiceBusMessage(
        b"body",
        message_id="id",
        subject="subject",
        correlation_id="correlation",
        content_type="text/plain",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        partition_key="key",
        time_to_live=datetime.timedelta(minutes=5),
        application_properties={
            "text": "x", "int": 7, "float": 1.5, "yes": True, "none": None,
            "bytes": b"bytes", "uuid": uuid.UUID(int=7), "time": datetime.datetime(2026, 1, 2, 3, 4, 5),
        },
    )
    plain.send_messages(sent)
    [got] = receive(queue, 1)
    equal(got.subject, "subject")
    equal(got.correlation_id, "correlation")
    equal(got.content_type, "text/plain")
    equal((got.to, got.reply_to, got.reply_to_session_id), ("to", "reply", "reply session"))
    equal(got.partition_key, "key")
    equal(got.time_to_live, datetime.timedelta(minutes=5))
    properties = got.application_properties
    equal((properties[b"text"], properties[b"int"]), (b"x", 7))
    equal((properties[b"float"], properties[b"yes"], properties[b"none"]), (1.5, True, None))
    equal((properties[b"bytes"], properties[b"uuid"]), (b"bytes", uuid.UUID(int=7)))
    assert got.enqueued_time_utc <= utc(1) and got.sequence_number > 0 and got.enqueued_sequence_number > 0
    queue.complete_message(got)


@scenario("raw AMQP messages: value, sequence and data bodies, header, annotations, footer")
def _():
    for given in ({"value_body": {"a": [1, "b"]}}, {"sequence_body": [[1, 2], ["x"]]}, {"data_body": [b"a", b"b"]}):
        plain.send_messages(
            AmqpAnnotatedMessage(
                **given,
                header=AmqpMessageHeader(priority=7, durable=True),
                properties=AmqpMessageProperties(message_id="raw", user_id=b"user", group_sequence=5, creation_time=1_796_000_000_000),
                annotations={"mine": "annotation"},
                footer={"foot": "note"},
                application_properties={"p": 1},
            )
        )
        [got] = receive(queue, 1)
        raw = got.raw_amqp_message
        equal(raw.header.priority, 7)
        equal(raw.header.durable, True)
        equal((raw.properties.user_id, raw.properties.group_sequence), (b"user", 5))
        equal(raw.annotations[b"mine"], b"annotation")
        equal(raw.footer[b"foot"], b"note")
        if raw.body_type == AmqpMessageBodyType.VALUE:
            equal(raw.body, {b"a": [1, b"b"]})
        else:
            equal(list(raw.body), given.get("sequence_body") and [[1, 2], [b"x"]] or [b"a", b"b"])
        queue.complete_message(got)


@scenario("a list is sent as a batch, in order")
def _():
    plain.send_messages([ServiceBusMessage(f"{n}", message_id=f"{n}") for n in range(50)])
    got = receive(queue, 50)
    equal([str(m) for m in got], [f"{n}" for n in range(50)])
    for message in got:
        queue.complete_message(message)
    empty(queue)


@scenario("a batch object takes what fits")
def _():
    batch = plain.create_message_batch()
    count = 0
    try:
        while count < 5_000:
            batch.add_message(ServiceBusMessage(b"x" * 1_000))
            count += 1
    except MessageSizeExceededError:
        pass
    plain.send_messages(batch)
    with client.get_queue_receiver("plain", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=200) as deleting:
        receive(deleting, count, wait=30)
    empty(queue)
    return f"{count} of {batch.max_size_in_bytes} bytes"


@scenario("a large message over many frames")
def _():
    sender, receiver = client.get_queue_sender("large"), client.get_queue_receiver("large")
    large = bytes(n % 251 for n in range(5_000_000))
    sender.send_messages(ServiceBusMessage(large))
    [message] = receive(receiver, 1, wait=20)
    assert body(message) == large
    receiver.complete_message(message)
    sender.close(), receiver.close()


@scenario("a message that is too large is refused, and the sender goes on")
def _():
    sender = impatient.get_queue_sender("small")
    raises(MessageSizeExceededError, lambda: sender.send_messages(ServiceBusMessage(b"x" * 5_000)))
    raises(MessageSizeExceededError, lambda: sender.send_messages([ServiceBusMessage(b"x" * 5_000)]))
    sender.send_messages(ServiceBusMessage(b"x" * 100))
    with client.get_queue_receiver("small") as receiver:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
    sender.close()


@scenario("abandon: it comes again, counted, with properties modified")
def _():
    plain.send_messages(ServiceBusMessage("again", application_properties={"kept": 1}))
    [first] = receive(queue, 1)
    queue.abandon_message(first)
    [second] = receive(queue, 1)
    equal((str(second), second.delivery_count), ("again", 1))
    queue.complete_message(second)
    empty(queue)


@scenario("dead-letter with reason and description, and the dead letters received")
def _():
    plain.send_messages(ServiceBusMessage("bad"))
    [message] = receive(queue, 1)
    queue.dead_letter_message(message, reason="why", error_description="because")
    with client.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        [seen] = dead.peek_messages(5)
        equal(seen.dead_letter_reason, "why")
        [letter] = receive(dead, 1)
        equal((str(letter), letter.dead_letter_reason, letter.dead_letter_error_description), ("bad", "why", "because"))
        dead.complete_message(letter)
        empty(dead)
    empty(queue)


@scenario("transfer dead letters are there and empty")
def _():
    with client.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER) as transfer:
        equal(transfer.receive_messages(1, max_wait_time=1), [])
        equal(transfer.peek_messages(1), [])


@scenario("defer, receive by number, complete, abandon and dead-letter what was deferred")
def _():
    plain.send_messages([ServiceBusMessage(f"later {n}") for n in range(4)])
    numbers = []
    for message in receive(queue, 4):
        numbers.append(message.sequence_number)
        queue.defer_message(message)
    equal(queue.receive_messages(1, max_wait_time=1), [])
    equal({m.state for m in queue.peek_messages(10, sequence_number=1)}, {ServiceBusMessageState.DEFERRED})
    one, two, three, four = queue.receive_deferred_messages(numbers)
    equal((str(one), one.state), ("later 0", ServiceBusMessageState.DEFERRED))
    assert queue.renew_message_lock(one) > utc(0)
    queue.complete_message(one)
    queue.abandon_message(two)
    [two] = queue.receive_deferred_messages(numbers[1])
    queue.complete_message(two)
    queue.dead_letter_message(three, reason="deferred")
    queue.defer_message(four)
    [four] = queue.receive_deferred_messages(numbers[3])
    queue.complete_message(four)
    with client.get_queue_receiver("plain", sub_queue="deadletter") as dead:
        [letter] = receive(dead, 1)
        equal(letter.dead_letter_reason, "deferred")
        dead.complete_message(letter)
    with impatient.get_queue_receiver("plain") as receiver:
        raises(MessageNotFoundError, lambda: receiver.receive_deferred_messages(numbers[0]))
    empty(queue)


@scenario("deferred messages received and deleted")
def _():
    plain.send_messages(ServiceBusMessage("once"))
    [message] = receive(queue, 1)
    queue.defer_message(message)
    with client.get_queue_receiver("plain", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as deleting:
        [once] = deleting.receive_deferred_messages(message.sequence_number)
        equal(str(once), "once")
    empty(queue)


@scenario("schedule, peek as scheduled, receive when it is due")
def _():
    [number] = plain.schedule_messages(ServiceBusMessage("due"), utc(2))
    [seen] = queue.peek_messages(5, sequence_number=1)
    equal((seen.state, seen.sequence_number), (ServiceBusMessageState.SCHEDULED, number))
    began = time.monotonic()
    [message] = receive(queue, 1)
    assert 0.5 < time.monotonic() - began < 4
    equal((message.state, message.enqueued_sequence_number), (ServiceBusMessageState.ACTIVE, number))
    queue.complete_message(message)


@scenario("schedule by the message's own property, several at once, and cancel")
def _():
    plain.send_messages(ServiceBusMessage("own", scheduled_enqueue_time_utc=utc(60)))
    numbers = plain.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], utc(60))
    seen = queue.peek_messages(5, sequence_number=1)
    equal([str(m) for m in seen], ["own", "a", "b"])
    plain.cancel_scheduled_messages(numbers)
    plain.cancel_scheduled_messages(seen[0].sequence_number)
    with impatient.get_queue_sender("plain") as sender:
        raises(MessageNotFoundError, lambda: sender.cancel_scheduled_messages(numbers[0]))
    empty(queue)


@scenario("peek goes on where it was, and from a number")
def _():
    plain.send_messages([ServiceBusMessage(f"{n}") for n in range(5)])
    with client.get_queue_receiver("plain") as peeking:
        equal([str(m) for m in peeking.peek_messages(2)], ["0", "1"])
        rest = peeking.peek_messages(9)
        equal([str(m) for m in rest], ["2", "3", "4"])
        equal([str(m) for m in peeking.peek_messages(1, sequence_number=rest[1].sequence_number)], ["3"])
    for message in receive(queue, 5):
        queue.complete_message(message)
    empty(queue)


@scenario("receive and delete")
def _():
    plain.send_messages([ServiceBusMessage(f"{n}") for n in range(30)])
    with client.get_queue_receiver("plain", receive_mode="receiveanddelete") as deleting:
        equal(len(receive(deleting, 30)), 30)
    empty(queue)


@scenario("iterate with prefetch")
def _():
    plain.send_messages([ServiceBusMessage(f"{n}") for n in range(100)])
    count = 0
    with client.get_queue_receiver("plain", max_wait_time=1, prefetch_count=20) as iterating:
        for message in iterating:
            iterating.complete_message(message)
            count += 1
    equal(count, 100)
    empty(queue)


@scenario("an empty receive drains in time, and the link goes on")
def _():
    began = time.monotonic()
    equal(queue.receive_messages(10, max_wait_time=1), [])
    assert 0.9 < time.monotonic() - began < 3
    plain.send_messages(ServiceBusMessage("after"))
    [message] = receive(queue, 1)
    queue.complete_message(message)


@scenario("renew a lock beyond its time")
def _():
    with client.get_queue_receiver("brief") as brief, client.get_queue_sender("brief") as sender:
        sender.send_messages(ServiceBusMessage("held"))
        [message] = receive(brief, 1)
        renewer = AutoLockRenewer(max_lock_renewal_duration=30)
        renewer.register(brief, message)
        time.sleep(4)
        # By a receiver of its own: while this SDK waits on a connection, nothing is sent on it, so that no lock would be renewed.
        with client.get_queue_receiver("brief") as other:
            equal(other.receive_messages(1, max_wait_time=1), [])
        brief.complete_message(message)
        renewer.close()
        empty(brief)


@scenario("a lock that lapsed: nothing is settled, and the message comes again")
def _():
    with client.get_queue_receiver("brief") as brief, client.get_queue_sender("brief") as sender:
        sender.send_messages(ServiceBusMessage("slow"))
        [message] = receive(brief, 1)
        time.sleep(2.5)
        raises(MessageLockLostError, lambda: brief.complete_message(message))
        [again] = receive(brief, 1)
        equal(again.delivery_count, 1)
        brief.complete_message(again)
        empty(brief)


@scenario("after too many deliveries it is a dead letter")
def _():
    with client.get_queue_receiver("brief") as brief, client.get_queue_sender("brief") as sender:
        sender.send_messages(ServiceBusMessage("poison"))
        for _ in range(3):
            [message] = receive(brief, 1)
            brief.abandon_message(message)
        equal(brief.receive_messages(1, max_wait_time=1), [])
        with client.get_queue_receiver("brief", sub_queue="deadletter") as dead:
            [letter] = receive(dead, 1)
            equal(letter.dead_letter_reason, "MaxDeliveryCountExceeded")
            dead.complete_message(letter)


@scenario("time to live: of the message, and of the queue into the dead letters")
def _():
    plain.send_messages(ServiceBusMessage("brief", time_to_live=datetime.timedelta(milliseconds=200)))
    time.sleep(0.6)
    equal(queue.receive_messages(1, max_wait_time=1), [])
    with client.get_queue_sender("mortal") as sender, client.get_queue_receiver("mortal", sub_queue="deadletter") as dead:
        sender.send_messages(ServiceBusMessage("expires"))
        [letter] = receive(dead, 1)
        equal(letter.dead_letter_reason, "TTLExpiredException")
        dead.complete_message(letter)


@scenario("duplicates are dropped")
def _():
    with client.get_queue_sender("unique") as sender, client.get_queue_receiver("unique") as receiver:
        for _ in range(3):
            sender.send_messages(ServiceBusMessage("once", message_id="the same"))
        sender.send_messages([ServiceBusMessage("once", message_id="the same"), ServiceBusMessage("other", message_id="another")])
        got = receive(receiver, 2)
        equal([str(m) for m in got], ["once", "other"])
        equal(receiver.receive_messages(1, max_wait_time=1), [])
        for message in got:
            receiver.complete_message(message)


@scenario("forwarding")
def _():
    with client.get_queue_sender("forwarding") as sender:
        sender.send_messages(ServiceBusMessage("passed on"))
    [message] = receive(queue, 1)
    equal(str(message), "passed on")
    queue.complete_message(message)


@scenario("what is not there, and what may not be")
def _():
    with raises_context(MessagingEntityNotFoundError):
        with impatient.get_queue_sender("no such queue") as missing:
            missing.send_messages(ServiceBusMessage("x"))
    with raises_context(MessagingEntityNotFoundError):
        with impatient.get_queue_receiver("no such queue") as missing:
            missing.receive_messages(1, max_wait_time=1)
    # A session entity is not received from without a session, nor sent to without one.
    with raises_context(ServiceBusError):
        with impatient.get_queue_receiver("sessions") as without:
            without.receive_messages(1, max_wait_time=1)
    with impatient.get_queue_sender("sessions") as sender:
        raises(ServiceBusError, lambda: sender.send_messages(ServiceBusMessage("no session")))
        sender.send_messages(ServiceBusMessage("with one", session_id="s"))
    with client.get_queue_receiver("sessions", session_id="s") as receiver:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)


sessions = client.get_queue_sender("sessions")


def fill(*ids, count=3):
    for session in ids:
        sessions.send_messages([ServiceBusMessage(f"{session}{n}", session_id=session) for n in range(count)])


def drain_session(name):
    with client.get_queue_receiver("sessions", session_id=name, receive_mode="receiveanddelete") as session:
        while session.receive_messages(10, max_wait_time=1):
            pass


@scenario("a session by name: order, state, renewal")
def _():
    fill("A", "B")
    with client.get_queue_receiver("sessions", session_id="A") as session:
        equal(session.session.session_id, "A")
        assert session.session.locked_until_utc > utc(0)
        equal(session.session.get_state(), None)
        session.session.set_state(b"one")
        equal(session.session.get_state(), b"one")
        assert session.session.renew_lock() > utc(0)
        got = receive(session, 3)
        equal([str(m) for m in got], ["A0", "A1", "A2"])
        equal(got[0].session_id, "A")
        for message in got:
            session.complete_message(message)
    with client.get_queue_receiver("sessions", session_id="A") as session:
        equal(session.session.get_state(), b"one")
        session.session.set_state(None)
        equal(session.session.get_state(), None)
    drain_session("B")


@scenario("the next session, and none")
def _():
    fill("N")
    with client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as session:
        equal(session.session.session_id, "N")
        for message in receive(session, 3):
            session.complete_message(message)
    began = time.monotonic()
    with raises_context(OperationTimeoutError):
        with impatient.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2):
            pass
    assert time.monotonic() - began < 6


@scenario("a session that comes while somebody waits for it")
def _():
    import threading

    threading.Timer(1, lambda: fill("late", count=1)).start()
    with client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10) as session:
        equal(session.session.session_id, "late")
        [message] = receive(session, 1)
        session.complete_message(message)


@scenario("a session held elsewhere, and given back when its holder closes")
def _():
    fill("H", count=1)
    with client.get_queue_receiver("sessions", session_id="H"):
        with raises_context(SessionCannotBeLockedError):
            with impatient.get_queue_receiver("sessions", session_id="H"):
                pass
    with client.get_queue_receiver("sessions", session_id="H") as session:
        [message] = receive(session, 1)
        session.complete_message(message)


@scenario("abandoned in a session, it comes again in its place")
def _():
    fill("O")
    with client.get_queue_receiver("sessions", session_id="O") as session:
        first = receive(session, 1)[0]
        session.abandon_message(first)
        got = receive(session, 3)
        equal([str(m) for m in got], ["O0", "O1", "O2"])
        equal(got[0].delivery_count, 1)
        for message in got:
            session.complete_message(message)


@scenario("deferred in a session")
def _():
    fill("D", count=2)
    with client.get_queue_receiver("sessions", session_id="D") as session:
        first, second = receive(session, 2)
        session.defer_message(first)
        session.complete_message(second)
        [seen] = session.peek_messages(5, sequence_number=1)
        equal(seen.state, ServiceBusMessageState.DEFERRED)
        [first] = session.receive_deferred_messages(first.sequence_number)
        session.complete_message(first)


@scenario("a session's lock lapses: its holder is told, the next one has it")
def _():
    with client.get_queue_sender("brief-sessions") as sender:
        sender.send_messages(ServiceBusMessage("x", session_id="L"))
    with client.get_queue_receiver("brief-sessions", session_id="L") as first:
        [message] = receive(first, 1)
        time.sleep(2.5)
        raises(SessionLockLostError, lambda: first.complete_message(message))
        raises(SessionLockLostError, lambda: first.session.get_state())
    with client.get_queue_receiver("brief-sessions", session_id="L") as second:
        [message] = receive(second, 1)
        second.complete_message(message)


@scenario("sessions are listed")
def _():
    fill("list-a", "list-b", count=1)
    equal(sorted(client.list_queue_sessions("sessions")), ["list-a", "list-b"])
    drain_session("list-a"), drain_session("list-b")


@scenario("peek in a session entity without holding anything")
def _():
    fill("P", count=2)
    with client.get_queue_receiver("sessions", session_id="P") as session:
        equal([str(m) for m in session.peek_messages(5, sequence_number=1)], ["P0", "P1"])
    drain_session("P")


@scenario("a topic: each subscription what its filter lets through")
def _():
    with client.get_topic_sender("shop") as topic:
        topic.send_messages(
            [ServiceBusMessage(colour, application_properties={"colour": colour}) for colour in ("red", "blue")]
        )
        [number] = topic.schedule_messages(ServiceBusMessage("never"), utc(60))
        topic.cancel_scheduled_messages(number)
    with client.get_subscription_receiver("shop", "all") as every:
        got = receive(every, 2)
        equal([str(m) for m in got], ["red", "blue"])
        every.complete_message(got[0])
        every.dead_letter_message(got[1], reason="blue")
    with client.get_subscription_receiver("shop", "red") as red:
        [message] = receive(red, 1)
        equal(str(message), "red")
        red.complete_message(message)
        equal(red.receive_messages(1, max_wait_time=1), [])
    with client.get_subscription_receiver("shop", "all", sub_queue="deadletter") as dead:
        [letter] = receive(dead, 1)
        equal((str(letter), letter.dead_letter_reason), ("blue", "blue"))
        dead.complete_message(letter)


@scenario("a subscription with sessions")
def _():
    with client.get_topic_sender("orders") as topic:
        topic.send_messages([ServiceBusMessage(f"{n}", session_id="T") for n in range(3)])
    with client.get_subscription_receiver("orders", "billing", session_id="T") as session:
        got = receive(session, 3)
        equal([str(m) for m in got], ["0", "1", "2"])
        session.session.set_state(b"t")
        equal(session.session.get_state(), b"t")
        for message in got:
            session.complete_message(message)


@scenario("asyncio: send, receive, sessions, many at a time")
def _():
    async def run():
        async with AsyncClient.from_connection_string(CONNECTION) as asynchronous:
            async with asynchronous.get_queue_sender("plain") as sender:
                await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(20)])
            async with asynchronous.get_queue_receiver("plain", prefetch_count=10) as receiver:
                got = []
                while len(got) < 20:
                    got += await receiver.receive_messages(20, max_wait_time=2)
                await asyncio.gather(*[receiver.complete_message(m) for m in got])
                equal(await receiver.peek_messages(1), [])
            async with asynchronous.get_queue_sender("sessions") as sender:
                for session in range(10):
                    await sender.send_messages(ServiceBusMessage("x", session_id=f"async-{session}"))

            async def work():
                async with asynchronous.get_queue_receiver(
                    "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5
                ) as session:
                    [message] = await session.receive_messages(1, max_wait_time=5)
                    await session.complete_message(message)
                    return session.session.session_id

            equal(len(set(await asyncio.gather(*[work() for _ in range(10)]))), 10)

    asyncio.run(run())


@scenario("close")
def _():
    for handler in (plain, queue, sessions):
        handler.close()
    client.close()
    impatient.close()


end()
