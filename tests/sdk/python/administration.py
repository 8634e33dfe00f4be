"""Scenarios of the administration client of PyPI azure-servicebus (7.15.0), as its users write them.

SPRAG_ADMINISTRATION is host:port of the API. The client always speaks HTTPS, also with UseDevelopmentEmulator=true; so its transport is told to
use HTTP, and that is the only change. With SPRAG_ADMINISTRATION_TLS=1 not even that: the API is behind TLS, and REQUESTS_CA_BUNDLE and
SSL_CERT_FILE name who is to be trusted. SPRAG_ADMINISTRATION_KEY is the key when it is not the emulator's. One line per scenario; exits with 1
when one failed.
"""

import asyncio
import os
import sys
import time
import traceback
from datetime import datetime, timedelta, timezone
from importlib.metadata import version

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

ENDPOINT = os.environ["SPRAG_ADMINISTRATION"]
KEY = os.environ.get("SPRAG_ADMINISTRATION_KEY", "SAS_KEY_VALUE")
TLS = os.environ.get("SPRAG_ADMINISTRATION_TLS") == "1"
PREFIX = f"py{os.getpid()}-"
FOR_EVER = timedelta(days=10675199)


def plain(request):
    if not TLS:
        request.url = request.url.replace("https://", "http://", 1)
    return request


class Plain(RequestsTransport):
    def send(self, request, **kwargs):
        return super().send(plain(request), **kwargs)


class AsyncPlain(AioHttpTransport):
    async def send(self, request, **kwargs):
        return await super().send(plain(request), **kwargs)


def connection(key=KEY, name="RootManageSharedAccessKey"):
    return f"Endpoint=sb://{ENDPOINT}/;SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"


def client(**kwargs):
    return ServiceBusAdministrationClient.from_connection_string(connection(**kwargs), transport=Plain())


admin = client()
failed = []
print(f"azure-servicebus {version('azure-servicebus')}, administration", flush=True)


def scenario(function):
    name, started = function.__name__.replace("_", " "), time.monotonic()
    try:
        function()
        print(f"ok   {name} ({time.monotonic() - started:.2f} s)", flush=True)
    except Exception as error:  # pylint: disable=broad-except
        failed.append(name)
        print(f"FAIL {name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
        traceback.print_exc()


def expect(kind, call, part=""):
    try:
        call()
    except kind as error:
        assert part.lower() in str(error).lower(), f"{part!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


@scenario
def namespace_properties():
    found = admin.get_namespace_properties()
    assert found.name == ENDPOINT.split(":")[0] and found.namespace_type == "Messaging", vars(found)
    assert found.created_at_utc and found.modified_at_utc and found.messaging_sku == "Premium", vars(found)


@scenario
def queue_with_defaults():
    made = admin.create_queue(PREFIX + "q")
    assert made.name == PREFIX + "q" and made.status == EntityStatus.ACTIVE
    assert made.lock_duration == timedelta(seconds=30) and made.max_delivery_count == 10
    assert made.default_message_time_to_live >= FOR_EVER and made.auto_delete_on_idle >= FOR_EVER
    assert made.requires_session is False and made.requires_duplicate_detection is False
    assert made.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert made.max_size_in_megabytes == 1024 and made.max_message_size_in_kilobytes == 1024
    assert made.enable_batched_operations is True and made.enable_partitioning is False
    assert not made.authorization_rules and made.user_metadata is None and made.forward_to is None
    assert made.availability_status == "Available", made.availability_status


@scenario
def queue_with_all_settings():
    given = dict(
        default_message_time_to_live=timedelta(minutes=11),
        lock_duration="PT13S",
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        max_message_size_in_kilobytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=12),
        requires_session=True,
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        user_metadata="owner <me> & you",
        forward_dead_lettered_messages_to=PREFIX + "q",
    )
    admin.create_queue(PREFIX + "all", **given)
    made = admin.get_queue(PREFIX + "all")
    assert made.lock_duration == timedelta(seconds=13)
    assert made.forward_dead_lettered_messages_to == f"sb://{ENDPOINT}/{PREFIX}q", made.forward_dead_lettered_messages_to
    for name, value in given.items():
        if name not in ("lock_duration", "forward_dead_lettered_messages_to"):
            assert getattr(made, name) == value, (name, getattr(made, name), value)


