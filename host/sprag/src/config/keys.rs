//! Every key of `sprag.toml`, declared once: its kind, its default and what it is for. The reader, the sample file and the
//! suggestions for mistyped keys all come from here.

/// What a key takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Text,
    /// A name of an entity, endpoint or handler: no control characters, at most 260 UTF-16 units.
    Name,
    Bool,
    Count(u64, u64),
    /// A text such as "30s", with the shortest and the longest allowed.
    Duration(&'static str, &'static str),
    /// A text such as "64MiB", with the smallest and the largest allowed.
    Bytes(&'static str, &'static str),
    Choice(&'static [&'static str]),
    /// `127.0.0.1:8080`.
    Address,
    /// The same, or `off`.
    AddressOrOff,
    /// `env:NAME` or `file:PATH`.
    Secret,
    Names,
    Texts,
    Table(&'static Section),
    Tables(&'static Section),
    /// A text, or a table.
    TextOrTable(&'static Section),
    /// Any table; the handler knows its keys.
    Free,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// As it would be written. Empty: there is none, and `required` says whether that is allowed.
    pub default: &'static str,
    pub required: bool,
    pub doc: &'static str,
    /// What the sample shows where there is no default.
    pub example: &'static str,
}

#[derive(Debug)]
pub(crate) struct Section {
    pub doc: &'static str,
    pub keys: &'static [Key],
    /// Keys of later builds: named as such instead of as unknown.
    pub later: &'static [&'static str],
}

const fn key(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default, required: false, doc, example: "" }
}

const fn required(name: &'static str, kind: Kind, example: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default: "", required: true, doc, example }
}

const fn optional(name: &'static str, kind: Kind, example: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default: "", required: false, doc, example }
}

pub(crate) static ROOT: Section = Section {
    doc: "",
    keys: &[
        optional("host", Kind::Table(&HOST), "", ""),
        optional("embedded", Kind::Table(&EMBEDDED), "", ""),
        optional("queue", Kind::Tables(&QUEUE), "", ""),
        optional("topic", Kind::Tables(&TOPIC), "", ""),
        optional("servicebus", Kind::Free, "", ""),
        optional("store", Kind::Free, "", ""),
        optional("endpoint", Kind::Tables(&ENDPOINT), "", ""),
        optional("handler", Kind::Free, "", ""),
    ],
    later: &["tokens", "webhook", "telemetry"],
};

pub(crate) static HOST: Section = Section {
    doc: "The process itself.",
    keys: &[
        key(
            "data",
            Kind::Text,
            "\".sprag\"",
            "Folder of the embedded engine, beside this file unless absolute. One process at a time.",
        ),
        key(
            "handlers",
            Kind::Text,
            "\"handlers\"",
            "Folder of the components: a file NAME.wasm serves as handler NAME.",
        ),
        key(
            "console",
            Kind::Address,
            "\"127.0.0.1:8080\"",
            "Where the HTTP API listens; a loopback address. Port 0 takes any free one.",
        ),
        key("shutdown_grace", Kind::Duration("0s", "1h"), "\"30s\"", "How long a stop waits for runs that have begun."),
        key(
            "max_size",
            Kind::Bytes("16MiB", "16TiB"),
            "\"10GiB\"",
            "Sends are refused once the engine's file is this large.",
        ),
        key("watch", Kind::Bool, "false", "Whether `run` follows changes in the handlers folder; `dev` always does."),
        optional(
            "control_key",
            Kind::Secret,
            "\"env:SPRAG_CONTROL_KEY\"",
            "Key that signs the host's own messages. Default: made at the first start and kept in the data folder.",
        ),
    ],
    later: &["tls", "roles", "backup"],
};

