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

    pub fn add(&mut self, found: Found) {
        self.found.insert(found.entity.path.key(), found);
    }
}

/// Reads what is there of these entities. Nothing of what is not wanted is read.
pub async fn current(administration: &Administration, wanted: &[Wanted]) -> Result<Current, Error> {
    let mut current = Current::default();
    for path in wanted.iter().map(|wanted| &wanted.path) {
        if current.get(path).is_some() {
            continue;
        }
        let Some(entity) = administration.find(path).await? else { continue };
        let rules = match &entity.path {
            Path::Subscription { .. } => match administration.rules(&entity.path).await {
                Ok(rules) => rules,
                // It went in between.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            },
            _ => Vec::new(),
        };
        current.add(Found { entity, rules });
    }
    Ok(current)
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
