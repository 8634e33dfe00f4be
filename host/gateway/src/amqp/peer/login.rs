//! Logins. Who is anonymous may show tokens afterwards; a key can be shown at once (PLAIN).

use bytes::Bytes;
use sprag_amqp::performative::SaslCode;

use super::Peer;

impl Peer {
    pub(super) fn log_in(&mut self, mechanism: &str, response: Option<&[u8]>) {
        let answer = match (mechanism.to_ascii_uppercase().as_str(), response) {
            // EXTERNAL: there are no client certificates here, so it names nobody and gives no right.
            ("ANONYMOUS" | "MSSBCBS" | "EXTERNAL", _) => self.amqp.sasl_accept(),
            ("PLAIN", None | Some([])) => self.amqp.sasl_challenge(Bytes::new()),
            ("PLAIN", Some(response)) => match self.plain(response) {
                true => self.amqp.sasl_accept(),
                false => self.amqp.sasl_refuse(SaslCode::Auth),
            },
            _ => self.amqp.sasl_refuse(SaslCode::Auth),
        };
        if let Err(error) = answer {
            tracing::debug!(%error, "a login went away before it was answered");
        }
    }

    /// `[authorization id] NUL name NUL key` (RFC 4616).
    fn plain(&mut self, response: &[u8]) -> bool {
        let mut parts = response.split(|byte| *byte == 0).map(std::str::from_utf8);
        let (Some(Ok(_)), Some(Ok(name)), Some(Ok(key)), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            tracing::info!("a login was refused: its response is not what PLAIN has");
            return false;
        };
        match self.permissions.log_in(name, key) {
            Ok(()) => true,
            Err(denied) => {
                tracing::info!(%denied, "a login was refused");
                false
            }
        }
    }
}
