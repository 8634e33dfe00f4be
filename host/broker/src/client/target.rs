//! Where messages are sent.

use std::sync::Arc;

use sprag_core::{
    ids::{EntityName, SequenceNumber},
    message::Message,
};

use super::Error;
use crate::{
    Engine,
    entity::{Entity, EntityIndex, EntityKind},
    messages::{self, Prepared},
    writer::Stop,
};

/// A queue or a topic. Cheap to clone; it stays of use when the entity's settings change, and says so when the entity has gone.
#[derive(Clone)]
pub struct Target {
    engine: Engine,
    at: EntityIndex,
    name: EntityName,
}

impl Engine {
    /// The queue or topic of this name.
    pub fn target(&self, name: &EntityName) -> Result<Target, Error> {
        let topology = self.shared.topology();
        let at = topology.position(name).ok_or_else(|| Error::NoSuchEntity(name.clone()))?;
        let spec = &topology.entities[at].spec;
        match spec.kind {
            EntityKind::Subscription(_) => {
                Err(Error::Refused(format!("{} is a subscription: send to its topic", spec.name)))
            }
            _ => Ok(Target { engine: self.clone(), at, name: spec.name.clone() }),
        }
    }
}

impl Target {
    /// As it was declared.
    pub fn name(&self) -> &EntityName {
        &self.name
    }

    pub fn max_message_size(&self) -> u64 {
        self.entity().spec.max_message_size
    }

    pub fn requires_session(&self) -> bool {
        self.entity().spec.requires_session
    }

    fn entity(&self) -> Arc<Entity> {
        Arc::clone(&self.engine.shared.topology().entities[self.at])
    }

    fn there(&self) -> Result<Arc<Entity>, Error> {
        let entity = self.entity();
        match entity.is_gone() {
            true => Err(Error::NoSuchEntity(self.name.clone())),
            false => Ok(entity),
        }
    }

    /// Whether a message could be sent now, without sending one.
    pub fn check(&self) -> Result<(), Error> {
        let entity = self.there()?;
        match entity.spec.status.sends() {
            true => Ok(()),
            false => Err(Error::Disabled { entity: self.name.clone() }),
        }
    }

    /// Sends all or none; those with `scheduled_for` become visible then. Answers their numbers once they are on the disk.
    pub async fn send(&self, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        self.check()?;
        let (entity, shared, at) = (self.entity(), &self.engine.shared, self.at);
        let mut prepared = Vec::with_capacity(messages.len());
        for message in messages {
            let message = Prepared::new(message)?;
            let (size, limit) = (u64::from(message.size), entity.spec.max_message_size);
            if size > limit {
                return Err(Error::TooLarge { entity: self.name.clone(), size, limit });
            }
            entity.spec.accepts(&message.message, size)?;
            prepared.push(message);
        }
        entity.touch(shared.now());
        let bytes = prepared.iter().map(Prepared::bytes).sum();
        let sent = shared.write(bytes, move |tx| {
            messages::check_room(tx, at, prepared.iter().map(|message| u64::from(message.size)).sum())?;
            prepared.iter().map(|message| messages::send(tx, at, message)).collect::<Result<Vec<_>, Stop>>()
        });
        Ok(sent.await?)
    }

    /// Takes scheduled messages back. Those that are there are taken back even where another one is not.
    pub async fn cancel_scheduled(&self, sequences: &[SequenceNumber]) -> Result<(), Error> {
        self.there()?;
        let (sequences, at) = (sequences.to_vec(), self.at);
        let missing = self.engine.shared.write(64 * sequences.len(), move |tx| {
            let mut missing = None;
            for sequence in &sequences {
                if !messages::cancel(tx, at, sequence.0)? {
                    missing.get_or_insert(*sequence);
                }
            }
            Ok(missing)
        });
        match missing.await? {
            Some(sequence) => Err(Error::MessageNotFound(sequence)),
            None => Ok(()),
        }
    }
}
