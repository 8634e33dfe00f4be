//! Entities and rules: made, changed, removed, looked at; by configuration ([`Engine::declare`]) and by an administrator (the other
//! functions), who do not undo each other's work.
//!
//! *Configuration wins for the keys it names.* A key is named when its value is not the default, and also when it was another value in the
//! declaration before (a key that was taken out goes back to its default). Every other setting stays as the administration has left it. A
//! subscription's filter is its rule `$Default`. Where configuration names rules, these are in place of `$Default`: they are made and changed as
//! it says, and go when it no longer names them; rules of other names are the administration's alone. What configuration no longer declares
//! stays.

use std::sync::Arc;

use sprag_core::{ids::EntityName, time::Timestamp};

use crate::{
    Engine,
    entity::{DeclareError, Entity, EntityIndex, EntityKind, EntitySpec, Topology},
    filter::{DEFAULT_RULE, FilterError, FilterSpec, Rule, RuleSpec},
    index::{Change, Index},
    writer::{Stop, Tx},
};

/// The most rules of one subscription, as on Azure.
const MAX_RULES: usize = 2_000;

/// An entity, as an administrator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityView {
    pub spec: EntitySpec,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When somebody last sent to it or received from it, as far as this process knows.
    pub accessed_at: Timestamp,
    pub counts: EntityCounts,
    /// Of all its messages together.
    pub bytes: u64,
    /// A topic's subscriptions, in the order in which they were made.
    pub subscriptions: Vec<EntityName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntityCounts {
    pub active: u64,
    pub dead_letters: u64,
    pub scheduled: u64,
    /// Deferred by a client, or parked by a worker.
    pub deferred: u64,
    /// Could not be forwarded.
    pub transfer_dead_letters: u64,
}

/// A rule, as an administrator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleView {
    pub spec: RuleSpec,
    pub created_at: Timestamp,
}

/// Why a change was not made; with what to answer, or with what to tell the writer.
enum Refusal {
    Declare(DeclareError),
    Stop(Stop),
}

impl<E: Into<Stop>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Stop(error.into())
    }
}

impl From<DeclareError> for Refusal {
    fn from(error: DeclareError) -> Self {
        Self::Declare(error)
    }
}

/// Who asks, and for what.
#[derive(Debug, Clone)]
enum Wish {
    Declare,
    Create(Vec<RuleSpec>),
    Update,
}

impl Engine {
    /// Adds entities, or changes the settings of those that are there, as configuration says. Nothing is removed. All or none.
    pub async fn declare(&self, specs: Vec<EntitySpec>) -> Result<(), DeclareError> {
        self.put_entities(specs, Wish::Declare).await
    }

    /// Makes an entity. A subscription has these rules, or `$Default` with the filter of its spec when there are none.
    pub async fn create_entity(&self, spec: EntitySpec, rules: Vec<RuleSpec>) -> Result<EntityView, DeclareError> {
        let name = spec.name.clone();
        self.put_entities(vec![spec], Wish::Create(rules)).await?;
        self.entity(&name)
    }

    /// Changes the settings of an entity to these. Sessions, duplicate detection (on or off) and partitioning are fixed; the rules of a
    /// subscription have their own functions, so the filter in its spec does not count.
    pub async fn update_entity(&self, spec: EntitySpec) -> Result<EntityView, DeclareError> {
        let name = spec.name.clone();
        self.put_entities(vec![spec], Wish::Update).await?;
        self.entity(&name)
    }

    async fn put_entities(&self, specs: Vec<EntitySpec>, wish: Wish) -> Result<(), DeclareError> {
        for spec in &specs {
            spec.validate()?;
        }
        self.change_topology(move |tx| put(tx, &specs, &wish)).await
    }