@scenario
def queue_read_and_written_back():
    before = admin.get_queue(PREFIX + "all")
    before.max_delivery_count = 15
    admin.update_queue(before)
    admin.update_queue(before, status=EntityStatus.SEND_DISABLED)
    after = admin.get_queue(PREFIX + "all")
    assert after.status == EntityStatus.SEND_DISABLED and after.max_delivery_count == 15
    for name in before.keys():
        if name not in ("status", "max_delivery_count") and not name.startswith("_"):
            assert getattr(before, name) == getattr(after, name), name
    idle = admin.get_queue(PREFIX + "q")
    admin.update_queue(idle)
    assert admin.get_queue(PREFIX + "q").default_message_time_to_live >= FOR_EVER


@scenario
def queue_forwards():
    admin.create_queue(PREFIX + "forward", forward_to=PREFIX + "q")
    found = admin.get_queue(PREFIX + "forward")
    assert found.forward_to == f"sb://{ENDPOINT}/{PREFIX}q", found.forward_to
    found.forward_to = None
    admin.update_queue(found)
    assert admin.get_queue(PREFIX + "forward").forward_to is None
    expect(HttpResponseError, lambda: admin.create_queue(PREFIX + "x", forward_to=PREFIX + "nowhere"), "nowhere")


@scenario
def queue_named_like_a_path():
    name = PREFIX + "a/b.c_d"
    admin.create_queue(name)
    assert admin.get_queue(name).name == name
    assert name in [queue.name for queue in admin.list_queues()]
    admin.delete_queue(name)
    expect(ResourceNotFoundError, lambda: admin.get_queue(name))


@scenario
def queue_runtime_properties():
    found = admin.get_queue_runtime_properties(PREFIX + "q")
    assert found.name == PREFIX + "q" and found.total_message_count == 0 and found.size_in_bytes == 0
    assert found.active_message_count == found.dead_letter_message_count == found.scheduled_message_count == 0
    assert found.transfer_message_count == found.transfer_dead_letter_message_count == 0
    now = datetime.now(timezone.utc)
    for at in (found.created_at_utc, found.updated_at_utc, found.accessed_at_utc):
        assert abs((now - at).total_seconds()) < 600, at


@scenario
def queues_listed_over_pages():
    names = [f"{PREFIX}list{n:03}" for n in range(130)]
    for name in names:
        admin.create_queue(name)
    listed = [queue.name for queue in admin.list_queues()]
    assert [name for name in listed if "list" in name and name.startswith(PREFIX)] == names
    assert len(listed) == len(set(listed))
    runtime = {queue.name: queue for queue in admin.list_queues_runtime_properties()}
    assert all(runtime[name].total_message_count == 0 for name in names)
    for name in names:
        admin.delete_queue(name)
    assert not [queue for queue in admin.list_queues() if queue.name in names]


@scenario
def queue_errors():
    error = expect(ResourceExistsError, lambda: admin.create_queue(PREFIX + "q"), "")
    assert error.status_code == 409, error
    expect(ResourceNotFoundError, lambda: admin.get_queue(PREFIX + "none"))
    expect(ResourceNotFoundError, lambda: admin.get_queue_runtime_properties(PREFIX + "none"))
    expect(ResourceNotFoundError, lambda: admin.delete_queue(PREFIX + "none"))
    found = admin.get_queue(PREFIX + "q")
    found.name = PREFIX + "none"
    expect(ResourceNotFoundError, lambda: admin.update_queue(found))
    for given, part in [
        (dict(lock_duration=timedelta(minutes=6)), "lock_duration"),
        (dict(max_delivery_count=0), "max_delivery_count"),
        (dict(auto_delete_on_idle=timedelta(minutes=10)), "AutoDeleteOnIdle"),
        (dict(authorization_rules=[AuthorizationRule(key_name="k", rights=[AccessRights.SEND])]), "AuthorizationRules"),
    ]:
        error = expect(HttpResponseError, lambda: admin.create_queue(PREFIX + "bad", **given), part)  # pylint: disable=cell-var-from-loop
        assert error.status_code == 400, error
    found = admin.get_queue(PREFIX + "q")
    found.requires_session = True
    expect(HttpResponseError, lambda: admin.update_queue(found), "requires_session")


