"""Case A79: the broker closes links and connections that are idle (here after 2 seconds), and the SDK goes on as if nothing had been."""

import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from scenario import CONNECTION, end, equal, scenario

IDLE = 2


@scenario("a client that does nothing for a while goes on")
def _():
    with ServiceBusClient.from_connection_string(CONNECTION) as client:
        sender, receiver = client.get_queue_sender("plain"), client.get_queue_receiver("plain", max_wait_time=5)
        with sender, receiver:
            for n in range(3):
                began = time.monotonic()
                sender.send_messages(ServiceBusMessage(str(n)))
                (message,) = receiver.receive_messages(max_wait_time=5)
                equal(str(message), str(n))
                receiver.complete_message(message)
                assert time.monotonic() - began < 10
                # Links first, and then their connection.
                time.sleep(3 * IDLE)


end()
