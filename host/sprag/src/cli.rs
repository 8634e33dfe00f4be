//! The verbs and their arguments.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use sprag_core::{operations, outcome::Outcome, time::Timestamp};

use crate::{client::HostArgs, config};

/// Runs message handlers, compiled to WebAssembly, once per event and in order per session.
#[derive(Debug, Parser)]
#[command(
    name = "sprag",
    version,
    arg_required_else_help = true,
    max_term_width = 110,
    after_help = "\
First steps:
  sprag new orders --lang rust         a handler project
  sprag build orders --out handlers    its component
  sprag dev                            a host here, with an embedded broker
  sprag send orders --session c1 --type OrderPlaced --body '{\"total\": 3}'
  sprag events                         what became of it

Exit codes: 0 done, 1 failed, 2 usage, 73 data folder held, 75 try again, 78 configuration.
`sprag explain CODE` says what an error means."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for the life of the process")]
pub(crate) enum Verb {
    /// Make a handler project that builds and runs as it is
    New(NewArgs),
    /// Compile handlers of any supported language into components
    Build(BuildArgs),
    /// Run a folder: embedded broker, API, and handlers reloaded as they change
    Dev(DevArgs),
    /// Run a configuration in production: structured logs, no watching unless asked
    Run(RunArgs),
    /// Check the configuration, components, grants and retention
    Check(CheckArgs),
    /// Show, compare or make the entities that endpoints need on Service Bus
    #[command(subcommand)]
    Topology(TopologyVerb),
    /// Send messages to a queue or topic
    Send(SendArgs),
    /// List events, show one with its history, or group failures
    Events(EventsArgs),
    /// List sessions, what blocks them and what is parked in them
    Sessions(PlaceArgs),
    /// List messages that wait behind a block
    Parked(PlaceArgs),
    /// List messages that become visible later, or cancel one
    Scheduled(ScheduledArgs),
    /// List messages that were given up, or put them back
    DeadLetters(DeadLettersArgs),
    /// List what the inbox remembers
    Inbox(InboxArgs),
    /// List handlers, their versions and why one is refused
    Handlers(PlainArgs),
    /// List endpoints and what waits for them
    Endpoints(PlainArgs),
    /// List what operators did
    Audit(PagedArgs),
    /// List messages of handlers that have not left, let one go on, or drop it
    Outbox(OutboxArgs),
    /// Run a failed event again
    Resubmit(ResubmitArgs),
    /// Give up on an event
    Skip(SkipArgs),
    /// Give up on everything that waits in a session
    SkipSession(SkipSessionArgs),
    /// End an event that was handed off
    Handoff(HandoffArgs),
    /// Look at an entity's messages without taking them
    Peek(PeekArgs),
    /// Delete an endpoint's old inbox records
    PurgeInbox(PurgeInboxArgs),
    /// Follow events as they change
    Tail(TailArgs),
    /// Say what an error code means and what to do
    Explain(ExplainArgs),
    /// Say what this machine offers
    Doctor(DoctorArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Language {
    Rust,
    Javascript,
    Python,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sprag new payment --lang python --with state,config")]
pub(crate) struct NewArgs {
    /// Name of the handler and of its folder
    pub name: String,
    /// Language
    #[arg(long, value_enum)]
    pub lang: Language,
    /// Imports that it needs beside the usual ones: state, config
    #[arg(long, value_delimiter = ',', value_name = "IMPORTS")]
    pub with: Vec<String>,
    /// Folder in which the project's folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sprag build payment shipping --out handlers")]
pub(crate) struct BuildArgs {
    /// Projects or single source files
    #[arg(default_value = ".")]
    pub paths: Vec<PathBuf>,
    /// Where the components go [default: handlers/ beside the nearest sprag.toml upwards, else the project's folder]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without a sprag.toml there is one endpoint, named after the folder, on a session queue of the same name.\n\nExample:\n  sprag dev samples/shop"
)]
pub(crate) struct DevArgs {
    /// Folder to run
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Address of the API [default: as configured, else 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub console: Option<SocketAddr>,
    /// Address for Service Bus clients, or off [default: as configured, else 127.0.0.1:5672]
    #[arg(long, value_name = "ADDRESS|off", value_parser = address_or_off)]
    pub amqp: Option<AddressOrOff>,
    /// Address of the HTTP administration API, or off [default: as configured, else 127.0.0.1:5300]
    #[arg(long, value_name = "ADDRESS|off", value_parser = address_or_off)]
    pub administration: Option<AddressOrOff>,
    /// Also watch the sources in the folder and build them
    #[arg(long)]
    pub build: bool,
    /// Do not print a line per message
    #[arg(long, short)]
    pub quiet: bool,
}

/// None stands for `off`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressOrOff(pub Option<SocketAddr>);

fn address_or_off(text: &str) -> Result<AddressOrOff, String> {
    match text {
        "off" => Ok(AddressOrOff(None)),
        text => text
            .parse()
            .map(|it| AddressOrOff(Some(it)))
            .map_err(|_| "an address such as 127.0.0.1:5672, or off".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sprag run --config /etc/sprag/sprag.toml --log json")]
pub(crate) struct RunArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "sprag.toml")]
    pub config: PathBuf,
    /// How the log is written
    #[arg(long, value_enum, default_value = "human")]
    pub log: LogFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopologyVerb {
    /// What is there of what the endpoints need
    Show(TopologyArgs),
    /// What `apply` would change; exit code 1 when there is anything
    Diff(TopologyArgs),
    /// Makes what is missing and changes settings in place; nothing is removed or made anew
    Apply(TopologyArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sprag topology diff\n  sprag topology apply --transport prod")]
pub(crate) struct TopologyArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "sprag.toml")]
    pub config: PathBuf,
    /// Only the namespace of [servicebus.NAME]; all of them otherwise
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sprag check\n  sprag check --print-sample > sprag.toml")]
pub(crate) struct CheckArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "sprag.toml")]
    pub config: PathBuf,
    /// Print the documented sample configuration instead
    #[arg(long)]
    pub print_sample: bool,
    /// Findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag send orders --session c1 --type OrderPlaced --body '{\"total\": 3}'
  sprag send orders --body @order.json --header tenant=acme --at 10m
  sprag send shop --lines events.jsonl

A line of --lines is {\"type\", \"id\", \"session\", \"body\", \"headers\"} or a CloudEvent (session: `sessionid`, else `subject`).")]
pub(crate) struct SendArgs {
    /// Queue or topic
    pub entity: String,
    /// Event type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Message id [default: a new one]
    #[arg(long)]
    pub id: Option<String>,
    /// Session
    #[arg(long)]
    pub session: Option<String>,
    /// Body: a text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub body: Option<String>,
    /// The body may be any bytes, not only UTF-8 text
    #[arg(long)]
    pub binary: bool,
    /// Content type of the body
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Application property; can be repeated
    #[arg(long = "header", value_name = "K=V")]
    pub headers: Vec<String>,
    /// Visible only then: a time such as 2026-12-01T08:00:00Z, or from now such as 10m
    #[arg(long, value_name = "TIME", value_parser = from_now)]
    pub at: Option<Timestamp>,
    /// Send one message per line of a file; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["event_type", "id", "session", "body", "binary", "content_type", "headers", "at"])]
    pub lines: Option<PathBuf>,
    /// With --lines: leave out lines that are wrong instead of stopping
    #[arg(long, requires = "lines")]
    pub keep_going: bool,
    /// Ids and sequence numbers as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host: HostArgs,
}

/// What every listing takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlainArgs {
    /// The listing as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host: HostArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PagedArgs {
    /// At most this many, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// What follows an earlier part: its `next`
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
    #[command(flatten)]
    pub plain: PlainArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventFilterArgs {
    /// Of this endpoint
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Of this session
    #[arg(long)]
    pub session: Option<String>,
    /// Of this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// With this outcome; several with commas
    #[arg(long, value_delimiter = ',', value_parser = outcome)]
    pub outcome: Vec<Outcome>,
    /// Changed since: a time, or ago such as 1h
    #[arg(long, value_name = "TIME", value_parser = ago)]
    pub since: Option<Timestamp>,
    /// Changed until: a time, or ago such as 1h
    #[arg(long, value_name = "TIME", value_parser = ago)]
    pub until: Option<Timestamp>,
    /// Whose id starts like this
    #[arg(long)]
    pub id: Option<String>,
    /// Whose error contains this
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// Of this group of failures
    #[arg(long, value_name = "KEY")]
    pub group: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  sprag events --outcome failed --since 1h
  sprag events show order-17
  sprag events groups"
)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    pub verb: Option<EventsVerb>,
    #[command(flatten)]
    pub list: EventListArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventListArgs {
    #[command(flatten)]
    pub filter: EventFilterArgs,
    #[command(flatten)]
    pub page: PagedArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EventsVerb {
    /// List events, newest change first
    List(EventListArgs),
    /// Show one event, its history and its message
    Show {
        /// Event id or message id
        id: String,
        /// Its endpoint, when several have the id
        #[arg(long)]
        endpoint: Option<String>,
        #[command(flatten)]
        plain: PlainArgs,
    },
    /// Group failures that failed in the same way
    Groups(EventListArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Of this endpoint
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Of this queue or subscription
    #[arg(long)]
    pub entity: Option<String>,
    /// Of this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only sessions that wait for an event
    #[arg(long)]
    pub blocked: bool,
    #[command(flatten)]
    pub page: PagedArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ScheduledArgs {
    #[command(subcommand)]
    pub verb: Option<ScheduledVerb>,
    #[command(flatten)]
    pub list: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduledVerb {
    /// List scheduled messages
    List(PlaceArgs),
    /// Take one back
    Cancel {
        /// Queue or topic
        entity: String,
        /// Its sequence number
        sequence_number: i64,
        #[command(flatten)]
        host: HostArgs,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    pub verb: Option<DeadLettersVerb>,
    #[command(flatten)]
    pub list: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLettersVerb {
    /// List dead letters
    List(PlaceArgs),
    /// Put dead letters back onto their entity
    Replay {
        /// Queue or topic/subscription
        entity: String,
        /// Their sequence numbers
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        sequence_numbers: Vec<i64>,
        /// All that are there now
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        host: HostArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    /// Of this endpoint
    #[arg(long)]
    pub endpoint: Option<String>,
    /// This message id
    #[arg(long = "message", alias = "message-id", value_name = "ID")]
    pub message_id: Option<String>,
    #[command(flatten)]
    pub page: PagedArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    pub verb: Option<OutboxVerb>,
    #[command(flatten)]
    pub list: PagedArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxVerb {
    /// List messages that have not left
    List(PagedArgs),
    /// Let a poison message be tried again
    Retry {
        id: i64,
        #[command(flatten)]
        host: HostArgs,
    },
    /// Drop a poison message
    Drop {
        id: i64,
        #[command(flatten)]
        host: HostArgs,
    },
}

/// How an action is followed.
#[derive(Debug, Clone, Args)]
pub(crate) struct FollowArgs {
    /// Its endpoint, when several have the id
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Do not wait until it is applied
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = config::parse_duration)]
    pub timeout: Duration,
    /// The result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host: HostArgs,
}

/// Acting on a group of failures.
#[derive(Debug, Clone, Args)]
pub(crate) struct GroupArgs {
    /// Every failure of this group (see `sprag events groups`)
    #[arg(long, value_name = "KEY", conflicts_with = "event")]
    pub group: Option<String>,
    /// With --group: only failures until then [default: now]
    #[arg(long, value_name = "TIME", value_parser = ago, requires = "group")]
    pub until: Option<Timestamp>,
    /// With --group: say what would be touched, and touch nothing
    #[arg(long, requires = "group")]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag resubmit order-17
  sprag resubmit order-17 --body @fixed.json
  sprag resubmit --group 3f2a9c01d4e5b677 --dry-run")]
pub(crate) struct ResubmitArgs {
    /// Event id or message id
    #[arg(required_unless_present = "group")]
    pub event: Option<String>,
    /// With another body: a text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true, conflicts_with = "group")]
    pub body: Option<String>,
    /// Hand a copy to another endpoint instead
    #[arg(long, value_name = "ENDPOINT", conflicts_with_all = ["group", "again", "body"])]
    pub to: Option<String>,
    /// Even though it is completed or skipped: it counts as a new event
    #[arg(long, conflicts_with = "group")]
    pub again: bool,
    /// Why, for the audit
    #[arg(long)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub group: GroupArgs,
    #[command(flatten)]
    pub follow: FollowArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sprag skip order-17 --reason 'customer is gone'")]
pub(crate) struct SkipArgs {
    /// Event id or message id
    #[arg(required_unless_present = "group")]
    pub event: Option<String>,
    /// Why
    #[arg(long)]
    pub reason: String,
    #[command(flatten)]
    pub group: GroupArgs,
    #[command(flatten)]
    pub follow: FollowArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sprag skip-session customer-3 --reason 'account closed' --dry-run")]
pub(crate) struct SkipSessionArgs {
    pub session: String,
    /// Why
    #[arg(long)]
    pub reason: String,
    /// Say what would be touched, and touch nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub follow: FollowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HandoffArgs {
    #[command(subcommand)]
    pub verb: HandoffVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HandoffVerb {
    /// The work was done elsewhere
    Complete(HandoffEndArgs),
    /// The work failed elsewhere
    Fail(HandoffEndArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HandoffEndArgs {
    /// Event id or message id
    pub event: String,
    /// What happened
    #[arg(long)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub follow: FollowArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PartArg {
    Active,
    Scheduled,
    Parked,
    DeadLetters,
}

impl From<PartArg> for operations::Part {
    fn from(part: PartArg) -> Self {
        match part {
            PartArg::Active => Self::Active,
            PartArg::Scheduled => Self::Scheduled,
            PartArg::Parked => Self::Parked,
            PartArg::DeadLetters => Self::DeadLetters,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    /// Queue or topic/subscription
    pub entity: String,
    /// Which of its messages
    #[arg(long, value_enum, default_value = "active")]
    pub part: PartArg,
    /// Of this session
    #[arg(long)]
    pub session: Option<String>,
    #[command(flatten)]
    pub page: PagedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeInboxArgs {
    /// Endpoint
    pub endpoint: String,
    /// Records before: a time, or ago such as 7d
    #[arg(long, value_name = "TIME", value_parser = ago)]
    pub before: Timestamp,
    /// Do it: a redelivery of a purged message runs again
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub host: HostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    pub filter: EventFilterArgs,
    #[command(flatten)]
    pub plain: PlainArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A code such as SPR0104; without one, all of them are listed
    pub code: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Folder of the host
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    #[arg(long)]
    pub json: bool,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    Outcome::from_name(text).ok_or_else(|| {
        let names = Outcome::ALL.map(Outcome::name);
        match config::nearest(text, names.into_iter()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("it is one of {}", names.join(", ")),
        }
    })
}

/// Wall time now, for what is asked of a host.
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn ago(text: &str) -> Result<Timestamp, String> {
    moment(text, |now, duration| now.before(duration))
}

fn from_now(text: &str) -> Result<Timestamp, String> {
    moment(text, |now, duration| now.after(duration))
}

fn moment(text: &str, apply: impl Fn(Timestamp, Duration) -> Timestamp) -> Result<Timestamp, String> {
    if let Some(at) = operations::time::parse(text) {
        return Ok(at);
    }
    match config::parse_duration(text) {
        Ok(duration) => Ok(apply(now(), duration)),
        Err(_) => Err(format!("{text:?} is neither a time such as 2026-11-29T12:00:00Z nor a duration such as 10m")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_help() {
        for verb in Cli::command().get_subcommands() {
            assert!(verb.get_about().is_some(), "{}", verb.get_name());
        }
    }
}
