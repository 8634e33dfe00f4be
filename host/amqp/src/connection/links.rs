//! Links: attach, flow and detach.

use std::sync::Arc;

use super::{
    Connection, Fault,
    event::{EndedBy, Event},
    keys::{LinkKey, ahead},
    link::{Link, LinkState},
    output::{Output, TooLarge},
    session::Session,
};
use crate::{
    condition,
    performative::{AmqpError, Attach, Detach, Flow, Performative, Role},
};

impl Connection {
    pub(super) fn on_attach(&mut self, channel: u16, attach: Box<Attach>) -> Result<(), Fault> {
        let handle = attach.handle;
        if handle > self.config.handle_max {
            let text = format!("handle {handle} is above {}", self.config.handle_max);
            return Err(Fault::Connection(AmqpError::new(condition::FRAMING_ERROR, text)));
        }
        let links: usize = self.sessions.values().map(|session| session.links.len()).sum();
        if links >= self.config.max_links {
            let text = format!("more than {} links", self.config.max_links);
            return Err(Fault::Connection(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, text)));
        }
        let serial = self.next_serial();
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        match session.links.get(&handle).map(|link| &link.state) {
            // A peer that uses a handle again has taken note of our detach, whether it has answered or not.
            None | Some(LinkState::Detaching) => {}
            Some(_) => {
                let text = format!("handle {handle} is in use");
                return Err(Fault::Session(channel, AmqpError::new(condition::HANDLE_IN_USE, text)));
            }
        }
        let attach = Arc::<Attach>::from(attach);
        let key = LinkKey { session: session.key, handle, serial };
        let link = Link::requested(key, Arc::clone(&attach));
        let name = (link.role, Arc::clone(&link.name));
        session.errant.remove(&handle);
        session.links.insert(handle, link);
        if let Some(older) = self.names.insert(name, key) {
            let text = "the link was attached again elsewhere";
            self.detach_by_us(older, Some(AmqpError::new(condition::STOLEN, text)));
        }
        self.events.push_back(Event::AttachRequested { link: key, attach });
        Ok(())
    }

    pub(super) fn on_detach(&mut self, channel: u16, detach: Detach) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        let Some(link) = session.links.remove(&detach.handle) else {
            return Err(no_such_link(session, detach.handle));
        };
        if matches!(link.state, LinkState::Detaching) {
            // Its answer to ours, or both at once: either way it is over, and we have told it.
            return Ok(());
        }
        session.forget(link.key, &mut self.output);
        self.forget_name(&link);
        if let LinkState::Requested(attach) = &link.state {
            // A detach is only understood after an attach.
            write_refusal(&mut self.output, channel, attach)
                .map_err(|TooLarge| Fault::Session(channel, too_small()))?;
        }
        self.output.detach(channel, detach.handle, detach.closed, None);
        self.events.push_back(Event::Detached { link: link.key, by: EndedBy::Peer, error: detach.error });
        Ok(())
    }

    pub(super) fn on_link_flow(&mut self, channel: u16, handle: u32, flow: &Flow) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        let Some(link) = session.links.get_mut(&handle) else {
            return Err(no_such_link(session, handle));
        };
        match (link.role, &link.state) {
            (_, LinkState::Detaching) => return Ok(()),
            (Role::Sender, state) => {
                if let Some(credit) = flow.link_credit {
                    // What we have sent and the receiver not seen is taken off. It may not know a count yet: then it means our first.
                    let unseen = ahead(link.delivery_count, flow.delivery_count.unwrap_or(0));
                    link.credit = credit.saturating_sub(unseen);
                    link.drain = flow.drain;
                    if matches!(state, LinkState::Attached) {
                        let event = Event::CreditChanged { link: link.key, credit: link.credit, drain: link.drain };
                        self.events.push_back(event);
                    }
                }
            }
            (Role::Receiver, _) => {
                if let Some(count) = flow.delivery_count {
                    // The sender counts on by itself when it gives back credit.
                    let given_back = ahead(count, link.delivery_count);
                    link.delivery_count = link.delivery_count.wrapping_add(given_back);
                    link.credit = link.credit.saturating_sub(given_back);
                    self.raise_credit(channel, handle);
                }
            }
        }
        if flow.echo {
            let session = self.sessions.get(&channel).expect("looked up above");
            if let Some(link) = session.links.get(&handle)
                && matches!(link.state, LinkState::Attached)
            {
                self.output.flow(channel, &session.link_flow(link));
            } else {
                self.output.flow(channel, &session.flow());
            }
        }
        Ok(())
    }

    /// Gives a sender new credit when there is enough of it to be worth a frame.
    pub(super) fn raise_credit(&mut self, channel: u16, handle: u32) {
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        let Some(link) = session.links.get_mut(&handle) else { return };
        if matches!(link.state, LinkState::Attached) && link.raise_credit() {
            let link = session.links.get(&handle).expect("looked up above");
            self.output.flow(channel, &session.link_flow(link));
        }
    }

    /// Detaches a link from our side; the peer's detach is awaited. A link that was not answered yet is refused.
    pub(super) fn detach_by_us(&mut self, key: LinkKey, error: Option<AmqpError>) {
        if self.detach_quietly(key, error.as_ref()) {
            self.events.push_back(Event::Detached { link: key, by: EndedBy::Us, error });
        }
    }

    /// As above, for when the application knows. Says whether there was such a link.
    pub(super) fn detach_quietly(&mut self, key: LinkKey, error: Option<&AmqpError>) -> bool {
        let Some(session) = self.session_mut(key.session) else { return false };
        let Some(link) = session.links.get_mut(&key.handle).filter(|link| link.key == key) else { return false };
        let state = std::mem::replace(&mut link.state, LinkState::Detaching);
        link.partial = None;
        let name = (link.role, Arc::clone(&link.name));
        let channel = key.session.channel;
        match state {
            LinkState::Detaching => return false,
            LinkState::Attached => {}
            LinkState::Requested(attach) => {
                if write_refusal(&mut self.output, channel, &attach).is_err() {
                    self.end_by_us(channel, Some(too_small()));
                    return false;
                }
            }
        }
        if let Some(session) = self.sessions.get_mut(&channel) {
            session.forget(key, &mut self.output);
            if error.is_some() {
                session.errant.insert(key.handle);
            }
        }
        self.output.detach(channel, key.handle, true, error);
        self.forget_name_of(&name, key);
        true
    }

    pub(super) fn forget_name(&mut self, link: &Link) {
        self.forget_name_of(&(link.role, Arc::clone(&link.name)), link.key);
    }

    /// The name may belong to another link by now.
    fn forget_name_of(&mut self, name: &(Role, Arc<str>), key: LinkKey) {
        if self.names.get(name) == Some(&key) {
            self.names.remove(name);
        }
    }
}

