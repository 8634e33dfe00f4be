"""Sends parcels: gives each a tracking number of the carrier."""

import json
import zlib

from sprag import WitWorld  # noqa: F401 (what the component exports)
from sprag import config, dead_letter, log, on


@on("ShipmentRequested")
def ship(message):
    shipment = message.json()
    countries = json.loads(config.get("countries", "[]"))
    if shipment["country"] not in countries:
        raise dead_letter("undeliverable", f"{config.get('carrier')} does not go to {shipment['country']}")
    log.info(f"order {shipment['order']} leaves as parcel {tracking_number(shipment['order'])}")


def tracking_number(order):
    # From the order alone, so that a second run for the same order names the same parcel.
    return f"BV{zlib.crc32(order.encode()):010}"