    /// Removes an entity with all it holds; a topic with its subscriptions. Who waits for something from it hears that it is not there.
    pub async fn remove_entity(&self, name: &EntityName) -> Result<(), DeclareError> {
        // One at a time: each builds on what the one before has left.
        let _alone = self.shared.declaring.lock().await;
        let topology = self.shared.topology();
        let at = topology.position(name).ok_or_else(|| DeclareError::NoSuchEntity(name.clone()))?;
        let gone: Vec<EntityIndex> = std::iter::once(at).chain(topology.entities[at].subscriptions.clone()).collect();
        let going = gone.clone();
        let removed = self.shared.write(0, move |tx| {
            remove(tx, &going)?;
            // From here on, later commands of the same group do not find it either.
            going.iter().for_each(|at| tx.topology.entities[*at].set_gone(true));
            let entities = tx.topology.entities.iter().map(|entity| Entity::clone(entity)).collect();
            tx.changes.push(Change::Declared { topology: Arc::new(Topology::new(entities)) });
            Ok(())
        });
        let removed = removed.await;
        if removed.is_err() {
            gone.iter().for_each(|at| topology.entities[*at].set_gone(false));
        }
        removed.map_err(|stop| DeclareError::Store(stop.into()))
    }

    pub fn entity(&self, name: &EntityName) -> Result<EntityView, DeclareError> {
        let topology = self.shared.topology();
        let at = topology.position(name).ok_or_else(|| DeclareError::NoSuchEntity(name.clone()))?;
        Ok(self.shared.with_index(|index| view(&topology, index, at)))
    }

    /// All entities, in the order in which they were made.
    pub fn all_entities(&self) -> Vec<EntityView> {
        let topology = self.shared.topology();
        let there = |at: &EntityIndex| !topology.entities[*at].is_gone();
        self.shared.with_index(|index| {
            (0..topology.entities.len()).filter(there).map(|at| view(&topology, index, at)).collect()
        })
    }

    /// The rules of a subscription, in the order of their names.
    pub fn rules(&self, subscription: &EntityName) -> Result<Vec<RuleView>, DeclareError> {
        let topology = self.shared.topology();
        let at = subscription_of(&topology, subscription)?;
        let seen = |rule: &Rule| RuleView { spec: rule.spec.clone(), created_at: rule.created_at };
        Ok(topology.entities[at].rules.iter().map(seen).collect())
    }

    pub async fn add_rule(&self, subscription: &EntityName, rule: RuleSpec) -> Result<RuleView, DeclareError> {
        self.put_rule(subscription, rule, false).await
    }

    pub async fn update_rule(&self, subscription: &EntityName, rule: RuleSpec) -> Result<RuleView, DeclareError> {
        self.put_rule(subscription, rule, true).await
    }

    async fn put_rule(
        &self,
        subscription: &EntityName,
        rule: RuleSpec,
        replaces: bool,
    ) -> Result<RuleView, DeclareError> {
        let rule = compiled(subscription, rule, self.shared.now())?;
        let subscription = subscription.clone();
        self.change_topology(move |tx| {
            let at = subscription_of(tx.topology, &subscription)?;
            let mut all = everything(tx);
            let entity = &mut all[at];
            let mut rule = rule.clone();
            let (entity_name, name) = (entity.spec.name.clone(), rule.spec.name.clone());
            match entity.rule(&rule.spec.name) {
                Some(old) if replaces => {
                    rule.spec.name.clone_from(&entity.rules[old].spec.name);
                    rule.created_at = entity.rules[old].created_at;
                    entity.rules.remove(old);
                }
                Some(_) => return Err(DeclareError::RuleExists { entity: entity_name, rule: name }.into()),
                None if replaces => return Err(DeclareError::NoSuchRule { entity: entity_name, rule: name }.into()),
                None if entity.rules.len() == MAX_RULES => {
                    let problem = format!("it has {MAX_RULES} rules, the most that are taken");
                    return Err(DeclareError::Invalid { entity: entity_name, problem }.into());
                }
                None => {}
            }
            save_rule(tx, entity.id, &rule)?;
            let seen = RuleView { spec: rule.spec.clone(), created_at: rule.created_at };
            let place = entity.rules.partition_point(|other| other.spec.name < rule.spec.name);
            entity.rules.insert(place, rule);
            Ok((Topology::new(all), seen))
        })
        .await
    }

