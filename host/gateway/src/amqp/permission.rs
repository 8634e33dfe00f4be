//! What a connection may do: by what it has shown, at login or as tokens since.

use sprag_core::time::Timestamp;

use super::{address::Place, failure::Failure};
use crate::access::{Access, Denied, Grant, Right};

/// The most tokens that a connection is remembered for. One entity needs one; who shows more has old ones forgotten first.
const MAX_GRANTS: usize = 1_024;

#[derive(Debug)]
pub(super) struct Permissions {
    access: Access,
    grants: Vec<Grant>,
}

impl Permissions {
    pub(super) fn new(access: Access) -> Self {
        Self { grants: access.anonymous().into_iter().collect(), access }
    }

    /// The name of a key and the key itself (SASL PLAIN).
    pub(super) fn log_in(&mut self, name: &str, key: &str) -> Result<(), Denied> {
        let grant = self.access.check_plain(name, key)?;
        self.add(grant);
        Ok(())
    }

    /// A token. One that is shown again for the same entity takes the place of the one before.
    pub(super) fn put(&mut self, token: &str, now: Timestamp) -> Result<(), Failure> {
        if self.access.is_open() {
            return Ok(());
        }
        let signature = "SharedAccessSignature";
        if !token.trim_start().get(..signature.len()).is_some_and(|start| start.eq_ignore_ascii_case(signature)) {
            // Who signed a JWT is known to Azure's directory only.
            return Err(Failure::unauthorized("only shared access signatures are accepted here, no JWT"));
        }
        let grant = self.access.check(token, now).map_err(|denied| Failure::unauthorized(denied.to_string()))?;
        self.grants.retain(|old| now < old.expires_at && old.path != grant.path);
        self.add(grant);
        Ok(())
    }

    fn add(&mut self, grant: Grant) {
        if self.grants.len() == MAX_GRANTS {
            self.grants.remove(0);
        }
        self.grants.push(grant);
    }

    pub(super) fn allows(&self, place: &Place, right: Right, now: Timestamp) -> bool {
        self.grants.iter().any(|grant| grant.allows(&place.path, right, now))
    }

    /// For requests to an entity: a token may be for the entity or for its `$management`, as the JavaScript SDK has it.
    pub(super) fn allows_request(&self, place: &Place, right: Right, now: Timestamp) -> bool {
        let management = format!("{}/$management", place.path);
        let allows = |grant: &Grant| grant.allows(&place.path, right, now) || grant.allows(&management, right, now);
        self.grants.iter().any(allows)
    }

    /// Whether it may do anything at all there.
    pub(super) fn allows_some(&self, place: &Place, now: Timestamp) -> bool {
        [Right::Send, Right::Listen, Right::Manage].into_iter().any(|right| self.allows_request(place, right, now))
    }

    /// When the next of them ends.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.grants.iter().map(|grant| grant.expires_at).filter(|end| end.0 != i64::MAX).min()
    }

    /// Forgets those that have ended. Says whether there was one.
    pub(super) fn forget_ended(&mut self, now: Timestamp) -> bool {
        let before = self.grants.len();
        self.grants.retain(|grant| now < grant.expires_at);
        self.grants.len() < before
    }
}

/// The failure that says that a right is missing.
pub(super) fn missing(right: Right, place: &Place) -> Failure {
    Failure::unauthorized(format!(
        "Unauthorized access. '{right:?}' claim(s) are required to perform this operation on '{}'.",
        place.path
    ))
}