pub(crate) static EMBEDDED: Section = Section {
    doc: "The embedded engine's face to the network: Azure Service Bus clients. `dev` serves it always, `run` when this section is there.",
    keys: &[
        key(
            "listen",
            Kind::AddressOrOff,
            "\"127.0.0.1:5672\"",
            "Where AMQP is spoken in the clear. `dev` goes on without it when this default is taken.",
        ),
        key(
            "administration",
            Kind::AddressOrOff,
            "\"127.0.0.1:5300\"",
            "Where the HTTP administration API listens, for queues, topics, subscriptions and rules; a loopback address.",
        ),
        key(
            "plain_beyond_loopback",
            Kind::Bool,
            "false",
            "Lets `listen` be an address that other machines can reach. Keys and messages can then be read on the way.",
        ),
        key(
            "session_wait",
            Kind::Duration("100ms", "1h"),
            "\"60s\"",
            "How long a client waits for the next free session when it does not say how long.",
        ),
        key(
            "link_idle",
            Kind::Duration("1s", "3650d"),
            "\"10m\"",
            "A client's link on which nothing happens for so long is detached, as on Azure; a receiver that waits is one, too.",
        ),
        key(
            "connection_idle",
            Kind::Duration("1s", "3650d"),
            "\"5m\"",
            "A connection without a link to an entity is closed after so long, as on Azure; after 1m when it never had one.",
        ),
        optional(
            "tls",
            Kind::Table(&TLS),
            "{ listen = \"0.0.0.0:5671\", certificate = \"certificate.pem\", key = \"key.pem\" }",
            "Where AMQP is spoken through TLS. Default: nowhere.",
        ),
        optional(
            "keys",
            Kind::Tables(&SHARED_KEY),
            "[{ name = \"RootManageSharedAccessKey\", key = \"env:SPRAG_KEY\" }]",
            "Who is let in. Without any, `dev` takes the emulator's key, and `run` does not serve.",
        ),
    ],
    later: &["websockets"],
};

pub(crate) static TLS: Section = Section {
    doc: "A port with TLS.",
    keys: &[
        required("listen", Kind::Address, "\"0.0.0.0:5671\"", "Its address."),
        required(
            "certificate",
            Kind::Text,
            "\"certificate.pem\"",
            "File with the certificate and those that lead to its authority, in PEM.",
        ),
        required("key", Kind::Text, "\"key.pem\"", "File with the certificate's private key, in PEM."),
    ],
    later: &[],
};

pub(crate) static SHARED_KEY: Section = Section {
    doc: "A shared access key.",
    keys: &[
        required("name", Kind::Name, "\"RootManageSharedAccessKey\"", "Its name: `SharedAccessKeyName`."),
        required("key", Kind::Secret, "\"env:SPRAG_KEY\"", "The key itself: `SharedAccessKey`."),
        optional(
            "secondary",
            Kind::Secret,
            "\"env:SPRAG_SECOND_KEY\"",
            "A second one, so that the first can be replaced while clients still use it.",
        ),
        key(
            "rights",
            Kind::Texts,
            "[\"send\", \"listen\", \"manage\"]",
            "What it allows: `send`, `listen`, `manage`; the last one includes the others.",
        ),
        optional("entity", Kind::Name, "\"orders\"", "The only queue or topic that it is for. Default: all."),
    ],
    later: &[],
};

pub(crate) static QUEUE: Section = Section {
    doc: "A queue of the embedded engine.",
    keys: &[
        required("name", Kind::Name, "\"orders\"", "Its name, as `sprag send` takes it."),
        key(
            "requires_session",
            Kind::Bool,
            "false",
            "Every message must name a session; each session is handled in order.",
        ),
        key(
            "lock_duration",
            Kind::Duration("1s", "5m"),
            "\"30s\"",
            "How long a message or session stays locked without renewal.",
        ),
        key(
            "max_delivery_count",
            Kind::Count(1, 2_000),
            "10",
            "Hand-overs of one message before it goes to the dead letters.",
        ),
        optional(
            "ttl",
            Kind::Duration("1s", "3650d"),
            "\"14d\"",
            "How long a message waits before it expires. Default: for ever.",
        ),
        key("dead_letter_on_expiry", Kind::Bool, "true", "Expired messages go to the dead letters instead of away."),
        optional(
            "duplicate_window",
            Kind::Duration("20s", "7d"),
            "\"10m\"",
            "Drops a message whose id was sent within this time. Default: off.",
        ),
        key("max_message_size", Kind::Bytes("1KiB", "100MiB"), "\"1MiB\"", "Largest body that it takes."),
        MAX_SIZE,
        STATUS,
        FORWARD_TO,
        FORWARD_DEAD_LETTERS_TO,
        USER_METADATA,
    ],
    later: &["auto_delete_on_idle", "partitioned"],
};

