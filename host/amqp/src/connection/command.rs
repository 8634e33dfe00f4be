//! What the application wants. Every command takes effect at once; what it writes waits for `poll_output`.

use bytes::Bytes;

use super::{
    Connection, Phase,
    config::MAX_DELIVERY_TAG,
    event::{Accept, CommandError, DeliverError, EndedBy, Event, Outgoing},
    keys::{IncomingKey, LinkKey, OutgoingKey, SessionKey, wire_id},
    link::LinkState,
    links::{answer, too_small},
};
use crate::{
    condition,
    performative::{AmqpError, Attach, DeliveryState, Performative, Role, Sasl, SaslCode},
};

type Result<T, E = CommandError> = std::result::Result<T, E>;

impl Connection {
    /// The login is good. Goes on with what has come in the meantime.
    pub fn sasl_accept(&mut self) -> Result<()> {
        self.asked()?;
        self.output.sasl(&Sasl::Outcome { code: SaslCode::Ok, data: None });
        self.phase = Phase::HeaderAfterSasl;
        self.process();
        Ok(())
    }

    /// The login is not good, or cannot be looked at. The connection is finished: nothing that the peer sends is read any more (A85).
    pub fn sasl_refuse(&mut self, code: SaslCode) -> Result<()> {
        self.asked()?;
        let code = if code == SaslCode::Ok { SaslCode::Auth } else { code };
        self.output.sasl(&Sasl::Outcome { code, data: None });
        self.closed(EndedBy::Us, Some(AmqpError::new(condition::UNAUTHORIZED_ACCESS, "the login was refused")));
        Ok(())
    }

    /// Asks the peer for more.
    pub fn sasl_challenge(&mut self, challenge: Bytes) -> Result<()> {
        self.asked()?;
        self.output.sasl(&Sasl::Challenge(challenge));
        self.phase = Phase::SaslResponse;
        self.process();
        Ok(())
    }

    fn asked(&self) -> Result<()> {
        match self.phase {
            Phase::SaslAsked => Ok(()),
            Phase::Finished => Err(CommandError::Gone),
            _ => Err(CommandError::State("no login waits for an answer")),
        }
    }

    /// Takes a link. When the peer has given credit already, that is told by an event now.
    pub fn accept_attach(&mut self, key: LinkKey, accept: Accept) -> Result<()> {
        let session = self.session_mut(key.session).ok_or(CommandError::Gone)?;
        let link = session.links.get_mut(&key.handle).filter(|link| link.key == key).ok_or(CommandError::Gone)?;
        let attach = match &link.state {
            LinkState::Requested(attach) => attach.clone(),
            LinkState::Attached => return Err(CommandError::State("the link is attached")),
            LinkState::Detaching => return Err(CommandError::Gone),
        };
        if link.role == Role::Receiver && accept.max_message_size == 0 {
            return Err(CommandError::State("a link to receive on needs a max_message_size"));
        }
        let asked = answer(&attach);
        let answer = Attach {
            source: accept.source,
            target: accept.target,
            sender_settle: accept.sender_settle.unwrap_or(asked.sender_settle),
            receiver_settle: accept.receiver_settle.unwrap_or(asked.receiver_settle),
            max_message_size: (link.role == Role::Receiver).then_some(accept.max_message_size),
            properties: accept.properties,
            offered_capabilities: accept.offered_capabilities,
            ..asked
        };
        let channel = key.session.channel;
        if self.output.frame(channel, &Performative::Attach(Box::new(answer))).is_err() {
            self.detach_quietly(key, Some(&too_small()));
            return Err(CommandError::FrameTooLarge);
        }
        let session = self.sessions.get_mut(&channel).expect("looked up above");
        let link = session.links.get_mut(&key.handle).expect("looked up above");
        link.state = LinkState::Attached;
        match link.role {
            Role::Receiver => {
                link.max_message_size = accept.max_message_size;
                link.target_credit = accept.credit;
                self.raise_credit(channel, key.handle);
            }
            Role::Sender => {
                if accept.max_message_size > 0 {
                    link.max_message_size = accept.max_message_size;
                }
                if link.credit > 0 || link.drain {
                    let event = Event::CreditChanged { link: key, credit: link.credit, drain: link.drain };
                    self.events.push_back(event);
                }
            }
        }
        Ok(())
    }

    /// Refuses a link that was asked for: an attach without our end, and the detach that says why. No event follows.
    pub fn refuse_attach(&mut self, key: LinkKey, error: &AmqpError) -> Result<()> {
        match self.link(key).map(|link| &link.state) {
            Some(LinkState::Requested(_)) => {}
            Some(LinkState::Attached) => return Err(CommandError::State("the link is attached: detach it")),
            Some(LinkState::Detaching) | None => return Err(CommandError::Gone),
        }
        self.detach_quietly(key, Some(error));
        Ok(())
    }

    /// Detaches a link, attached or only asked for. No event follows.
    pub fn detach(&mut self, key: LinkKey, error: Option<&AmqpError>) -> Result<()> {
        match self.detach_quietly(key, error) {
            true => Ok(()),
            false => Err(CommandError::Gone),
        }
    }

    /// Ends a session. The event of it follows.
    pub fn end(&mut self, key: SessionKey, error: Option<AmqpError>) -> Result<()> {
        self.session(key).ok_or(CommandError::Gone)?;
        self.end_by_us(key.channel, error);
        Ok(())
    }

