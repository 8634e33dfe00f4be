//! Chance that can be repeated: the seed is printed, and `SPRAG_SEED` sets it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run.
pub fn seed() -> u64 {
    let given = std::env::var("SPRAG_SEED").ok().map(|text| text.parse().expect("SPRAG_SEED is a number"));
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64)
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// 0 to `bound` without it.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
