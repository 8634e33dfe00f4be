//! What a peer can make a connection hold, for the tests that try to make it hold more.

use super::Connection;

impl Connection {
    /// Panics when more is held than the configuration and the application's grants allow.
    pub(crate) fn assert_bounded(&self, credit: u32, max_message_size: u64) {
        let config = &self.config;
        assert!(self.input.len() <= config.max_frame_size as usize, "input: one frame that is not whole");
        assert!(self.sessions.len() <= usize::from(config.channel_max) + 1);
        assert!(self.ended.len() <= usize::from(config.channel_max) + 1);
        let links: usize = self.sessions.values().map(|session| session.links.len()).sum();
        assert!(links <= config.max_links);
        let mut names = 0;
        for session in self.sessions.values() {
            assert!(session.links.len() <= config.handle_max as usize + 1);
            assert!(session.errant.len() <= config.handle_max as usize + 1);
            assert!(session.incoming.len() <= session.links.len() * credit as usize, "no more than was granted");
            for link in session.links.values() {
                assert!(
                    link.in_use <= credit && link.credit <= credit || link.role == crate::performative::Role::Sender
                );
                let partial = link.partial.as_ref().map_or(0, |partial| partial.payload.len());
                assert!(partial as u64 <= max_message_size);
                names += usize::from(!matches!(link.state, super::link::LinkState::Detaching));
            }
        }
        assert_eq!(self.names.len(), names, "a name for each link, and no other");
    }
}
