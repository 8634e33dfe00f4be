//! Queues with sessions. One client for each session, which is how it is to be used (docs/azure-sdk.md).

use std::time::Duration;

use azservicebus::{
    ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSessionReceiver, ServiceBusSessionReceiverOptions,
};
use tokio::time::Instant;

use crate::{
    broker::{
        client, impatient, in_session, nothing_comes_in, receive_in, receive_some_in, send, session, text, texts, utc,
    },
    scenario::{Outcome, Suite, equal, holds, refused},
    settling::because,
};

async fn fill(session: &str, count: usize) -> Outcome {
    let mut client = client().await?;
    let messages = (0..count).map(|n| in_session(format!("{session}{n}"), session)).collect::<Outcome<Vec<_>>>()?;
    send(&mut client, "sessions", messages).await
}

/// Receives what is expected, completes it and gives the session back.
async fn complete_all(mut session: ServiceBusSessionReceiver, expected: &[&str]) -> Outcome {
    let got = receive_some_in(&mut session, expected.len(), Duration::from_secs(10)).await?;
    equal(texts(&got)?, expected)?;
    for message in &got {
        session.complete_message(message).await?;
    }
    Ok(session.dispose().await?)
}

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario("a session by name: order, state, renewal", async || -> Outcome {
        fill("A", 3).await?;
        fill("B", 1).await?;
        let mut one = client().await?;
        let mut held = session(&mut one, "sessions", "A").await?;
        equal(held.session_id(), "A")?;
        held.set_session_state(b"one".to_vec()).await?;
        equal(held.session_state().await?, b"one")?;
        held.renew_session_lock().await?;
        holds(held.session_locked_until() > utc(0.0), || held.session_locked_until().to_string())?;
        let first = held.peek_message(Some(1)).await?.ok_or("nothing is seen")?;
        equal((first.body()?, first.session_id()), (b"A0".as_slice(), Some("A")))?;
        complete_all(held, &["A0", "A1", "A2"]).await?;
        let mut another = client().await?;
        let mut held = session(&mut another, "sessions", "A").await?;
        equal(held.session_state().await?, b"one")?;
        // It has no way to say null.
        held.set_session_state(Vec::new()).await?;
        held.dispose().await?;
        let mut another = client().await?;
        complete_all(session(&mut another, "sessions", "B").await?, &["B0"]).await
    });

    suite.scenario("the next session, and none within the broker's time", async || -> Outcome {
        fill("N", 3).await?;
        let mut client = impatient().await?;
        let held = client.accept_next_session_for_queue("sessions", Default::default()).await?;
        equal(held.session_id(), "N")?;
        complete_all(held, &["N0", "N1", "N2"]).await?;
        let mut client = impatient().await?;
        let none = client.accept_next_session_for_queue("sessions", Default::default()).await;
        refused(none, "com.microsoft:timeout")
    });

    suite.scenario("a session that comes while somebody waits for it", async || -> Outcome {
        let mut client = client().await?;
        let later = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            fill("late", 1).await
        };
        let (accepted, filled) =
            tokio::join!(client.accept_next_session_for_queue("sessions", Default::default()), later);
        filled?;
        let held = accepted?;
        equal(held.session_id(), "late")?;
        complete_all(held, &["late0"]).await
    });

    suite.scenario("a session held elsewhere, and given back when its holder closes", async || -> Outcome {
        fill("H", 1).await?;
        let mut one = client().await?;
        let holder = session(&mut one, "sessions", "H").await?;
        let mut other = impatient().await?;
        let taken = other.accept_session_for_queue("sessions", "H", Default::default()).await;
        refused(taken, "com.microsoft:session-cannot-be-locked")?;
        holder.dispose().await?;
        let mut other = client().await?;
        complete_all(session(&mut other, "sessions", "H").await?, &["H0"]).await
    });

    suite.scenario("abandoned in a session, it comes again in its place", async || -> Outcome {
        fill("O", 3).await?;
        let mut client = client().await?;
        let mut held = session(&mut client, "sessions", "O").await?;
        let first = receive_in(&mut held).await?;
        held.abandon_message(&first, None).await?;
        let again = receive_in(&mut held).await?;
        equal((text(&again)?.as_str(), again.delivery_count()), ("O0", Some(2)))?;
        held.complete_message(&again).await?;
        complete_all(held, &["O1", "O2"]).await
    });

    suite.scenario("deferred and dead-lettered in a session", async || -> Outcome {
        fill("D", 3).await?;
        let mut one = client().await?;
        let mut held = session(&mut one, "sessions", "D").await?;
        let got = receive_some_in(&mut held, 3, Duration::from_secs(10)).await?;
        let number = got[0].sequence_number();
        held.defer_message(&got[0], None).await?;
        held.complete_message(&got[1]).await?;
        held.dead_letter_message(&got[2], because("in a session")).await?;
        nothing_comes_in(&mut held).await?;
        let seen = held.peek_messages(5, Some(1)).await?;
        equal((seen.len(), seen[0].state()), (1, ServiceBusMessageState::Deferred))?;
        let deferred = held.receive_deferred_message(number).await?.ok_or("what was deferred is gone")?;
        held.complete_message(&deferred).await?;
        equal(held.peek_messages(5, Some(1)).await?.len(), 0)?;
        // The dead letters of a session entity are read without a session.
        let mut dead = crate::broker::dead_letters(&mut one, "sessions").await?;
        let letter = crate::broker::receive(&mut dead).await?;
        equal((letter.dead_letter_reason(), letter.session_id()), (Some("in a session"), Some("D")))?;
        dead.complete_message(&letter).await?;
        Ok(dead.dispose().await?)
    });

    suite.scenario("receive and delete in a session, with prefetch", async || -> Outcome {
        fill("P", 50).await?;
        let mut client = client().await?;
        let options = ServiceBusSessionReceiverOptions {
            receive_mode: ServiceBusReceiveMode::ReceiveAndDelete,
            prefetch_count: 20,
            ..Default::default()
        };
        let mut held = client.accept_session_for_queue("sessions", "P", options).await?;
        let got = receive_some_in(&mut held, 50, Duration::from_secs(10)).await?;
        equal(texts(&got)?, (0..50).map(|n| format!("P{n}")).collect::<Vec<_>>())
    });

    suite.scenario("a session's lock is renewed beyond its time", async || -> Outcome {
        let mut one = client().await?;
        send(&mut one, "brief-sessions", [in_session("x", "R")?]).await?;
        let mut held = session(&mut one, "brief-sessions", "R").await?;
        let got = receive_in(&mut held).await?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            held.renew_session_lock().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut other = impatient().await?;
        let taken = other.accept_session_for_queue("brief-sessions", "R", Default::default()).await;
        refused(taken, "com.microsoft:session-cannot-be-locked")?;
        held.complete_message(&got).await?;
        nothing_comes_in(&mut held).await?;
        Ok(held.dispose().await?)
    });

    suite.scenario("ten workers, each with a client, each with a session of its own", async || -> Outcome {
        for n in 0..10 {
            fill(&format!("w{n}"), 2).await?;
        }
        let work = async || -> Outcome<String> {
            let mut client = client().await?;
            let held = client.accept_next_session_for_queue("sessions", Default::default()).await?;
            let id = held.session_id().to_owned();
            complete_all(held, &[&format!("{id}0"), &format!("{id}1")]).await?;
            Ok(id)
        };
        let all = tokio::join!(work(), work(), work(), work(), work(), work(), work(), work(), work(), work());
        let mut ids = vec![all.0?, all.1?, all.2?, all.3?, all.4?, all.5?, all.6?, all.7?, all.8?, all.9?];
        ids.sort();
        equal(ids, (0..10).map(|n| format!("w{n}")).collect::<Vec<_>>())
    });
}
