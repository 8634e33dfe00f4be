"""Prints tokens as PyPI azure-servicebus makes them, one JSON object a line. See README.md."""

import json
from importlib.metadata import version

from azure.servicebus._pyamqp.utils import generate_sas_token

MADE_BY = f"azure-servicebus {version('azure-servicebus')} (PyPI)"
ROOT, KEY = "RootManageSharedAccessKey", "bm90IGEgcmVhbCBrZXkgKyBidXQgb25lPQ=="

for name, key, audience, path, expires in [
    # What the AMQP client asks for: `sb://{namespace}/{entity}`.
    (ROOT, KEY, "sb://shop.servicebus.windows.net/orders", "orders", 1_800_000_000),
    (ROOT, "SAS_KEY_VALUE", "sb://localhost/shop/Subscriptions/billing", "shop/subscriptions/billing", 1_800_000_001),
    (ROOT, "SAS_KEY_VALUE", "sb://localhost:5673/Orders/$DeadLetterQueue", "orders/$deadletterqueue", 1_800_000_002),
    (ROOT, KEY, "sb://localhost", "", 1_800_000_003),
    ("policy with spaces/+ü", KEY, "sb://localhost/a queue+b~ü", "a queue+b~ü", 1_800_000_004),
    # What the administration client asks for.
    (ROOT, KEY, "https://shop.servicebus.windows.net", "", 1_800_000_005),
]:
    token = generate_sas_token(audience, name, key, expires)
    print(json.dumps({"made_by": MADE_BY, "name": name, "key": key, "path": path, "expires": expires, "token": token}))