@scenario
def topics():
    made = admin.create_topic(PREFIX + "t", default_message_time_to_live=timedelta(days=2), user_metadata="topic")
    assert made.name == PREFIX + "t" and made.default_message_time_to_live == timedelta(days=2)
    admin.create_topic(PREFIX + "t2", requires_duplicate_detection=True, max_size_in_megabytes=2048, support_ordering=False)
    other = admin.get_topic(PREFIX + "t2")
    assert other.requires_duplicate_detection and other.max_size_in_megabytes == 2048 and other.support_ordering is False
    made.status = EntityStatus.DISABLED
    admin.update_topic(made)
    found = admin.get_topic(PREFIX + "t")
    assert found.status == EntityStatus.DISABLED and found.user_metadata == "topic"
    admin.update_topic(found, status=EntityStatus.ACTIVE)
    listed = [topic.name for topic in admin.list_topics() if topic.name.startswith(PREFIX)]
    assert listed == [PREFIX + "t", PREFIX + "t2"], listed
    runtime = admin.get_topic_runtime_properties(PREFIX + "t")
    assert runtime.subscription_count == 0 and runtime.size_in_bytes == 0 and runtime.scheduled_message_count == 0
    assert {topic.name for topic in admin.list_topics_runtime_properties()} >= set(listed)
    admin.delete_topic(PREFIX + "t2")
    expect(ResourceNotFoundError, lambda: admin.get_topic(PREFIX + "t2"))
    expect(ResourceExistsError, lambda: admin.create_topic(PREFIX + "t"))


@scenario
def subscriptions():
    topic = PREFIX + "t"
    made = admin.create_subscription(
        topic,
        "s",
        lock_duration=timedelta(seconds=20),
        requires_session=True,
        max_delivery_count=4,
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        default_message_time_to_live=timedelta(hours=1),
        user_metadata="sub",
        forward_dead_lettered_messages_to=PREFIX + "q",
    )
    assert made.name == "s" and made.requires_session and made.max_delivery_count == 4
    assert made.dead_lettering_on_filter_evaluation_exceptions is False and made.dead_lettering_on_message_expiration
    assert made.forward_dead_lettered_messages_to == f"sb://{ENDPOINT}/{PREFIX}q"
    admin.create_subscription(topic, "s2", forward_to=PREFIX + "q")
    assert admin.get_subscription(topic, "s2").forward_to == f"sb://{ENDPOINT}/{PREFIX}q"
    made.max_delivery_count = 5
    admin.update_subscription(topic, made)
    found = admin.get_subscription(topic, "s")
    assert found.max_delivery_count == 5 and found.user_metadata == "sub" and found.lock_duration == timedelta(seconds=20)
    assert [it.name for it in admin.list_subscriptions(topic)] == ["s", "s2"]
    assert [it.name for it in admin.list_subscriptions_runtime_properties(topic)] == ["s", "s2"]
    runtime = admin.get_subscription_runtime_properties(topic, "s")
    assert runtime.name == "s" and runtime.total_message_count == runtime.active_message_count == 0
    assert admin.get_topic_runtime_properties(topic).subscription_count == 2
    expect(ResourceExistsError, lambda: admin.create_subscription(topic, "s"))
    expect(ResourceNotFoundError, lambda: admin.get_subscription(topic, "none"))
    expect(ResourceNotFoundError, lambda: admin.get_subscription(PREFIX + "none", "s"))
    expect(ResourceNotFoundError, lambda: admin.create_subscription(PREFIX + "none", "s"))
    admin.delete_subscription(topic, "s2")
    expect(ResourceNotFoundError, lambda: admin.delete_subscription(topic, "s2"))


