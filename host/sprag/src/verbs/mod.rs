//! A module for each family of verbs.

mod act;
mod check;
mod doctor;
mod explain;
mod list;
mod project;
mod send;
mod serve;
mod topology;

use crate::{
    cli::{Cli, Verb},
    failure::Outcome,
};

pub(crate) fn run(cli: Cli) -> Outcome {
    match cli.verb {
        Verb::New(args) => project::new(&args),
        Verb::Build(args) => project::build(&args),
        Verb::Dev(args) => serve::dev(&args),
        Verb::Run(args) => serve::run(&args),
        Verb::Check(args) => check::check(&args),
        Verb::Topology(verb) => topology::topology(&verb),
        Verb::Send(args) => send::send(args),
        Verb::Events(args) => list::events(args),
        Verb::Sessions(args) => list::sessions(&args),
        Verb::Parked(args) => list::parked(&args),
        Verb::Scheduled(args) => list::scheduled(args),
        Verb::DeadLetters(args) => list::dead_letters(args),
        Verb::Inbox(args) => list::inbox(&args),
        Verb::Handlers(args) => list::handlers(&args),
        Verb::Endpoints(args) => list::endpoints(&args),
        Verb::Audit(args) => list::audit(&args),
        Verb::Outbox(args) => list::outbox(args),
        Verb::Peek(args) => list::peek(&args),
        Verb::Tail(args) => list::tail(&args),
        Verb::Resubmit(args) => act::resubmit(args),
        Verb::Skip(args) => act::skip(args),
        Verb::SkipSession(args) => act::skip_session(args),
        Verb::Handoff(args) => act::handoff(args),
        Verb::PurgeInbox(args) => act::purge_inbox(&args),
        Verb::Explain(args) => explain::explain(&args),
        Verb::Doctor(args) => doctor::doctor(&args),
    }
}
