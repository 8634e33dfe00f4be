//! The crash table of `docs/inbox.md`: what happens at each point at which the process can die, measured and compared with the page.
//!
//! `SPRAG_WRITE_DOCS=1` writes the page's table anew.

use std::{fmt::Write as _, path::Path, sync::atomic::Ordering, time::Duration};

use sprag_core::{
    effect::HistoryKind,
    outcome::Outcome,
    run::{End, StateWrite, UnitOfWork},
};
use tokio::time::{Instant, sleep};

use crate::world::{Bench, ENDPOINT, Setup, World, fails};

const BEGIN: &str = "<!-- crash table: written by host/worker/tests/it/crash_table.rs -->\n";
const END: &str = "<!-- crash table ends -->";

/// What an event came to after the process died once.
struct Seen {
    runs: usize,
    took_effect: bool,
    duplicates: usize,
    outcome: Outcome,
    /// Effects that the commit had carried out when the process died. None: it did not die in the commit.
    crashed: bool,
}

/// One event whose commit is cut after so many effects; `fails`: its run fails, and blocks its session.
async fn cut(failing: bool, effects: usize) -> Seen {
    let world = World::build(Bench::Memory, Setup::default(), move |input, _| async move {
        let write = StateWrite { key: input.event_id.to_string(), value: Some("done".into()) };
        match failing {
            true => (fails("no"), UnitOfWork::default()),
            false => (End::Done, UnitOfWork { writes: vec![write], ..UnitOfWork::default() }),
        }
    })
    .await;
    world.memory().ordered.crash_after(Some(effects));
    world.go().await;
    world.send_events("s", &["E"]).await;
    let outcome = if failing { Outcome::Failed } else { Outcome::Completed };
    let mut crashed = false;
    let until = Instant::now() + Duration::from_secs(300);
    let is_over = async || {
        world.outcome("E").await == Some(outcome)
            && match failing {
                true => {
                    world.state("s").await.block.is_some()
                        && world.peek(crate::world::SOURCE, sprag_transport::Part::Active).await.is_empty()
                }
                false => world.is_idle().await,
            }
    };
    while !is_over().await || (!crashed && world.commits.failures.load(Ordering::SeqCst) > 0) {
        assert!(Instant::now() < until, "crash after {effects}: {}", world.describe().await);
        if !crashed && world.commits.failures.load(Ordering::SeqCst) > 0 {
            crashed = true;
            world.kill().await;
            world.memory().ordered.crash_after(None);
            world.go().await;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let history = world.history("E").await;
    let seen = Seen {
        runs: world.script.began().len(),
        took_effect: world.store.state_get(&ENDPOINT.into(), "E").await.expect("it answers").is_some(),
        duplicates: history.iter().filter(|line| line.kind == HistoryKind::Duplicate).count(),
        outcome,
        crashed,
    };
    world.end().await;
    seen
}

/// The effects of the commit of such a run, in their order, as the page calls them.
const OF_SUCCESS: [&str; 2] =
    ["the store's transaction (record, outcome, state, SQL, messages)", "the delivery is completed"];
const OF_FAILURE: [&str; 3] =
    ["the store's transaction (outcome, decision)", "the session is blocked", "the delivery is completed"];

fn line(table: &mut String, what: &str, point: &str, seen: &Seen) {
    let runs = if seen.runs == 1 { "once".to_owned() } else { format!("{} times", seen.runs) };
    let effect = if seen.took_effect { "once" } else { "no" };
    let again = match (seen.runs, seen.duplicates) {
        (1, 0) => "what was left is carried out, without a run",
        (1, _) => "it is known as a duplicate",
        _ => "it runs again: nothing had been changed",
    };
    writeln!(table, "| {what} | {point} | {again} | {runs} | {effect} | {} |", seen.outcome.name()).expect("text");
}

#[tokio::test(start_paused = true)]
async fn the_page_tells_what_happens() {
    let mut table = String::from(
        "\n| the run | the process dies | the delivery comes again, and | it ran | its unit of work took effect | outcome |\n|---|---|---|---|---|---|\n",
    );
    for (what, failing, effects) in [("succeeds", false, &OF_SUCCESS[..]), ("fails", true, &OF_FAILURE[..])] {
        let mut number = 0;
        loop {
            let seen = cut(failing, number).await;
            if !seen.crashed {
                break;
            }
            let point = match number.checked_sub(1) {
                None => "in the run, or before anything is written".to_owned(),
                Some(after) => {
                    format!(
                        "after {}",
                        effects.get(after).unwrap_or_else(|| panic!("{what}: effect {after} has no name"))
                    )
                }
            };
            line(&mut table, what, &point, &seen);
            number += 1;
            assert!(number < 20, "a commit has an end");
        }
        assert!(number >= effects.len(), "{what}: {number} points of {}", effects.len());
    }
    table.push('\n');
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/inbox.md");
    let text = std::fs::read_to_string(&page).expect("docs/inbox.md can be read");
    let (before, rest) = text.split_once(BEGIN).expect("the page has the table's beginning");
    let (now, after) = rest.split_once(END).expect("the page has the table's end");
    if std::env::var_os("SPRAG_WRITE_DOCS").is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{table}{END}{after}")).expect("docs/inbox.md can be written");
    } else {
        assert_eq!(
            now, table,
            "docs/inbox.md is not what happens: SPRAG_WRITE_DOCS=1 cargo nextest run the_page_tells_what_happens"
        );
    }
}
