//! What is declared, compiled, as a whole that is replaced and never changed.
//!
//! An entity's position in it is how everything else names the entity, so positions stay: one that was removed leaves its place empty
//! until the engine is opened again, marked in [`Live`], which all versions of the topology share. A command that was prepared before the
//! removal and runs after it meets the mark.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
};

use sprag_core::{ids::EntityName, time::Timestamp};
use sprag_transport::Error;

use crate::{
    entity::{DEAD_LETTER_SUFFIX, DeclareError, EntityKind, EntitySpec, TRANSFER_DEAD_LETTER_SUFFIX},
    filter::Rule,
};

/// Position of an entity in the topology and in the index.
pub(crate) type EntityIndex = usize;

/// Some of an entity's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) entity: EntityIndex,
    pub(crate) part: Letters,
}

/// Which of an entity's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letters {
    /// Those that are there to be received.
    Own,
    Dead,
    /// Those that could not be forwarded.
    Transfer,
}

impl Address {
    pub(crate) fn own(entity: EntityIndex) -> Self {
        Self { entity, part: Letters::Own }
    }

    /// Dead letters of either kind: no sessions, no delivery limit, no time to live.
    pub(crate) fn is_dead(self) -> bool {
        self.part != Letters::Own
    }
}

/// What every version of an entity shares.
#[derive(Debug, Default)]
pub(crate) struct Live {
    gone: AtomicBool,
    accessed_at: AtomicI64,
}

#[derive(Debug, Clone)]
pub(crate) struct Entity {
    /// Its number in the file.
    pub(crate) id: i64,
    pub(crate) spec: EntitySpec,
    /// As configuration declared it last; none for one that only the administration knows.
    pub(crate) declared: Option<EntitySpec>,
    /// A subscription's.
    pub(crate) rules: Vec<Rule>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) live: Arc<Live>,
    /// A topic's subscriptions.
    pub(crate) subscriptions: Vec<EntityIndex>,
    /// Where its messages go on to; none when that entity is not there.
    pub(crate) forward_to: Option<EntityIndex>,
    pub(crate) forward_dead_letters_to: Option<EntityIndex>,
}

impl Entity {
    pub(crate) fn new(spec: EntitySpec, now: Timestamp) -> Self {
        Self {
            id: 0,
            spec,
            declared: None,
            rules: Vec::new(),
            created_at: now,
            updated_at: now,
            live: Arc::default(),
            subscriptions: Vec::new(),
            forward_to: None,
            forward_dead_letters_to: None,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.live.gone.load(Relaxed)
    }

    pub(crate) fn set_gone(&self, gone: bool) {
        self.live.gone.store(gone, Relaxed);
    }

    pub(crate) fn touch(&self, now: Timestamp) {
        self.live.accessed_at.store(now.0, Relaxed);
    }

    /// When somebody last sent to it or received from it in this process; else when it was last changed.
    pub(crate) fn accessed_at(&self) -> Timestamp {
        Timestamp(self.live.accessed_at.load(Relaxed)).max(self.updated_at)
    }

    pub(crate) fn rule(&self, name: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.is(name))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) entities: Vec<Arc<Entity>>,
    by_name: HashMap<EntityName, EntityIndex>,
    /// Names compare without case, as on Azure; most are written as they were declared and are found without a copy.
    by_lower_name: HashMap<String, EntityIndex>,
}

impl Topology {
    /// With these entities, in this order.
    pub(crate) fn new(mut entities: Vec<Entity>) -> Self {
        let (mut by_name, mut by_lower_name) = (HashMap::new(), HashMap::new());
        for (n, entity) in entities.iter().enumerate().filter(|(_, entity)| !entity.is_gone()) {
            by_name.insert(entity.spec.name.clone(), n);
            by_lower_name.entry(entity.spec.name.as_str().to_lowercase()).or_insert(n);
        }
        let find = |name: &str| by_name.get(name).or_else(|| by_lower_name.get(&name.to_lowercase())).copied();
        let mut subscriptions: Vec<Vec<EntityIndex>> = vec![Vec::new(); entities.len()];
        for (n, entity) in entities.iter_mut().enumerate().filter(|(_, entity)| !entity.is_gone()) {
            if let Some(topic) = entity.spec.topic_name().and_then(find) {
                subscriptions[topic].push(n);
            }
            entity.forward_to = entity.spec.forward_to.as_ref().and_then(|name| find(name.as_str()));
            let dead = entity.spec.forward_dead_letters_to.as_ref();
            entity.forward_dead_letters_to = dead.and_then(|name| find(name.as_str()));
        }
        for (entity, subscriptions) in entities.iter_mut().zip(subscriptions) {
            entity.subscriptions = subscriptions;
        }
        Self { entities: entities.into_iter().map(Arc::new).collect(), by_name, by_lower_name }
    }