    pub async fn remove_rule(&self, subscription: &EntityName, name: &str) -> Result<(), DeclareError> {
        let (subscription, name) = (subscription.clone(), name.to_owned());
        self.change_topology(move |tx| {
            let at = subscription_of(tx.topology, &subscription)?;
            let mut all = everything(tx);
            let entity = &mut all[at];
            let Some(old) = entity.rule(&name) else {
                return Err(DeclareError::NoSuchRule { entity: entity.spec.name.clone(), rule: name.clone() }.into());
            };
            let rule = entity.rules.remove(old);
            tx.execute("DELETE FROM rule WHERE entity = ?1 AND name = ?2", (entity.id, &rule.spec.name))?;
            Ok((Topology::new(all), ()))
        })
        .await
    }

    async fn change_topology<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Tx<'_>) -> Result<(Topology, T), Refusal> + Send + 'static,
    ) -> Result<T, DeclareError> {
        // One at a time: each builds on what the one before has left.
        let _alone = self.shared.declaring.lock().await;
        let changed = self.shared.write(0, move |tx| match change(tx) {
            Ok((topology, answer)) => {
                tx.changes.push(Change::Declared { topology: Arc::new(topology) });
                Ok(Ok(answer))
            }
            Err(Refusal::Declare(error)) => Ok(Err(error)),
            Err(Refusal::Stop(stop)) => Err(stop),
        });
        changed.await.map_err(|stop| DeclareError::Store(stop.into()))?
    }
}

fn view(topology: &Topology, index: &Index, at: EntityIndex) -> EntityView {
    let (entity, counts) = (&topology.entities[at], index.entities[at].counts);
    EntityView {
        spec: entity.spec.clone(),
        created_at: entity.created_at,
        updated_at: entity.updated_at,
        accessed_at: entity.accessed_at(),
        counts: EntityCounts {
            active: counts.active,
            dead_letters: counts.dead,
            scheduled: counts.scheduled,
            deferred: counts.deferred + counts.parked,
            transfer_dead_letters: counts.transfer,
        },
        bytes: counts.bytes,
        subscriptions: entity.subscriptions.iter().map(|at| topology.entities[*at].spec.name.clone()).collect(),
    }
}

fn subscription_of(topology: &Topology, name: &EntityName) -> Result<EntityIndex, DeclareError> {
    let at = topology.position(name).ok_or_else(|| DeclareError::NoSuchEntity(name.clone()))?;
    match topology.entities[at].spec.kind {
        EntityKind::Subscription(_) => Ok(at),
        _ => Err(DeclareError::Invalid {
            entity: name.clone(),
            problem: "it has no rules: it is no subscription".into(),
        }),
    }
}

fn everything(tx: &Tx<'_>) -> Vec<Entity> {
    tx.topology.entities.iter().map(|entity| Entity::clone(entity)).collect()
}