const MAX_SIZE: Key = optional(
    "max_size",
    Kind::Bytes("1KiB", "16TiB"),
    "\"1GiB\"",
    "Sends are refused once its messages together are this large. Default: only `max_size` of the host counts.",
);

const STATUS: Key = key(
    "status",
    Kind::Choice(&["active", "disabled", "send-disabled", "receive-disabled"]),
    "\"active\"",
    "What may be done with it. What it holds stays.",
);

const FORWARD_TO: Key = optional(
    "forward_to",
    Kind::Name,
    "\"invoices\"",
    "Queue or topic that its messages go on to; over at most four. Not with `requires_session`.",
);

const FORWARD_DEAD_LETTERS_TO: Key =
    optional("forward_dead_letters_to", Kind::Name, "\"invoices\"", "Queue or topic that its dead letters go on to.");

const USER_METADATA: Key =
    optional("user_metadata", Kind::Text, "\"owned by billing\"", "A note, which administration clients show.");

pub(crate) static TOPIC: Section = Section {
    doc: "A topic of the embedded engine: each subscription gets a copy of what its filter lets through.",
    keys: &[
        required("name", Kind::Name, "\"shop\"", "Its name, as `sprag send` takes it."),
        optional(
            "duplicate_window",
            Kind::Duration("20s", "7d"),
            "\"10m\"",
            "Drops a message whose id was sent within this time. Default: off.",
        ),
        optional(
            "ttl",
            Kind::Duration("1s", "3650d"),
            "\"14d\"",
            "How long a copy waits at most before it expires, whatever its subscription says. Default: for ever.",
        ),
        key("max_message_size", Kind::Bytes("1KiB", "100MiB"), "\"1MiB\"", "Largest body that it takes."),
        MAX_SIZE,
        STATUS,
        USER_METADATA,
        optional(
            "subscriptions",
            Kind::Tables(&SUBSCRIPTION),
            "[{ name = \"billing\", requires_session = true }]",
            "Who listens.",
        ),
    ],
    later: &["auto_delete_on_idle", "partitioned"],
};

pub(crate) static SUBSCRIPTION: Section = Section {
    doc: "A subscription of a topic; the settings of a queue, and a filter.",
    keys: &[
        required("name", Kind::Name, "\"billing\"", "Its name within the topic."),
        optional(
            "filter",
            Kind::TextOrTable(&CORRELATION),
            "\"EventTypeId LIKE 'Order%'\"",
            "What it gets: an SQL rule over properties, as Azure Service Bus has it, or a table of what must be equal. Default: everything.",
        ),
        optional(
            "rules",
            Kind::Tables(&SUBSCRIPTION_RULE),
            "[{ name = \"big\", filter = \"total > 1000\", action = \"SET priority = 'high'\" }]",
            "Several filters, instead of `filter`. A message comes once for all rules without an action, and once for each with one.",
        ),
        key(
            "requires_session",
            Kind::Bool,
            "false",
            "Every message must name a session; each session is handled in order.",
        ),
        key(
            "lock_duration",
            Kind::Duration("1s", "5m"),
            "\"30s\"",
            "How long a message or session stays locked without renewal.",
        ),
        key(
            "max_delivery_count",
            Kind::Count(1, 2_000),
            "10",
            "Hand-overs of one message before it goes to the dead letters.",
        ),
        optional(
            "ttl",
            Kind::Duration("1s", "3650d"),
            "\"14d\"",
            "How long a message waits before it expires. Default: for ever.",
        ),
        key("dead_letter_on_expiry", Kind::Bool, "true", "Expired messages go to the dead letters instead of away."),
        MAX_SIZE,
        STATUS,
        FORWARD_TO,
        FORWARD_DEAD_LETTERS_TO,
        USER_METADATA,
    ],
    later: &["auto_delete_on_idle"],
};

