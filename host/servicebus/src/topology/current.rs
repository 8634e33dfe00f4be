//! What is there of the entities that are wanted.

use std::collections::HashMap;

use super::Wanted;
use crate::{
    administration::{Administration, Entity, Error, Path, Rule},
    config::EntitySettings,
};

/// An entity that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub entity: Entity,
    /// A subscription's.
    pub rules: Vec<Rule>,
}

/// What a namespace has of some entities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Current {
    found: HashMap<String, Found>,
}

impl Current {
    /// What is there under this name; queues and topics share theirs, so its path may be of another kind.
    pub fn get(&self, path: &Path) -> Option<&Found> {
        self.found.get(&path.key())
    }

    /// In the order of their names.
    pub fn subscriptions_of<'c>(&'c self, topic: &Path) -> Vec<&'c Found> {
        let is_of = |found: &&Found| match &found.entity.path {
            Path::Subscription { topic: of, .. } => Path::Topic(of.clone()).is(topic),
            _ => false,
        };
        let mut all: Vec<_> = self.found.values().filter(is_of).collect();
        all.sort_by_key(|found| found.entity.path.key());
        all
    }

    pub fn add(&mut self, found: Found) {
        self.found.insert(found.entity.path.key(), found);
    }
}

/// Reads what is there of these entities, and of every subscription of a topic that carries stand-ins. Nothing else is read.
pub async fn current(administration: &Administration, wanted: &[Wanted]) -> Result<Current, Error> {
    let mut current = Current::default();
    for path in wanted.iter().map(|wanted| &wanted.path) {
        if current.get(path).is_none()
            && let Some(entity) = administration.find(path).await?
        {
            add(administration, entity, &mut current).await?;
        }
    }
    for topic in wanted.iter().filter(|wanted| wanted.carries_stand_ins).map(|wanted| &wanted.path) {
        if !current.get(topic).is_some_and(|found| found.entity.path.is(topic)) {
            continue;
        }
        match administration.subscriptions(&topic.name()).await {
            Ok(beside) => {
                for entity in beside {
                    if current.get(&entity.path).is_none() {
                        add(administration, entity, &mut current).await?;
                    }
                }
            }
            // It went in between.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(current)
}

async fn add(administration: &Administration, entity: Entity, current: &mut Current) -> Result<(), Error> {
    let rules = match &entity.path {
        Path::Subscription { .. } => match administration.rules(&entity.path).await {
            Ok(rules) => rules,
            // It went in between.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        },
        _ => Vec::new(),
    };
    current.add(Found { entity, rules });
    Ok(())
}

/// What the transport has to know of an entity, as the namespace has it. Configuration need not repeat it.
pub fn read_settings(entity: &Entity) -> EntitySettings {
    EntitySettings {
        name: entity.path.name(),
        requires_session: entity.requires_session,
        lock_duration: entity.lock_duration,
        max_delivery_count: entity.max_delivery_count,
    }
}