/// All checks come before the first write.
fn put(tx: &mut Tx<'_>, specs: &[EntitySpec], wish: &Wish) -> Result<(Topology, ()), Refusal> {
    let mut all = everything(tx);
    // What is written: positions of entities, rules that replace others, and the names of rules that go.
    let (mut touched, mut rules): (Vec<EntityIndex>, Vec<(EntityIndex, Rule)>) = (Vec::new(), Vec::new());
    let mut dropped: Vec<(EntityIndex, String)> = Vec::new();
    for spec in specs {
        let same = |entity: &Entity| entity.spec.name.as_str().to_lowercase() == spec.name.as_str().to_lowercase();
        let at = all.iter().position(|entity| !entity.is_gone() && same(entity));
        let at = match (at, wish) {
            (Some(_), Wish::Create(_)) => return Err(DeclareError::Exists(spec.name.clone()).into()),
            (None, Wish::Update) => return Err(DeclareError::NoSuchEntity(spec.name.clone()).into()),
            (Some(at), wish) => {
                let new = changed(tx, at, &all[at], spec, wish)?;
                let entity = &mut all[at];
                if matches!(wish, Wish::Declare) {
                    let (made, gone) = declared_rules(entity, spec);
                    for rule in made {
                        rules.push((at, compiled(&spec.name, rule, tx.now)?));
                    }
                    dropped.extend(gone.into_iter().map(|name| (at, name)));
                }
                let declared = matches!(wish, Wish::Declare).then(|| spec.clone());
                let declared = declared.or_else(|| entity.declared.clone());
                if new == entity.spec && declared == entity.declared {
                    continue;
                }
                if new != entity.spec {
                    entity.updated_at = tx.now;
                }
                (entity.spec, entity.declared) = (new, declared);
                at
            }
            (None, wish) => {
                let given = match wish {
                    Wish::Create(rules) if !rules.is_empty() => rules.clone(),
                    _ => spec.rules.clone(),
                };
                let mut entity = Entity::new(EntitySpec { rules: Vec::new(), ..spec.clone() }, tx.now);
                entity.declared = matches!(wish, Wish::Declare).then(|| spec.clone());
                let at = all.len();
                match &spec.kind {
                    EntityKind::Subscription(filter) if given.is_empty() => {
                        rules.push((at, compiled(&spec.name, default_rule(filter.clone()), tx.now)?));
                    }
                    EntityKind::Subscription(_) => {
                        for rule in given {
                            rules.push((at, compiled(&spec.name, rule, tx.now)?));
                        }
                    }
                    _ => {}
                }
                all.push(entity);
                at
            }
        };
        touched.push(at);
    }
    for (at, name) in &dropped {
        all[*at].rules.retain(|rule| !rule.is(name));
    }
    for (at, rule) in &mut rules {
        let entity = &mut all[*at];
        match entity.rule(&rule.spec.name) {
            Some(old) => {
                rule.spec.name.clone_from(&entity.rules[old].spec.name);
                rule.created_at = entity.rules[old].created_at;
                entity.rules[old] = rule.clone();
            }
            None => entity.rules.push(rule.clone()),
        }
        if entity.rules.len() > MAX_RULES {
            let problem = format!("it has more than {MAX_RULES} rules, the most that are taken");
            return Err(DeclareError::Invalid { entity: entity.spec.name.clone(), problem }.into());
        }
        entity.rules.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    }
    let checked = Topology::new(all.clone());
    checked.check()?;
    touched.iter().try_for_each(|at| checked.check_targets(&checked.entities[*at].spec))?;
    // From here on it is written.
    for at in touched {
        save(tx, &mut all[at])?;
    }
    for (at, name) in &dropped {
        tx.execute("DELETE FROM rule WHERE entity = ?1 AND name = ?2", (all[*at].id, name))?;
    }
    for (at, rule) in &rules {
        save_rule(tx, all[*at].id, rule)?;
    }
    Ok((Topology::new(all), ()))
}

/// Rules of a subscription that a declaration makes or changes, and the names of those that go: see the module.
fn declared_rules(entity: &Entity, declared: &EntitySpec) -> (Vec<RuleSpec>, Vec<String>) {
    let EntityKind::Subscription(filter) = &declared.kind else { return (Vec::new(), Vec::new()) };
    let before = entity.declared.as_ref();
    let named_before = before.map_or(&[][..], |before| &before.rules);
    let names = |rules: &[RuleSpec], name: &str| rules.iter().any(|rule| rule.name.eq_ignore_ascii_case(name));
    let mut gone: Vec<&str> =
        named_before.iter().map(|rule| rule.name.as_str()).filter(|name| !names(&declared.rules, name)).collect();
    let mut wished = declared.rules.clone();
    if declared.rules.is_empty() {
        let named = *filter != FilterSpec::All;
        let was_another = before.is_some_and(|before| before.kind != declared.kind) || !named_before.is_empty();
        if named || was_another {
            wished.push(default_rule(filter.clone()));
            gone.retain(|name| !name.eq_ignore_ascii_case(DEFAULT_RULE));
        }
    } else if named_before.is_empty() && !names(&declared.rules, DEFAULT_RULE) {
        gone.push(DEFAULT_RULE);
    }
    let is_there = |rule: &RuleSpec| {
        let there = entity.rule(&rule.name).map(|at| &entity.rules[at].spec);
        there.is_some_and(|there| there.filter == rule.filter && there.action == rule.action)
    };
    wished.retain(|rule| !is_there(rule));
    let gone = gone.into_iter().filter_map(|name| entity.rule(name)).map(|at| entity.rules[at].spec.name.clone());
    (wished, gone.collect())
}