pub(crate) static SUBSCRIPTION_RULE: Section = Section {
    doc: "Which messages a subscription gets, and how they are changed on their way in.",
    keys: &[
        required(
            "name",
            Kind::Name,
            "\"big\"",
            "Its name within the subscription: at most 50 characters, none of / \\ ? # @.",
        ),
        optional(
            "filter",
            Kind::TextOrTable(&CORRELATION),
            "\"total > 1000\"",
            "As `filter` of a subscription. Default: everything.",
        ),
        optional(
            "action",
            Kind::Text,
            "\"SET priority = 'high'; REMOVE note\"",
            "Changes its copy: `SET name = value` and `REMOVE name`. The copy says by `RuleName` which rule has made it.",
        ),
    ],
    later: &[],
};

pub(crate) static CORRELATION: Section = Section {
    doc: "What must be equal, all of it; compared with case.",
    keys: &[
        optional("message_id", Kind::Text, "\"order-1\"", "The message's id."),
        optional("session_id", Kind::Text, "\"customer-1\"", "Its session."),
        optional("subject", Kind::Text, "\"OrderPlaced\"", "Its subject (label)."),
        optional("content_type", Kind::Text, "\"application/json\"", "Its content type."),
        optional("correlation_id", Kind::Text, "\"order-1\"", "Its correlation id."),
        optional("to", Kind::Text, "\"billing\"", "Its address."),
        optional("reply_to", Kind::Text, "\"answers\"", "Where answers go."),
        optional("reply_to_session_id", Kind::Text, "\"customer-1\"", "The session of answers."),
        optional(
            "properties",
            Kind::Free,
            "{ EventTypeId = \"OrderPlaced\", total = 3 }",
            "Application properties: texts, numbers, true or false.",
        ),
    ],
    later: &[],
};

pub(crate) static ENDPOINT: Section = Section {
    doc: "A subscriber: one source, its handlers, its inbox, its retries.",
    keys: &[
        required("name", Kind::Name, "\"billing\"", "Its name; part of every inbox key, so it must not change."),
        required(
            "source",
            Kind::Table(&SOURCE),
            "{ topic = \"shop\", subscription = \"billing\" }",
            "{ queue = NAME } or { topic = NAME, subscription = NAME }.",
        ),
        key("concurrency", Kind::Count(1, 4_096), "64", "Sessions (or messages, without sessions) side by side."),
        optional(
            "handlers",
            Kind::Names,
            "[\"payment\"]",
            "Its handlers. Default: every handler that names the event type.",
        ),
        optional(
            "inbox",
            Kind::Table(&INBOX),
            "{ store = \"embedded\", retention = \"7d\" }",
            "Remembers what was handled, so that a redelivery does not run again. Default: none.",
        ),
        optional(
            "retry",
            Kind::Table(&RETRY),
            "{ strategy = \"exponential\", base = \"10s\", max = \"5m\", attempts = 5 }",
            "When a failed event is tried again by itself. Default: never.",
        ),
        key(
            "store",
            Kind::Name,
            "\"embedded\"",
            "Tracking, actions, outbox and handler state: `embedded`, `memory` (for tests), or the NAME of a [store.NAME].",
        ),
        key(
            "single_host",
            Kind::Bool,
            "false",
            "With a source on Service Bus and the embedded store: no other host serves this endpoint, now or later.",
        ),
        optional("publish", Kind::Names, "[\"invoices\"]", "Where its handlers may send. Default: any entity."),
        optional(
            "resolver",
            Kind::Name,
            "\"Resolver\"",
            "A queue or topic of its transport that is told of every outcome, in NimBus's form. Default: nobody.",
        ),
        key(
            "host_ended_limit",
            Kind::Count(1, 100),
            "3",
            "Runs that end with the process before the event fails as `host-ended`.",
        ),
    ],
    later: &["circuit", "keep_bodies", "nimbus_commands"],
};