@scenario
def rules():
    topic, sub = PREFIX + "t", "s"
    default = admin.get_rule(topic, sub, "$Default")
    assert default.name == "$Default" and type(default.filter) is TrueRuleFilter and default.action is None, vars(default)
    at = datetime(2026, 11, 30, 1, 2, 3, tzinfo=timezone.utc)
    sql = SqlRuleFilter(
        "a = @text AND b = @int AND c > @double AND d = @flag AND e < @at",
        parameters={"@text": "x < y", "@int": 7, "@double": 2.5, "@flag": True, "@at": at},
    )
    admin.create_rule(topic, sub, "sql", filter=sql, action=SqlRuleAction("SET z = @z", parameters={"@z": 2**40}))
    found = admin.get_rule(topic, sub, "sql")
    assert found.filter.sql_expression == sql.sql_expression and found.filter.parameters == sql.parameters, found.filter.parameters
    assert found.action.sql_expression == "SET z = @z" and found.action.parameters == {"@z": 2**40}, vars(found.action)
    assert found.created_at_utc
    fields = dict(
        correlation_id="c", message_id="m", to="to", reply_to="r", label="l", session_id="s", reply_to_session_id="rs", content_type="ct"
    )
    properties = {"text": "value", "int": 7, "double": 2.5, "flag": False, "at": at}
    admin.create_rule(topic, sub, "correlation", filter=CorrelationRuleFilter(**fields, properties=properties))
    found = admin.get_rule(topic, sub, "correlation").filter
    assert type(found) is CorrelationRuleFilter and found.properties == properties, found.properties
    assert all(getattr(found, name) == value for name, value in fields.items()), vars(found)
    admin.create_rule(topic, sub, "none", filter=FalseRuleFilter())
    admin.create_rule(topic, sub, "every", filter=TrueRuleFilter())
    kinds = {rule.name: type(rule.filter) for rule in admin.list_rules(topic, sub)}
    assert kinds == {
        "$Default": TrueRuleFilter,
        "correlation": CorrelationRuleFilter,
        "every": TrueRuleFilter,
        "none": FalseRuleFilter,
        "sql": SqlRuleFilter,
    }, kinds
    rule = admin.get_rule(topic, sub, "sql")
    rule.filter = CorrelationRuleFilter(label="changed")
    rule.action = None
    admin.update_rule(topic, sub, rule)
    found = admin.get_rule(topic, sub, "sql")
    assert found.filter.label == "changed" and found.action is None
    expect(ResourceExistsError, lambda: admin.create_rule(topic, sub, "none", filter=TrueRuleFilter()))
    expect(HttpResponseError, lambda: admin.create_rule(topic, sub, "bad", filter=SqlRuleFilter("a >")), "at character")
    expect(ResourceNotFoundError, lambda: admin.get_rule(topic, sub, "missing"))
    admin.delete_rule(topic, sub, "sql")
    expect(ResourceNotFoundError, lambda: admin.delete_rule(topic, sub, "sql"))


@scenario
def only_with_the_key():
    for given in (dict(key="wrong"), dict(name="nobody")):
        other = client(**given)
        error = expect(ClientAuthenticationError, lambda: other.get_queue(PREFIX + "q"))  # pylint: disable=cell-var-from-loop
        assert error.status_code == 401, error


@scenario
def all_versions_of_the_api():
    for api_version in ApiVersion:
        other = ServiceBusAdministrationClient.from_connection_string(connection(), transport=Plain(), api_version=api_version)
        assert other.get_queue(PREFIX + "q").name == PREFIX + "q", api_version


@scenario
def the_asynchronous_client():
    async def run():
        async with AsyncClient.from_connection_string(connection(), transport=AsyncPlain()) as other:
            made = await other.create_topic(PREFIX + "async")
            await other.create_subscription(PREFIX + "async", "s")
            await other.create_rule(PREFIX + "async", "s", "r", filter=SqlRuleFilter("a = 1"))
            rules_ = [rule.name async for rule in other.list_rules(PREFIX + "async", "s")]
            assert made.name == PREFIX + "async" and rules_ == ["$Default", "r"], rules_
            await other.delete_topic(PREFIX + "async")
            try:
                await other.get_topic(PREFIX + "async")
            except ResourceNotFoundError:
                return
            raise AssertionError("it is there")

    asyncio.run(run())


@scenario
def all_is_removed():
    admin.delete_topic(PREFIX + "t")
    for queue in list(admin.list_queues()):
        if queue.name.startswith(PREFIX):
            admin.delete_queue(queue.name)
    left = [it.name for it in [*admin.list_queues(), *admin.list_topics()] if it.name.startswith(PREFIX)]
    assert not left, left


print(f"{len(failed)} failed" if failed else "all passed", flush=True)
sys.exit(1 if failed else 0)