fn default_rule(filter: FilterSpec) -> RuleSpec {
    RuleSpec::new(DEFAULT_RULE, filter)
}

fn compiled(entity: &EntityName, rule: RuleSpec, now: Timestamp) -> Result<Rule, DeclareError> {
    let checked = rule.check().and_then(|()| rule.compile(now));
    checked.map_err(|error| DeclareError::Filter { entity: entity.clone(), error })
}

/// The settings of an entity that is there after the wish.
fn changed(
    tx: &Tx<'_>,
    at: EntityIndex,
    entity: &Entity,
    wished: &EntitySpec,
    wish: &Wish,
) -> Result<EntitySpec, Refusal> {
    let old = &entity.spec;
    let invalid = |problem: String| Err(DeclareError::Invalid { entity: old.name.clone(), problem }.into());
    if std::mem::discriminant(&old.kind) != std::mem::discriminant(&wished.kind) {
        return invalid("it is there as another kind of entity".into());
    }
    let declares = matches!(wish, Wish::Declare);
    let mut new = match declares {
        true => merged(old, entity.declared.as_ref(), wished)?,
        false => EntitySpec { kind: old.kind.clone(), ..wished.clone() },
    };
    new.name = old.name.clone();
    new.rules = Vec::new();
    // Two settings of different origin need not fit together.
    new.validate()?;
    if !declares {
        let fixed = [
            ("requires_session", old.requires_session != new.requires_session),
            ("duplicate_detection", old.duplicate_detection.is_some() != new.duplicate_detection.is_some()),
            ("partitioned", old.partitioned != new.partitioned),
        ];
        if let Some((setting, _)) = fixed.into_iter().find(|(_, changes)| *changes) {
            return Err(DeclareError::Fixed { entity: old.name.clone(), setting }.into());
        }
    }
    let counts = tx.shared.with_index(|index| index.entities.get(at).map(|state| state.counts)).unwrap_or_default();
    let there = counts.active + counts.parked + counts.scheduled + counts.deferred;
    if old.requires_session != new.requires_session && there > 0 {
        return invalid(format!("requires_session cannot change while it holds messages ({there})"));
    }
    Ok(new)
}

/// What holds after configuration has spoken: see the module.
fn merged(
    effective: &EntitySpec,
    declared_before: Option<&EntitySpec>,
    declared: &EntitySpec,
) -> Result<EntitySpec, Stop> {
    let unreadable = |error: serde_json::Error| Stop::Unavailable(error.to_string());
    let value = |spec: &EntitySpec| serde_json::to_value(spec).map_err(unreadable);
    let unnamed = match &declared.kind {
        EntityKind::Subscription(_) => EntityKind::Subscription(FilterSpec::All),
        other => other.clone(),
    };
    let unnamed = value(&EntitySpec { kind: unnamed, ..EntitySpec::queue(declared.name.clone()) })?;
    let before = declared_before.map(value).transpose()?;
    let (mut result, wished) = (value(effective)?, value(declared)?);
    for (key, wish) in wished.as_object().into_iter().flatten() {
        let named = unnamed.get(key) != Some(wish);
        let was_another = before.as_ref().is_some_and(|before| before.get(key) != Some(wish));
        if named || was_another {
            result[key] = wish.clone();
        }
    }
    serde_json::from_value(result).map_err(unreadable)
}