pub(crate) static SOURCE: Section = Section {
    doc: "Where an endpoint's messages come from.",
    keys: &[
        optional("queue", Kind::Name, "\"orders\"", "A queue."),
        optional("topic", Kind::Name, "\"shop\"", "A topic, together with `subscription`."),
        optional("subscription", Kind::Name, "\"billing\"", "A subscription of `topic`."),
        optional("transport", Kind::Name, "\"prod\"", "The NAME of a [servicebus.NAME]. Default: the embedded engine."),
        key(
            "topology",
            Kind::Choice(&["sprag", "nimbus"]),
            "\"sprag\"",
            "On Service Bus. nimbus: the topic and its subscriptions that NimBus has for an endpoint of this name; without `queue` and `topic`.",
        ),
        optional(
            "filter",
            Kind::Text,
            "\"EventTypeId LIKE 'Order%'\"",
            "On Service Bus: the SQL rule of `subscription`. Default: everything.",
        ),
        key(
            "requires_session",
            Kind::Bool,
            "true",
            "On Service Bus: whether its queue has sessions. The entities of the embedded engine say it themselves.",
        ),
        key(
            "lock_duration",
            Kind::Duration("5s", "5m"),
            "\"30s\"",
            "On Service Bus: as its queue has it. Locks are counted with it.",
        ),
        key("max_delivery_count", Kind::Count(1, 2_000), "10", "On Service Bus: as its queue has it."),
    ],
    later: &[],
};

pub(crate) static SERVICEBUS: Section = Section {
    doc: "A namespace of Azure Service Bus, or what speaks as it does, by a name that sources use.",
    keys: &[
        required(
            "connection",
            Kind::Secret,
            "\"env:SERVICEBUS_CONNECTION\"",
            "Its connection string, with the rights Listen and Send. With `credential`: only its Endpoint=sb://NAMESPACE.",
        ),
        optional(
            "credential",
            Kind::Choice(&["environment", "workload-identity", "managed-identity"]),
            "\"managed-identity\"",
            "An identity of Microsoft Entra in place of a key. Needs a build with the feature `azure-identity`.",
        ),
        key(
            "client",
            Kind::Choice(&["sprag", "azservicebus"]),
            "\"sprag\"",
            "azservicebus: the community's crate, which promises less. Needs a build with the feature `azservicebus`.",
        ),
        key(
            "settle",
            Kind::Choice(&["management", "link"]),
            "\"management\"",
            "management: the broker's answer to each settlement is awaited. link: faster, and a refusal goes unseen.",
        ),
        key("operation_timeout", Kind::Duration("1s", "5m"), "\"30s\"", "How long one request, send or link may take."),
        key(
            "idle_timeout",
            Kind::Duration("2s", "4m"),
            "\"30s\"",
            "A broker that is silent for so long is gone; it is asked for a sign of life before.",
        ),
        key(
            "max_message_size",
            Kind::Bytes("1KiB", "100MiB"),
            "\"256KiB\"",
            "Largest body that its entities take: 256 KiB in the standard tier.",
        ),
        optional(
            "administration_port",
            Kind::Count(1, 65_535),
            "5300",
            "Port of its administration API, for `topology` and `check`. Default: 443; 5300 with UseDevelopmentEmulator=true.",
        ),
        optional(
            "authorities",
            Kind::Texts,
            "[\"authority.pem\"]",
            "Files (PEM) with certificates of authorities to trust beside the machine's own.",
        ),
    ],
    later: &[],
};

