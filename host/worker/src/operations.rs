//! What operators can see and do, over the stores and the transport that the endpoints use.
//!
//! Start reading at [`Host`]. `listings` only read; `actions` accept what an operator wants: an action is written together with the message that
//! carries it through the session's own loop, which alone applies it (P15). Nothing here settles, runs or unblocks anything.

mod actions;
mod convert;
mod listings;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sprag_core::{
    ids::{ActionId, EndpointName, EntityName, SequenceNumber, SessionId},
    message::Message,
    operations::{
        Caller, Error, EventAction, EventFilter, GroupAction, InboxFilter, Operations, OutboxResolution, Page, Part,
        PlaceFilter, Result, SkipSession, view,
    },
    seal::Seal,
    time::Timestamp,
};
use sprag_store::{Store, query};
use sprag_transport::Transport;

use crate::{config::EndpointConfig, handlers::Handlers};

/// What operations are built from.
pub struct HostConfig {
    pub endpoints: Vec<EndpointConfig>,
    /// Where sends, peeks and replays go, beside the endpoints' own. An entity that several know is the first one's.
    pub transports: Vec<Arc<dyn Transport>>,
    /// Whether endpoints are ready.
    pub handlers: Arc<dyn Handlers>,
    /// The handlers that an endpoint names; none for all.
    pub listing: Arc<dyn HandlerListing>,
    pub seal: Seal,
    pub clock: fn() -> Timestamp,
}

/// What is known of handlers: the runtime's business, so it comes from outside.
pub trait HandlerListing: Send + Sync + 'static {
    fn handlers(&self) -> Vec<view::Handler>;
    /// Handlers that the endpoint names or, when it names none, that serve it.
    fn of_endpoint(&self, endpoint: &EndpointName) -> Vec<sprag_core::ids::HandlerName>;
    /// Why the endpoint takes no messages now. Empty: it does.
    fn reasons(&self, endpoint: &EndpointName) -> Vec<String>;
}

/// The operations of one host.
pub struct Host {
    config: HostConfig,
    /// Each store once. Rows of the n-th of k have ids that are n modulo k, so that a number alone finds its row.
    stores: Vec<Arc<dyn Store>>,
}

impl Host {
    pub fn new(config: HostConfig) -> Self {
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for endpoint in &config.endpoints {
            if !stores.iter().any(|store| Arc::ptr_eq(store, &endpoint.store)) {
                stores.push(Arc::clone(&endpoint.store));
            }
        }
        Self { config, stores }
    }

    fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    fn endpoint(&self, name: &EndpointName) -> Result<&EndpointConfig> {
        self.config.endpoints.iter().find(|endpoint| endpoint.name == *name).ok_or_else(|| {
            let known: Vec<&str> = self.config.endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
            Error::NotFound(format!("there is no endpoint {:?}; there are: {}", name.as_str(), known.join(", ")))
        })
    }

    fn reader_of(&self, entity: &EntityName) -> Option<&EndpointConfig> {
        self.config.endpoints.iter().find(|endpoint| endpoint.source == *entity)
    }

    /// The transport that has an entity: that of the endpoint that reads it, else the first that knows it.
    async fn transport_of(&self, entity: &EntityName) -> Result<&Arc<dyn Transport>> {
        if let Some(endpoint) = self.reader_of(entity) {
            return Ok(&endpoint.transport);
        }
        let mut why = sprag_transport::Error::NoSuchEntity(entity.clone());
        for transport in &self.config.transports {
            match transport.settings(entity).await {
                Ok(_) => return Ok(transport),
                Err(sprag_transport::Error::NoSuchEntity(_)) => {}
                Err(error) => why = error,
            }
        }
        Err(convert::transport_error(why))
    }

    fn public_id(&self, store: usize, id: i64) -> i64 {
        id.saturating_mul(self.count()) + i64::try_from(store).unwrap_or(0)
    }

    fn private_id(&self, id: i64) -> Option<(&Arc<dyn Store>, i64)> {
        let store = usize::try_from(id.checked_rem_euclid(self.count())?).ok()?;
        Some((self.stores.get(store)?, id.div_euclid(self.count())))
    }

    fn count(&self) -> i64 {
        i64::try_from(self.stores.len()).unwrap_or(1).max(1)
    }

    fn store_index(&self, store: &Arc<dyn Store>) -> usize {
        self.stores.iter().position(|other| Arc::ptr_eq(other, store)).expect("made of every endpoint's store")
    }

    async fn audit(
        &self,
        endpoint: Option<&EndpointName>,
        caller: &Caller,
        verb: &str,
        target: String,
        count: u64,
    ) -> Result<()> {
        let store = match endpoint {
            Some(name) => &self.endpoint(name)?.store,
            None => match self.stores.first() {
                Some(store) => store,
                None => return Ok(()),
            },
        };
        let entry = query::AuditEntry {
            at: self.now(),
            by: caller.name.clone(),
            verb: verb.to_owned(),
            endpoint: endpoint.cloned(),
            target,
            reason: None,
            count,
        };
        store.add_audit(entry).await.map_err(convert::store_error)
    }
}

