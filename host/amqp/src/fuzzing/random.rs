//! The functions of this module on random bytes: on stable, with seeds that are printed when one fails.
//!
//! `SPRAG_SOAK=1` runs a hundred times as many; `SPRAG_SEED=…` repeats one.

use super::{conversation, frames, message, pieces, value};
use crate::corpus;

/// Steele and others' SplitMix64: small, and good enough to choose bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        // Constructors and small numbers come often, so that nonsense is nonsense of the right kind.
        const LIKELY: [u8; 24] = [
            0x00, 0x01, 0x02, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x52, 0x53, 0x56, 0x70, 0x80, 0xa0, 0xa1, 0xa3, 0xb0,
            0xc0, 0xc1, 0xd0, 0xe0, 0xf0, 0xff,
        ];
        match self.below(2) {
            0 => LIKELY[self.below(LIKELY.len())],
            _ => (self.next() & 0xff) as u8,
        }
    }

    fn bytes(&mut self, up_to: usize) -> Vec<u8> {
        (0..self.below(up_to + 1)).map(|_| self.byte()).collect()
    }

    /// One of the samples, or several, damaged a little.
    fn mutated(&mut self, samples: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..=self.below(4) {
            bytes.extend_from_slice(&samples[self.below(samples.len())]);
        }
        for _ in 0..self.below(6) {
            if bytes.is_empty() {
                break;
            }
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.byte()),
                2 => drop(bytes.remove(at)),
                3 => {
                    let end = (at + self.below(16)).min(bytes.len());
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
                _ => bytes[at] = self.byte(),
            }
        }
        bytes
    }
}

/// Runs `check` for so many seeds, or a hundred times as many, or one.
fn each_seed(count: u64, check: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    let soak = std::env::var_os("SPRAG_SOAK").is_some();
    let seeds = match std::env::var("SPRAG_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SPRAG_SEED is a number");
            seed..=seed
        }
        Err(_) => 1..=if soak { count * 100 } else { count },
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| check(&mut Random(seed)));
        if outcome.is_err() {
            panic!("seed {seed}: SPRAG_SEED={seed} repeats it");
        }
    }
}

fn samples(folders: &[&str]) -> Vec<Vec<u8>> {
    folders.iter().flat_map(|folder| corpus::folder(folder)).map(|(_, bytes)| bytes.to_vec()).collect()
}

#[test]
fn any_bytes_as_a_value() {
    let samples = samples(&["messages"]);
    each_seed(20_000, |random| {
        let bytes = if random.below(4) == 0 { random.mutated(&samples) } else { random.bytes(60) };
        value(&bytes);
    });
}

#[test]
fn any_bytes_as_a_message() {
    let samples = samples(&["messages"]);
    each_seed(10_000, |random| message(&random.mutated(&samples)));
}

#[test]
fn any_bytes_as_frames() {
    let samples = samples(&["frames"]);
    each_seed(10_000, |random| frames(&random.mutated(&samples)));
}

/// Frames that are sound each for itself, in an order and with numbers that make no sense, or a little.
fn scrambled(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut data = vec![random.byte()];
    match random.below(8) {
        0 => data.extend(random.bytes(200)),
        1 | 2 => data.extend(random.mutated(samples)),
        _ => {
            data[0] &= !1;
            let mut id = 0;
            for _ in 0..random.below(40) {
                data.extend(frame(random, samples, &mut id));
            }
            if random.below(4) == 0 {
                let at = random.below(data.len());
                data[at] = random.byte();
            }
        }
    }
    data
}

/// A frame with small numbers, so that it often meets something that is there. `id` is the next delivery's.
fn frame(random: &mut Random, samples: &[Vec<u8>], id: &mut u32) -> Vec<u8> {
    use crate::performative::{
        Attach, Begin, DeliveryState, Detach, Disposition, Flow, Performative, Role, Source, Target, Transfer,
    };
    let flag = |random: &mut Random| random.below(3) == 0;
    let small = |random: &mut Random| random.below(8) as u32;
    let role = |random: &mut Random| if random.below(2) == 0 { Role::Sender } else { Role::Receiver };
    let state = |random: &mut Random| match random.below(5) {
        0 => None,
        1 => Some(DeliveryState::Released),
        2 => Some(DeliveryState::Rejected(None)),
        _ => Some(DeliveryState::Accepted),
    };
    let payload = vec![7; random.below(900)];
    let rarely = |random: &mut Random| random.below(40) == 0;
    let mut channel = if rarely(random) { random.below(5) as u16 } else { 0 };
    let performative = match random.below(24) {
        0 => {
            channel = random.below(5) as u16;
            Performative::Begin(Begin { incoming_window: small(random), ..Begin::default() })
        }
        1 if flag(random) => Performative::End(None),
        2 => {
            let mut attach = Attach::new(format!("link-{}", small(random)), small(random), role(random));
            attach.source = Some(Source::at("q"));
            attach.target = Some(Target::at("q"));
            Performative::Attach(Box::new(attach))
        }
        3 => Performative::Detach(Detach { handle: small(random) % 2, closed: flag(random), error: None }),
        4..=9 => Performative::Flow(Flow {
            next_incoming_id: Some(small(random)),
            incoming_window: small(random),
            handle: (!flag(random)).then(|| if flag(random) { 0 } else { 1 }),
            delivery_count: Some(small(random)),
            link_credit: Some(small(random)),
            drain: flag(random),
            echo: flag(random),
            ..Flow::default()
        }),
        10..=16 => Performative::Transfer(Transfer {
            handle: if rarely(random) { small(random) } else { 0 },
            delivery_id: match random.below(20) {
                0 => None,
                1 => Some(small(random)),
                2..=5 => Some(*id),
                _ => {
                    *id += 1;
                    Some(*id)
                }
            },
            settled: Some(flag(random)),
            more: random.below(6) == 0,
            aborted: random.below(10) == 0,
            ..Transfer::default()
        }),
        17..=21 => Performative::Disposition(Disposition {
            role: role(random),
            first: small(random),
            last: flag(random).then(|| small(random) + 3),
            settled: flag(random),
            state: state(random),
            batchable: false,
        }),
        22 if rarely(random) => Performative::Close(None),
        1 | 22 => Performative::Flow(Flow { incoming_window: 9, ..Flow::default() }),
        _ => return samples[random.below(samples.len())].clone(),
    };
    let mut out = Vec::new();
    let with = matches!(performative, Performative::Transfer(_));
    crate::frame::write_amqp(&mut out, channel, &performative, if with { &payload } else { &[] });
    out
}

#[test]
fn any_bytes_on_a_connection() {
    let samples = samples(&["frames"]);
    each_seed(4_000, |random| conversation(&scrambled(random, &samples)));
}

#[test]
fn any_bytes_in_other_pieces() {
    let samples = samples(&["frames"]);
    each_seed(2_000, |random| pieces(&scrambled(random, &samples)));
}