fn save(tx: &Tx<'_>, entity: &mut Entity) -> Result<(), Stop> {
    let json = |spec: &EntitySpec| serde_json::to_string(spec).map_err(|error| Stop::Unavailable(error.to_string()));
    let (spec, declared) = (json(&entity.spec)?, entity.declared.as_ref().map(json).transpose()?);
    if entity.id == 0 {
        tx.execute(
            "INSERT INTO entity (name, spec, declared, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)",
            (entity.spec.name.as_str(), spec, declared, entity.created_at.0, entity.updated_at.0),
        )?;
        entity.id = tx.connection.last_insert_rowid();
    } else {
        tx.execute(
            "UPDATE entity SET spec = ?2, declared = ?3, updated_at = ?4 WHERE id = ?1",
            (entity.id, spec, declared, entity.updated_at.0),
        )?;
    }
    Ok(())
}

fn save_rule(tx: &Tx<'_>, entity: i64, rule: &Rule) -> Result<(), Stop> {
    let spec = serde_json::to_string(&rule.spec).map_err(|error| Stop::Unavailable(error.to_string()))?;
    tx.execute(
        "INSERT OR REPLACE INTO rule (entity, name, spec, created_at) VALUES (?1, ?2, ?3, ?4)",
        (entity, &rule.spec.name, spec, rule.created_at.0),
    )?;
    Ok(())
}

fn remove(tx: &Tx<'_>, gone: &[EntityIndex]) -> Result<(), Stop> {
    for at in gone {
        let id = tx.topology.entities[*at].id;
        for sql in [
            "DELETE FROM message WHERE entity = ?1",
            "DELETE FROM session WHERE entity = ?1",
            "DELETE FROM seen WHERE entity = ?1",
            "DELETE FROM rule WHERE entity = ?1",
            "DELETE FROM entity WHERE id = ?1",
        ] {
            tx.execute(sql, [id])?;
        }
    }
    Ok(())
}

/// The topology, from the file.
pub(crate) fn load(connection: &rusqlite::Connection) -> Result<Topology, String> {
    let text = |error: rusqlite::Error| error.to_string();
    let mut entities = Vec::new();
    let mut statement = connection
        .prepare("SELECT id, name, spec, declared, created_at, updated_at FROM entity ORDER BY id")
        .map_err(text)?;
    let mut rules =
        connection.prepare("SELECT spec, created_at FROM rule WHERE entity = ?1 ORDER BY name").map_err(text)?;
    let mut rows = statement.query([]).map_err(text)?;
    while let Some(row) = rows.next().map_err(text)? {
        let name: String = row.get(1).map_err(text)?;
        let wrong = |error: &dyn std::fmt::Display| format!("entity {name}: {error}");
        let spec = |column: usize| -> Result<Option<EntitySpec>, String> {
            let json: Option<String> = row.get(column).map_err(text)?;
            json.map(|json| serde_json::from_str(&json).map_err(|error| wrong(&error))).transpose()
        };
        let effective = spec(2)?.ok_or_else(|| wrong(&"it has no settings"))?;
        let mut entity = Entity::new(effective, Timestamp(row.get(4).map_err(text)?));
        entity.id = row.get(0).map_err(text)?;
        entity.declared = spec(3)?;
        entity.updated_at = Timestamp(row.get(5).map_err(text)?);
        let mut found = rules.query([entity.id]).map_err(text)?;
        while let Some(row) = found.next().map_err(text)? {
            let (json, at): (String, i64) = (row.get(0).map_err(text)?, row.get(1).map_err(text)?);
            let rule: RuleSpec = serde_json::from_str(&json).map_err(|error| wrong(&error))?;
            let compiled = rule.compile(Timestamp(at)).map_err(|error: FilterError| wrong(&error))?;
            entity.rules.push(compiled);
        }
        entities.push(entity);
    }
    Ok(Topology::new(entities))
}