/// Writes the attach that says no: without our end of the link. A detach has to follow.
///
/// Too large is only a peer whose link has a name that fills its own frames: it has asked for what it cannot read.
fn write_refusal(output: &mut Output, channel: u16, attach: &Attach) -> Result<(), TooLarge> {
    let bare = answer(attach);
    let mut full = bare.clone();
    match full.role {
        Role::Sender => full.target.clone_from(&attach.target),
        Role::Receiver => full.source.clone_from(&attach.source),
    }
    output
        .frame(channel, &Performative::Attach(Box::new(full)))
        .or_else(|TooLarge| output.frame(channel, &Performative::Attach(Box::new(bare))))
}

/// The answer to an attach, its ends left open.
pub(super) fn answer(attach: &Attach) -> Attach {
    let role = attach.role.other();
    Attach {
        sender_settle: attach.sender_settle,
        receiver_settle: attach.receiver_settle,
        // Receivers compute with it, and the standard requires it of a sender.
        initial_delivery_count: (role == Role::Sender).then_some(0),
        ..Attach::new(attach.name.clone(), attach.handle, role)
    }
}

pub(super) fn too_small() -> AmqpError {
    AmqpError::new(condition::FRAME_SIZE_TOO_SMALL, "the answer to an attach does not fit into your frames")
}

/// What it means that a frame names a handle without a link.
pub(super) fn no_such_link(session: &Session, handle: u32) -> Fault {
    let condition = match session.errant.contains(&handle) {
        true => condition::ERRANT_LINK,
        false => condition::UNATTACHED_HANDLE,
    };
    Fault::Session(session.key.channel, AmqpError::new(condition, format!("handle {handle} has no link")))
}
