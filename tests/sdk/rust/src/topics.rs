//! Topics, subscriptions and their rules.

use std::time::Duration;

use azservicebus::{
    ServiceBusMessage, ServiceBusReceiver, ServiceBusReceiverOptions, SubQueue,
    administration::{
        CorrelationRuleFilter, FalseRuleFilter, RuleAction, RuleFilter, SqlRuleAction, SqlRuleFilter, TrueRuleFilter,
    },
};
use fe2o3_amqp_types::messaging::ApplicationProperties;

use crate::{
    broker::{
        Client, client, deleting, empty, impatient, in_session, message, nothing_comes, receive, receive_some,
        receive_some_in, send, sender, text, texts, utc,
    },
    scenario::{Outcome, Suite, equal, refused},
    settling::because,
};

async fn subscription(client: &mut Client, name: &str) -> Outcome<ServiceBusReceiver> {
    Ok(client.create_receiver_for_subscription("shop", name, Default::default()).await?)
}

fn coloured(colour: &str) -> ServiceBusMessage {
    let mut message = message(colour);
    let mut properties = ApplicationProperties::default();
    properties.insert("colour".into(), colour.into());
    *message.application_properties_mut() = Some(properties);
    message
}

/// What the other subscriptions were given.
async fn forget(client: &mut Client, names: &[&str]) -> Outcome {
    for name in names {
        let mut rest = client.create_receiver_for_subscription("shop", name, deleting(0)).await?;
        while rest.receive_message_with_max_wait_time(crate::broker::BRIEFLY).await?.is_some() {}
        rest.dispose().await?;
    }
    Ok(())
}

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario("a topic: each subscription what its filter lets through", async || -> Outcome {
        let mut client = client().await?;
        let mut topic = sender(&mut client, "shop").await?;
        topic.send_messages([coloured("red"), coloured("blue")]).await?;
        let number = topic.schedule_message("never", utc(60.0)).await?;
        topic.cancel_scheduled_message(number).await?;
        let mut every = subscription(&mut client, "all").await?;
        let got = receive_some(&mut every, 2, Duration::from_secs(10)).await?;
        equal(texts(&got)?, ["red", "blue"])?;
        every.complete_message(&got[0]).await?;
        every.dead_letter_message(&got[1], because("blue")).await?;
        let mut red = subscription(&mut client, "red").await?;
        let got = receive(&mut red).await?;
        equal(text(&got)?.as_str(), "red")?;
        red.complete_message(&got).await?;
        nothing_comes(&mut red).await?;
        let options = ServiceBusReceiverOptions { sub_queue: SubQueue::DeadLetter, ..Default::default() };
        let mut dead = client.create_receiver_for_subscription("shop", "all", options).await?;
        let letter = receive(&mut dead).await?;
        equal((text(&letter)?.as_str(), letter.dead_letter_reason()), ("blue", Some("blue")))?;
        dead.complete_message(&letter).await?;
        forget(&mut client, &["ruled"]).await?;
        empty(&mut every).await
    });

    suite.scenario("a subscription with sessions", async || -> Outcome {
        let mut client = client().await?;
        let messages = (0..3).map(|n| in_session(n.to_string(), "T")).collect::<Outcome<Vec<_>>>()?;
        send(&mut client, "orders", messages).await?;
        let mut held = client.accept_session_for_subscription("orders", "billing", "T", Default::default()).await?;
        held.set_session_state(b"t".to_vec()).await?;
        equal(held.session_state().await?, b"t")?;
        let got = receive_some_in(&mut held, 3, Duration::from_secs(10)).await?;
        equal(texts(&got)?, ["0", "1", "2"])?;
        for message in &got {
            held.complete_message(message).await?;
        }
        held.dispose().await?;
        // A message more, so that there is a next session.
        send(&mut client, "orders", [in_session("3", "T")?]).await?;
        let mut next = client.accept_next_session_for_subscription("orders", "billing", Default::default()).await?;
        equal(next.session_id(), "T")?;
        let last = crate::broker::receive_in(&mut next).await?;
        next.complete_message(&last).await?;
        Ok(next.dispose().await?)
    });

    suite.scenario("rules: made, listed, obeyed, with an action, deleted", async || -> Outcome {
        let mut client = client().await?;
        let mut rules = client.create_rule_manager("shop", "ruled").await?;
        equal(names(&rules.get_rules().await?), ["$Default"])?;
        rules.delete_rule("$Default").await?;
        let sql = (SqlRuleFilter::new("colour = 'green'"), SqlRuleAction::new("SET shade = 'dark'"));
        rules.create_rule("sql", sql).await?;
        let listed = rules.get_rules().await?;
        equal(names(&listed), ["sql"])?;
        let expression = match &listed[0].filters {
            RuleFilter::Sql(filter) => filter.expression.clone(),
            other => format!("{other:?}"),
        };
        equal(expression.as_str(), "colour = 'green'")?;
        let action = match &listed[0].actions {
            RuleAction::Sql(action) => action.expression.clone(),
            other => format!("{other:?}"),
        };
        equal(action.as_str(), "SET shade = 'dark'")?;
        refused(impatient_again().await, "409")?;

        send(&mut client, "shop", [coloured("green"), coloured("blue")]).await?;
        let mut ruled = subscription(&mut client, "ruled").await?;
        let got = receive(&mut ruled).await?;
        equal(text(&got)?.as_str(), "green")?;
        let shade = got.application_properties().and_then(|properties| properties.get("shade").cloned());
        equal(shade, Some("dark".into()))?;
        ruled.complete_message(&got).await?;
        nothing_comes(&mut ruled).await?;

        rules.delete_rule("sql").await?;
        rules.create_rule("correlation", CorrelationRuleFilter::builder().subject("wanted").build()).await?;
        let mut wanted = coloured("white");
        wanted.set_subject("wanted".to_owned());
        send(&mut client, "shop", [coloured("green"), wanted]).await?;
        let got = receive(&mut ruled).await?;
        equal(text(&got)?.as_str(), "white")?;
        ruled.complete_message(&got).await?;
        nothing_comes(&mut ruled).await?;

        rules.delete_rule("correlation").await?;
        rules.create_rule("none", FalseRuleFilter::new()).await?;
        send(&mut client, "shop", [coloured("green")]).await?;
        nothing_comes(&mut ruled).await?;
        rules.delete_rule("none").await?;
        rules.create_rule("$Default", TrueRuleFilter::new()).await?;
        equal(names(&rules.get_rules().await?), ["$Default"])?;
        rules.dispose().await?;
        forget(&mut client, &["all", "red"]).await?;
        empty(&mut ruled).await
    });
}

/// A rule whose name is taken, by a client that does not try again.
async fn impatient_again() -> Outcome {
    let mut client = impatient().await?;
    let mut rules = client.create_rule_manager("shop", "ruled").await?;
    Ok(rules.create_rule("sql", TrueRuleFilter::new()).await?)
}

fn names(rules: &[azservicebus::administration::RuleProperties]) -> Vec<String> {
    rules.iter().map(|rule| rule.name.clone()).collect()
}
