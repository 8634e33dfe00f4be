//! Lock tokens: the engine's number of a lock, as the UUID that clients know it by.
//!
//! The other half of the UUID is a random number of this process: the engine's numbers begin anew after a restart, and a token from before
//! must not settle what came after it.

use sprag_core::message::LockToken;

/// Makes and reads lock tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    process: [u8; 8],
}

impl Tokens {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut process = [0; 8];
        getrandom::fill(&mut process)?;
        Ok(Self { process })
    }

    /// In network order, as annotations and management have it.
    pub(crate) fn uuid(self, lock: LockToken) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.process);
        uuid[8..].copy_from_slice(&lock.0.to_be_bytes());
        uuid
    }

    /// As delivery-tags have it: .NET's order of bytes, the first three fields swapped.
    pub(crate) fn tag(self, lock: LockToken) -> [u8; 16] {
        swapped(self.uuid(lock))
    }

    /// The lock that a client names, in either order: azservicebus takes the tag for the token. None: it is not of this process.
    pub(crate) fn lock(self, token: &[u8]) -> Option<LockToken> {
        let token: [u8; 16] = token.try_into().ok()?;
        let number = || LockToken(u64::from_be_bytes(token[8..].try_into().expect("half of sixteen bytes")));
        (token[..8] == self.process || swapped(token)[..8] == self.process).then(number)
    }
}

fn swapped(mut uuid: [u8; 16]) -> [u8; 16] {
    uuid[..4].reverse();
    uuid[4..6].reverse();
    uuid[6..8].reverse();
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_lock_in_either_order() {
        let tokens = Tokens { process: *b"abcdefgh" };
        let lock = LockToken(0x0102_0304_0506_0708);
        assert_eq!(&tokens.tag(lock), b"dcbafehg\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(tokens.lock(&tokens.uuid(lock)), Some(lock));
        assert_eq!(tokens.lock(&tokens.tag(lock)), Some(lock));
    }

    #[test]
    fn a_token_of_another_process_names_nothing() {
        let (one, other) = (Tokens::new().unwrap(), Tokens::new().unwrap());
        assert_eq!(one.lock(&other.uuid(LockToken(1))), None);
        assert_eq!(one.lock(b"short"), None);
    }
}