    pub(crate) fn position(&self, name: &EntityName) -> Option<EntityIndex> {
        self.find(name.as_str())
    }

    fn find(&self, name: &str) -> Option<EntityIndex> {
        let found = self.by_name.get(name).or_else(|| self.by_lower_name.get(&name.to_lowercase())).copied();
        found.filter(|at| !self.entities[*at].is_gone())
    }

    /// The entity or the dead letters that the name means.
    pub(crate) fn address(&self, name: &EntityName) -> Result<Address, Error> {
        if let Some(entity) = self.position(name) {
            return Ok(Address::own(entity));
        }
        let of = |suffix: &str, part: Letters| {
            let text = name.as_str();
            let (owner, end) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
            let entity = self.find(owner).filter(|_| end.eq_ignore_ascii_case(suffix))?;
            Some(Address { entity, part })
        };
        of(TRANSFER_DEAD_LETTER_SUFFIX, Letters::Transfer)
            .or_else(|| of(DEAD_LETTER_SUFFIX, Letters::Dead))
            .ok_or_else(|| Error::NoSuchEntity(name.clone()))
    }

    /// Whether what is declared fits together: topics of subscriptions, ways of forwarding.
    pub(crate) fn check(&self) -> Result<(), DeclareError> {
        let on_loop = self.on_loops();
        for (n, entity) in self.entities.iter().enumerate().filter(|(_, entity)| !entity.is_gone()) {
            let spec = &entity.spec;
            let invalid = |problem: String| Err(DeclareError::Invalid { entity: spec.name.clone(), problem });
            if let Some(topic) = spec.topic_name()
                && self.find(topic).is_none_or(|at| self.entities[at].spec.kind != EntityKind::Topic)
            {
                return invalid(format!("there is no topic {topic:?}"));
            }
            if on_loop[n] && spec.forward_to.is_some() {
                return invalid("forward_to makes a loop".into());
            }
        }
        Ok(())
    }

    /// Whether what an entity names as the end of a way can be one. Asked when it is declared; it may be removed later.
    pub(crate) fn check_targets(&self, spec: &EntitySpec) -> Result<(), DeclareError> {
        let targets = [("forward_to", &spec.forward_to), ("forward_dead_letters_to", &spec.forward_dead_letters_to)];
        for (key, target) in targets {
            let Some(target) = target else { continue };
            let problem = match self.position(target).map(|at| &self.entities[at].spec.kind) {
                Some(EntityKind::Queue | EntityKind::Topic) => continue,
                Some(EntityKind::Subscription(_)) => format!("{key} names a subscription: {target:?}"),
                None => format!("{key} names {target:?}, which is not there"),
            };
            return Err(DeclareError::Invalid { entity: spec.name.clone(), problem });
        }
        Ok(())
    }

    /// Which entities messages get to from a loop. A way that is only long is allowed, as on Azure: after [`MAX_HOPS`](crate::MAX_HOPS) it ends in the
    /// transfer dead letters.
    fn on_loops(&self) -> Vec<bool> {
        let onward = |at: EntityIndex| {
            let entity = &self.entities[at];
            entity.forward_to.iter().chain(&entity.subscriptions).copied()
        };
        let mut ways_in = vec![0_usize; self.entities.len()];
        (0..self.entities.len()).flat_map(onward).for_each(|to| ways_in[to] += 1);
        // Whoever nothing leads to is on none; without them, the next.
        let mut free: Vec<EntityIndex> = (0..ways_in.len()).filter(|at| ways_in[*at] == 0).collect();
        let mut on_loop = vec![true; self.entities.len()];
        while let Some(at) = free.pop() {
            on_loop[at] = false;
            for to in onward(at) {
                ways_in[to] -= 1;
                if ways_in[to] == 0 {
                    free.push(to);
                }
            }
        }
        on_loop
    }
}