pub(crate) static STORE: Section = Section {
    doc: "A store, by a name that endpoints use.",
    keys: &[
        required(
            "kind",
            Kind::Choice(&["postgres", "sqlserver", "cosmos"]),
            "\"postgres\"",
            "What it is. sqlserver has neither `mode = \"transaction\"` nor `lease` yet; cosmos holds inboxes only (`inbox = { store = NAME }`).",
        ),
        required(
            "url",
            Kind::Secret,
            "\"env:DATABASE_URL\"",
            "Where it is and who asks: postgres://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full; mssql://USER:PASSWORD@HOST/DATABASE; AccountEndpoint=...;AccountKey=... on Cosmos DB.",
        ),
        optional(
            "pool",
            Kind::Count(1, 1_000),
            "16",
            "Connections that this host opens at most. Default: 16, or what the endpoints with SQL need: their concurrency and 2 more; 32 requests on Cosmos DB.",
        ),
        key(
            "allow_relaxed_consistency",
            Kind::Bool,
            "false",
            "Cosmos DB: takes an account whose consistency is weaker than Strong. Another host may then run what was recorded a moment ago.",
        ),
        optional(
            "sql_role",
            Kind::Text,
            "\"handlers\"",
            "The database's role that handlers' SQL is carried out as. It must not reach the host's tables; the user of the URL must be a member.",
        ),
        key(
            "auto_create_table",
            Kind::Bool,
            "true",
            "Whether missing tables are made at the start. Else they are checked, and what is missing is named.",
        ),
        optional(
            "authorities",
            Kind::Texts,
            "[\"authority.pem\"]",
            "Files (PEM) with certificates of authorities to trust beside the machine's own.",
        ),
    ],
    later: &[],
};

pub(crate) static INBOX: Section = Section {
    doc: "What an endpoint remembers of handled messages.",
    keys: &[
        optional(
            "store",
            Kind::Name,
            "\"embedded\"",
            "Where. Default: the endpoint's own `store`, where a record commits with everything else; another one in mode `record` only.",
        ),
        key(
            "mode",
            Kind::Choice(&["record", "transaction", "lease"]),
            "\"record\"",
            "`record`: check before, record after success. `transaction`: also SQL of handlers, in the transaction that records. `lease`: also keep copies apart that come at once, for sources without sessions.",
        ),
        key(
            "lease",
            Kind::Duration("1s", "1d"),
            "\"30s\"",
            "In mode `lease`: how long a host that died keeps others from its message. A run that takes longer renews it.",
        ),
        key("retention", Kind::Duration("1m", "3650d"), "\"7d\"", "How long a record stays."),
        key("cleanup_interval", Kind::Duration("1s", "30d"), "\"1h\"", "How often old records are purged."),
    ],
    later: &[],
};

pub(crate) static RETRY: Section = Section {
    doc: "When a failed event is tried again by itself.",
    keys: &[
        key("strategy", Kind::Choice(&["fixed", "linear", "exponential"]), "\"exponential\"", "How the delay grows."),
        key("base", Kind::Duration("1ms", "7d"), "\"10s\"", "The first delay."),
        key("max", Kind::Duration("1ms", "30d"), "\"5m\"", "No delay is longer, a handler's `retry-after` included."),
        key("attempts", Kind::Count(1, 1_000), "5", "Runs, the first included."),
        key(
            "jitter",
            Kind::Choice(&["none", "bounded", "full"]),
            "\"full\"",
            "full: 0 to the delay; bounded: a quarter around it.",
        ),
        optional(
            "on",
            Kind::Texts,
            "[\"timeout\", \"trap\"]",
            "Kinds of failure that are retried. Default: all but handoffs that expired or failed.",
        ),
        optional(
            "rules",
            Kind::Tables(&RULE),
            "[{ kind = \"timeout\", attempts = 2 }]",
            "Other schedules for failures that match; text goes before kind, kind before event type.",
        ),
    ],
    later: &[],
};