#[async_trait]
impl Operations for Host {
    async fn events(&self, filter: EventFilter, page: Page) -> Result<view::Listing<view::Event>> {
        listings::events(self, filter, page).await
    }

    async fn event(&self, id: &str, endpoint: Option<&EndpointName>) -> Result<view::EventDetail> {
        listings::event(self, id, endpoint).await
    }

    async fn groups(&self, filter: EventFilter) -> Result<view::Listing<view::Group>> {
        listings::groups(self, filter).await
    }

    async fn sessions(&self, filter: PlaceFilter, page: Page) -> Result<view::Listing<view::SessionLine>> {
        listings::sessions(self, &filter, page).await
    }

    async fn parked(&self, filter: PlaceFilter, page: Page) -> Result<view::Listing<view::ParkedMessage>> {
        listings::parked(self, &filter, page).await
    }

    async fn scheduled(&self, filter: PlaceFilter, page: Page) -> Result<view::Listing<view::ScheduledMessage>> {
        listings::scheduled(self, &filter, page).await
    }

    async fn dead_letters(&self, filter: PlaceFilter, page: Page) -> Result<view::Listing<view::DeadLetter>> {
        listings::dead_letters(self, &filter, page).await
    }

    async fn inbox(&self, filter: InboxFilter, page: Page) -> Result<view::Listing<view::InboxLine>> {
        listings::inbox(self, filter, page).await
    }

    async fn audit(&self, page: Page) -> Result<view::Listing<view::AuditLine>> {
        listings::audit(self, page).await
    }

    async fn outbox(&self, page: Page) -> Result<view::Listing<view::OutboxLine>> {
        listings::outbox(self, page).await
    }

    async fn handlers(&self) -> Result<view::Listing<view::Handler>> {
        Ok(view::Listing::whole(self.config.listing.handlers()))
    }

    async fn endpoints(&self) -> Result<view::Listing<view::Endpoint>> {
        listings::endpoints(self).await
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        page: Page,
    ) -> Result<view::Listing<view::PeekedMessage>> {
        listings::peek(self, entity, part, session, page).await
    }

    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<view::Sent>> {
        actions::send(self, entity, messages).await
    }

    async fn act(&self, action: EventAction, caller: &Caller) -> Result<view::Action> {
        actions::act(self, action, caller).await
    }

    async fn act_on_group(&self, action: GroupAction, caller: &Caller) -> Result<view::GroupResult> {
        actions::act_on_group(self, action, caller).await
    }

    async fn skip_session(&self, action: SkipSession, caller: &Caller) -> Result<view::SessionSkip> {
        actions::skip_session(self, action, caller).await
    }

    async fn copy_to(
        &self,
        event: &str,
        endpoint: Option<&EndpointName>,
        to: &EndpointName,
        caller: &Caller,
    ) -> Result<view::Sent> {
        actions::copy_to(self, event, endpoint, to, caller).await
    }

    async fn action(&self, id: ActionId, wait: Duration) -> Result<view::Action> {
        actions::action(self, id, wait).await
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber, caller: &Caller) -> Result<()> {
        let transport = self.transport_of(entity).await?;
        transport.cancel_scheduled(entity, sequence).await.map_err(convert::transport_error)?;
        let endpoint = self.reader_of(entity).map(|endpoint| endpoint.name.clone());
        self.audit(endpoint.as_ref(), caller, "scheduled-cancel", format!("{entity}#{sequence}"), 1).await
    }

    async fn replay_dead_letters(
        &self,
        entity: &EntityName,
        sequences: &[SequenceNumber],
        caller: &Caller,
    ) -> Result<u64> {
        actions::replay_dead_letters(self, entity, sequences, caller).await
    }

    async fn resolve_outbox(&self, id: i64, resolution: OutboxResolution, caller: &Caller) -> Result<()> {
        let drop = resolution == OutboxResolution::Drop;
        let missing = || Error::NotFound(format!("the outbox has no row {id}"));
        let (store, row) = self.private_id(id).ok_or_else(missing)?;
        if !store.outbox_resolve(row, drop).await.map_err(convert::store_error)? {
            return Err(missing());
        }
        self.audit(None, caller, if drop { "outbox-drop" } else { "outbox-retry" }, id.to_string(), 1).await
    }

    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, caller: &Caller) -> Result<u64> {
        actions::purge_inbox(self, endpoint, before, caller).await
    }

    async fn health(&self) -> view::Health {
        listings::health(self).await
    }
}