    /// Closes the connection. The event of it follows; the peer's answer is awaited for a while.
    pub fn close(&mut self, error: Option<AmqpError>) -> Result<()> {
        match self.phase {
            Phase::Running => self.close_by_us(error),
            Phase::Closing | Phase::Finished => return Err(CommandError::Gone),
            // There is nobody yet who would understand a close.
            _ => self.closed(EndedBy::Us, error),
        }
        Ok(())
    }

    /// How many messages may be handed to [`deliver`](Self::deliver) on a link now: the receiver's credit, or nothing while the session's
    /// window is shut. 0 for whatever is not a link to send on.
    pub fn deliverable(&self, key: LinkKey) -> u32 {
        let Some(session) = self.session(key.session) else { return 0 };
        match self.link(key) {
            Some(link) if sends(link) && session.room() => link.credit,
            _ => 0,
        }
    }

    /// Our deliveries of a session that nobody has settled. A receiver that gives credit and never settles makes it grow: look at it.
    pub fn unsettled_outgoing(&self, key: SessionKey) -> usize {
        self.session(key).map_or(0, |session| session.outgoing.len())
    }

    /// The credit of a link, whichever side gave it.
    pub fn credit(&self, key: LinkKey) -> u32 {
        self.link(key).map_or(0, |link| link.credit)
    }

    /// Sends a message. It is written as far as the session's window reaches, and the rest when that opens again; the order of the commands
    /// is kept within a session.
    pub fn deliver(&mut self, key: LinkKey, message: Outgoing) -> Result<OutgoingKey, DeliverError> {
        if message.tag.len() > MAX_DELIVERY_TAG {
            return Err(DeliverError::TagTooLong(message.tag.len()));
        }
        let session = self
            .sessions
            .get_mut(&key.session.channel)
            .filter(|session| session.key == key.session && !session.ending)
            .ok_or(DeliverError::Gone)?;
        let link = session.links.get_mut(&key.handle).filter(|link| link.key == key).ok_or(DeliverError::Gone)?;
        match link.state {
            LinkState::Detaching => return Err(DeliverError::Gone),
            _ if !sends(link) => return Err(DeliverError::NotSending),
            _ => {}
        }
        if link.credit == 0 {
            return Err(DeliverError::NoCredit);
        }
        let max = link.max_message_size;
        if max > 0 && message.payload.len() as u64 > max {
            return Err(DeliverError::TooLarge { max });
        }
        link.credit -= 1;
        link.delivery_count = link.delivery_count.wrapping_add(1);
        Ok(session.deliver(key, message, &mut self.output))
    }

    /// There is nothing more to send now: gives the rest of a draining receiver's credit back. Of no effect when it is not draining.
    pub fn drained(&mut self, key: LinkKey) -> Result<()> {
        let session = self
            .sessions
            .get_mut(&key.session.channel)
            .filter(|session| session.key == key.session && !session.ending)
            .ok_or(CommandError::Gone)?;
        let link = session.links.get_mut(&key.handle).filter(|link| link.key == key).ok_or(CommandError::Gone)?;
        match link.state {
            LinkState::Detaching => return Err(CommandError::Gone),
            _ if !sends(link) => return Err(CommandError::State("not a link to send on")),
            _ => {}
        }
        if link.drain {
            link.drain = false;
            link.delivery_count = link.delivery_count.wrapping_add(link.credit);
            link.credit = 0;
            let count = link.delivery_count;
            session.drained(key, count, &mut self.output);
        }
        Ok(())
    }

    /// Sets how many deliveries a sender may have under way and unanswered in all. More is told to it at once, fewer takes effect as those
    /// under way come.
    pub fn set_credit(&mut self, key: LinkKey, credit: u32) -> Result<()> {
        let session = self.session_mut(key.session).ok_or(CommandError::Gone)?;
        let link = session.links.get_mut(&key.handle).filter(|link| link.key == key).ok_or(CommandError::Gone)?;
        match (&link.state, link.role) {
            (LinkState::Detaching, _) => return Err(CommandError::Gone),
            (_, Role::Sender) => return Err(CommandError::State("the peer gives credit on this link")),
            (LinkState::Requested(_), _) => return Err(CommandError::State("the link is not accepted yet")),
            (LinkState::Attached, Role::Receiver) => {}
        }
        link.target_credit = credit;
        self.raise_credit(key.session.channel, key.handle);
        Ok(())
    }

    /// Says what has become of a message of the peer, and settles it.
    ///
    /// Settled at once even for a sender who wants to settle second: the Python SDK asks for that and then hangs when it is taken at its word.
    pub fn settle_incoming(&mut self, delivery: IncomingKey, state: &DeliveryState) -> Result<()> {
        let session = self.session(delivery.session).ok_or(CommandError::Gone)?;
        if !session.incoming.contains_key(&delivery.id) {
            return Err(CommandError::Gone);
        }
        self.output.settled(delivery.session.channel, Role::Receiver, wire_id(delivery.id), Some(state));
        self.release_incoming(delivery);
        Ok(())
    }

    /// Settles a message of ours, with the outcome that counts. The answer to a receiver who settles second.
    pub fn settle_outgoing(&mut self, delivery: OutgoingKey, state: Option<&DeliveryState>) -> Result<()> {
        let session = self.session_mut(delivery.session).ok_or(CommandError::Gone)?;
        session.outgoing.remove(&delivery.id).ok_or(CommandError::Gone)?;
        self.output.settled(delivery.session.channel, Role::Sender, wire_id(delivery.id), state);
        Ok(())
    }
}

fn sends(link: &super::link::Link) -> bool {
    link.role == Role::Sender && matches!(link.state, LinkState::Attached)
}