pub(crate) static RULE: Section = Section {
    doc: "A schedule for failures that match; what it leaves out it takes from `retry`.",
    keys: &[
        optional("kind", Kind::Text, "\"timeout\"", "Kind of failure."),
        optional("text", Kind::Text, "\"connection refused\"", "Part of the error's text, in any case."),
        optional("event_type", Kind::Text, "\"OrderPlaced\"", "Event type."),
        optional("strategy", Kind::Choice(&["fixed", "linear", "exponential"]), "\"fixed\"", "How the delay grows."),
        optional("base", Kind::Duration("1ms", "7d"), "\"1s\"", "The first delay."),
        optional("max", Kind::Duration("1ms", "30d"), "\"10s\"", "No delay is longer."),
        optional("attempts", Kind::Count(1, 1_000), "2", "Runs, the first included; 1 means no retry."),
        optional("jitter", Kind::Choice(&["none", "bounded", "full"]), "\"none\"", "As in `retry`."),
    ],
    later: &[],
};

pub(crate) static HANDLER: Section = Section {
    doc: "Settings of the handler whose file has this name. Without a section a handler has the defaults.",
    keys: &[
        optional(
            "config",
            Kind::Free,
            "{ currency = \"EUR\" }",
            "What its `config` import answers; granted by being there. A text `env:NAME` or `file:PATH` is read from there.",
        ),
        optional(
            "grant",
            Kind::Texts,
            "[\"state\"]",
            "Imports it may use beside context, outgoing, log, clocks and random: state, config, sql:NAME (NAME is the endpoint's store).",
        ),
        optional("limits", Kind::Table(&LIMITS), "{ time = \"5s\", memory = \"64MiB\" }", "What one run may use."),
        key(
            "isolation",
            Kind::Choice(&["message", "session", "pooled"]),
            "\"message\"",
            "message: a fresh instance for each; session, pooled: a healthy one is used again.",
        ),
        optional(
            "folders",
            Kind::Tables(&FOLDER),
            "[{ host = \"rates\", guest = \"/rates\" }]",
            "Folders it may open.",
        ),
    ],
    later: &["http", "env"],
};

pub(crate) static LIMITS: Section = Section {
    doc: "What one run may use.",
    keys: &[
        key("time", Kind::Duration("1ms", "1h"), "\"5s\"", "Wall time, host calls included."),
        key("memory", Kind::Bytes("64KiB", "4GiB"), "\"64MiB\"", "Linear memory."),
        key("stack", Kind::Bytes("64KiB", "8MiB"), "\"1MiB\"", "Stack."),
        key("tables", Kind::Count(1, 1_000_000), "100000", "Elements of all tables."),
        key("outgoing", Kind::Count(0, 100_000), "1000", "Messages published by one run."),
        key("outgoing_bytes", Kind::Bytes("0B", "1GiB"), "\"16MiB\"", "Their size together."),
        key("log", Kind::Bytes("0B", "16MiB"), "\"64KiB\"", "Log text of one run; more is cut."),
        key("body", Kind::Bytes("1KiB", "100MiB"), "\"1MiB\"", "Largest body of one message that it publishes."),
        key(
            "sql_time",
            Kind::Duration("1ms", "10m"),
            "\"1s\"",
            "One SQL statement; on the embedded engine, how long a run may hold it from its first write, while others wait.",
        ),
        key("sql_rows", Kind::Count(1, 1_000_000), "10000", "Rows of one SQL result."),
        key("sql_bytes", Kind::Bytes("1KiB", "1GiB"), "\"4MiB\"", "Bytes of one SQL result."),
    ],
    later: &[],
};

pub(crate) static FOLDER: Section = Section {
    doc: "A folder that a handler may open.",
    keys: &[
        required("host", Kind::Text, "\"rates\"", "On this machine, beside this file unless absolute."),
        required("guest", Kind::Text, "\"/rates\"", "As the handler sees it."),
        key("write", Kind::Bool, "false", "Whether it may change what is there."),
    ],
    later: &[],
};
