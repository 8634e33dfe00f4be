//! Entities of the embedded engine, as the configuration names them.
//!
//! The engine keeps them. What the file says is declared at every start; what it does not name stays as an administrator has left it.

use sprag_broker::{EntityKind, EntitySpec, FilterSpec};

use crate::config::{Config, Queue};

pub(super) fn specs(config: &Config) -> Vec<EntitySpec> {
    let queues = config.queues.iter().map(|queue| spec(queue, EntityKind::Queue, queue.max_message_size));
    let mut specs: Vec<EntitySpec> = queues.collect();
    for topic in &config.topics {
        specs.push(EntitySpec {
            duplicate_detection: topic.duplicate_window,
            default_ttl: topic.ttl,
            max_message_size: topic.max_message_size,
            max_size: topic.max_size,
            status: topic.status,
            user_metadata: topic.user_metadata.clone(),
            ..EntitySpec::topic(topic.name.clone())
        });
        for subscription in &topic.subscriptions {
            let filter = subscription.filter.clone().unwrap_or(FilterSpec::All);
            specs.push(spec(subscription, EntityKind::Subscription(filter), topic.max_message_size));
        }
    }
    specs
}

fn spec(queue: &Queue, kind: EntityKind, max_message_size: u64) -> EntitySpec {
    EntitySpec {
        kind,
        requires_session: queue.requires_session,
        lock_duration: queue.lock_duration,
        max_delivery_count: queue.max_delivery_count,
        default_ttl: queue.ttl,
        dead_letter_on_expiry: queue.dead_letter_on_expiry,
        duplicate_detection: queue.duplicate_window,
        max_message_size,
        max_size: queue.max_size,
        status: queue.status,
        forward_to: queue.forward_to.clone(),
        forward_dead_letters_to: queue.forward_dead_letters_to.clone(),
        user_metadata: queue.user_metadata.clone(),
        rules: queue.rules.clone(),
        ..EntitySpec::queue(queue.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sprag_broker::{Engine, EntityStatus, Options, RuleSpec};
    use sprag_core::ids::EntityName;

    use super::*;

    fn config(text: &str) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(crate::config::FILE);
        std::fs::write(&file, text).expect("a file");
        Config::load(&file).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    const ALL: &str = r#"
[[queue]]
name = "end"

[[queue]]
name = "q"
lock_duration = "1m"
max_delivery_count = 3
ttl = "1h"
dead_letter_on_expiry = false
duplicate_window = "10m"
max_message_size = "2KiB"
max_size = "1MiB"
status = "receive-disabled"
forward_to = "t"
forward_dead_letters_to = "end"
user_metadata = "ours"

[[topic]]
name = "t"
ttl = "2h"
max_size = "2MiB"
status = "send-disabled"
user_metadata = "theirs"
subscriptions = [
  { name = "s", forward_to = "end", forward_dead_letters_to = "end", status = "disabled", max_size = "3MiB", rules = [
    { name = "big", filter = "total > 1000", action = "SET priority = 'high'" },
    { name = "mine", filter = { correlation_id = "c", properties = { a = 1, b = 2.5, c = true, d = "x" } } },
    { name = "all" },
  ] },
  { name = "one", filter = { subject = "x" } },
]
"#;

    async fn declared(folder: &Path, text: &str) -> Engine {
        let engine = Engine::open(Options::new(folder)).expect("an engine");
        engine.declare(specs(&config(text))).await.expect("it is declared");
        engine
    }

    fn spec_of(engine: &Engine, name: &str) -> EntitySpec {
        engine.entity(&EntityName::from(name)).expect("it is there").spec
    }

    fn rules(engine: &Engine, name: &str) -> Vec<RuleSpec> {
        let rules = engine.rules(&EntityName::from(name)).expect("it is there");
        rules.into_iter().map(|rule| rule.spec).collect()
    }

    /// Everything that a file can say arrives at the engine; a file that has changed changes it in place; both are kept.
    #[tokio::test]
    async fn the_engine_gets_what_the_file_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = declared(folder.path(), ALL).await;
        let q = spec_of(&engine, "q");
        assert_eq!((q.max_delivery_count, q.max_message_size, q.max_size), (3, 2 << 10, Some(1 << 20)));
        assert_eq!(
            (
                q.lock_duration.as_secs(),
                q.default_ttl.map(|it| it.as_secs()),
                q.duplicate_detection.map(|it| it.as_secs())
            ),
            (60, Some(3_600), Some(600))
        );
        assert!(!q.dead_letter_on_expiry);
        assert_eq!((q.status, q.user_metadata.as_deref()), (EntityStatus::ReceiveDisabled, Some("ours")));
        assert_eq!((q.forward_to, q.forward_dead_letters_to), (Some("t".into()), Some("end".into())));
        let t = spec_of(&engine, "t");
        assert_eq!((t.default_ttl.map(|it| it.as_secs()), t.max_size), (Some(7_200), Some(2 << 20)));
        assert_eq!((t.status, t.user_metadata.as_deref()), (EntityStatus::SendDisabled, Some("theirs")));
        let s = spec_of(&engine, "t/s");
        assert_eq!((s.status, s.max_size, s.forward_to), (EntityStatus::Disabled, Some(3 << 20), Some("end".into())));
        let of_s = rules(&engine, "t/s");
        assert_eq!(of_s.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["all", "big", "mine"]);
        assert_eq!((&of_s[0].filter, of_s[1].action.is_some()), (&FilterSpec::All, true));
        let FilterSpec::Correlation(mine) = &of_s[2].filter else { panic!("{:?}", of_s[2]) };
        assert_eq!((mine.correlation_id.as_deref(), mine.properties.len()), (Some("c"), 4));
        assert!(
            matches!(&rules(&engine, "t/one")[0].filter, FilterSpec::Correlation(it) if it.subject.as_deref() == Some("x"))
        );
        engine.close().await;
        drop(engine);

        // Another file: what it says differently holds; what it says no more goes back to its default.
        let fewer = ALL
            .replace("status = \"receive-disabled\"\nforward_to = \"t\"\n", "status = \"disabled\"\n")
            .replace("    { name = \"all\" },\n", "")
            .replace("total > 1000", "total > 2000");
        let engine = declared(folder.path(), &fewer).await;
        let q = spec_of(&engine, "q");
        assert_eq!((q.status, q.forward_to, q.max_delivery_count), (EntityStatus::Disabled, None, 3));
        let of_s = rules(&engine, "t/s");
        assert_eq!(of_s.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["big", "mine"]);
        assert_eq!(of_s[0].filter, FilterSpec::Sql("total > 2000".into()));
        engine.close().await;
    }
}
