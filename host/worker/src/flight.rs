//! The flight recorder: which runs are going on, in a file that outlives the process (P23).
//!
//! A run writes one small slot when it begins and frees it when it has been decided. What is still there at the next start ended with the
//! process; its slot keeps the count until the message is decided. The writes go to the page cache: they survive the process, not the machine,
//! and a run that ended with the machine did not end the process.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use parking_lot::Mutex;
use sprag_core::ids::{EndpointName, EventId, MessageId, SequenceNumber};

/// Bytes of one slot.
const SLOT: usize = 1_024;
const MAGIC: u8 = 0xF1;

/// A run that ended with the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    pub endpoint: EndpointName,
    pub event_id: EventId,
    pub message_id: Option<MessageId>,
    /// Such runs of this delivery so far.
    pub count: u32,
}

/// Notes runs. Cheap: one write of a slot to begin, one byte to end.
pub struct FlightRecorder {
    file: File,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
    /// Deliveries whose earlier runs ended with the process.
    ended: HashMap<Key, Ended>,
}

#[derive(Clone, Copy)]
struct Ended {
    slot: u32,
    count: u32,
}

type Key = (EndpointName, SequenceNumber);

/// A run that is noted. Given back with [`FlightRecorder::decided`] or [`FlightRecorder::undecided`].
#[derive(Debug)]
pub struct Noted {
    slot: u32,
    count: u32,
    key: Key,
}

/// What a run is noted as.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    pub endpoint: &'a EndpointName,
    pub sequence: SequenceNumber,
    pub event_id: &'a EventId,
    pub message_id: Option<&'a MessageId>,
}

impl FlightRecorder {
    /// Opens the file and answers with the runs that ended with the last process.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<EndedRun>)> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut slots = Slots::default();
        let mut runs = vec![];
        let mut bytes = vec![0; SLOT];
        for slot in 0..u32::try_from(len.div_ceil(SLOT)).unwrap_or(u32::MAX) {
            let at = u64::from(slot) * SLOT as u64;
            let read = file.read_at(&mut bytes, at)?;
            slots.next = slot + 1;
            match decode(&bytes[..read]) {
                Some((running, key, mut ended)) => {
                    if running {
                        ended.count += 1;
                        runs.push(ended.clone());
                        write_slot(&file, slot, false, ended.count, &key, &ended.event_id, ended.message_id.as_ref())?;
                    }
                    slots.ended.insert(key, Ended { slot, count: ended.count });
                }
                None => slots.free.push(slot),
            }
        }
        Ok((Self { file, slots: Mutex::new(slots) }, runs))
    }

    /// Runs of this delivery that ended with the process.
    pub fn ended(&self, endpoint: &EndpointName, sequence: SequenceNumber) -> u32 {
        let slots = self.slots.lock();
        if slots.ended.is_empty() {
            return 0;
        }
        slots.ended.get(&(endpoint.clone(), sequence)).map_or(0, |ended| ended.count)
    }

    pub fn begin(&self, run: Run<'_>) -> io::Result<Noted> {
        let key = (run.endpoint.clone(), run.sequence);
        let (slot, count) = {
            let mut slots = self.slots.lock();
            match slots.ended.get(&key) {
                Some(ended) => (ended.slot, ended.count),
                None => {
                    let slot = slots.free.pop().unwrap_or_else(|| {
                        slots.next += 1;
                        slots.next - 1
                    });
                    (slot, 0)
                }
            }
        };
        write_slot(&self.file, slot, true, count, &key, run.event_id, run.message_id)?;
        Ok(Noted { slot, count, key })
    }

    /// The delivery is decided: nothing of it is kept.
    pub fn decided(&self, noted: Noted) -> io::Result<()> {
        self.file.write_all_at(&[0], u64::from(noted.slot) * SLOT as u64)?;
        let mut slots = self.slots.lock();
        if noted.count > 0 {
            slots.ended.remove(&noted.key);
        }
        slots.free.push(noted.slot);
        Ok(())
    }

    /// The run ended without a decision, and the process lives: not one that ended with it.
    pub fn undecided(&self, noted: Noted) -> io::Result<()> {
        if noted.count == 0 {
            return self.decided(noted);
        }
        self.file.write_all_at(&[MAGIC, 0], u64::from(noted.slot) * SLOT as u64)
    }

    /// A delivery that was decided without a run: forget its earlier ones.
    pub fn forget(&self, endpoint: &EndpointName, sequence: SequenceNumber) -> io::Result<()> {
        let ended = {
            let mut slots = self.slots.lock();
            if slots.ended.is_empty() {
                return Ok(());
            }
            slots.ended.remove(&(endpoint.clone(), sequence))
        };
        let Some(ended) = ended else { return Ok(()) };
        self.file.write_all_at(&[0], u64::from(ended.slot) * SLOT as u64)?;
        self.slots.lock().free.push(ended.slot);
        Ok(())
    }
}

fn write_slot(
    file: &File,
    slot: u32,
    running: bool,
    count: u32,
    key: &Key,
    event_id: &EventId,
    message_id: Option<&MessageId>,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend([MAGIC, u8::from(running)]);
    bytes.extend(count.to_le_bytes());
    bytes.extend(key.1.0.to_le_bytes());
    // The ids after the name only help a reader: one that does not fit is left out, the key always fits.
    for text in [key.0.as_str(), event_id.as_str(), message_id.map_or("", |id| id.as_str())] {
        let text = if bytes.len() + 2 + text.len() <= SLOT { text } else { "" };
        bytes.extend(u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    file.write_all_at(&bytes, u64::from(slot) * SLOT as u64)
}

fn decode(bytes: &[u8]) -> Option<(bool, Key, EndedRun)> {
    let (&[magic, running], rest) = bytes.split_first_chunk::<2>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (sequence, mut rest) = rest.split_first_chunk::<8>()?;
    if magic != MAGIC {
        return None;
    }
    let mut text = || {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let (text, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
        rest = after;
        std::str::from_utf8(text).ok().map(str::to_owned)
    };
    let endpoint = EndpointName::from(text()?);
    let ended = EndedRun {
        endpoint: endpoint.clone(),
        event_id: EventId::from(text()?),
        message_id: text().filter(|id| !id.is_empty()).map(MessageId::from),
        count: u32::from_le_bytes(*count),
    };
    Some((running == 1, (endpoint, SequenceNumber(i64::from_le_bytes(*sequence))), ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P23: what a process left running is counted at the next start, and forgotten once decided.
    #[test]
    fn counts_runs_that_ended_with_the_process() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("flight");
        let endpoint = EndpointName::from("billing");
        let (event, message) = (EventId::from("E1"), MessageId::from("m1"));
        let run = |sequence| Run {
            endpoint: &endpoint,
            sequence: SequenceNumber(sequence),
            event_id: &event,
            message_id: Some(&message),
        };
        for count in 1..=3 {
            let (recorder, ended) = FlightRecorder::open(&path).expect("opens");
            assert_eq!(ended.len(), usize::from(count > 1));
            assert_eq!(recorder.ended(&endpoint, SequenceNumber(7)), count - 1);
            let _ = recorder.begin(run(7)).expect("noted");
            let done = recorder.begin(run(8)).expect("noted");
            recorder.decided(done).expect("freed");
        }
        let (recorder, ended) = FlightRecorder::open(&path).expect("opens");
        assert_eq!(
            ended,
            [EndedRun {
                endpoint: endpoint.clone(),
                event_id: event.clone(),
                message_id: Some(message.clone()),
                count: 3
            }]
        );
        let noted = recorder.begin(run(7)).expect("noted");
        recorder.undecided(noted).expect("kept");
        let (recorder, ended) = FlightRecorder::open(&path).expect("opens");
        assert_eq!(ended, [], "a transient end is not one that ended with the process");
        assert_eq!(recorder.ended(&endpoint, SequenceNumber(7)), 3, "the earlier ones still count");
        recorder.forget(&endpoint, SequenceNumber(7)).expect("freed");
        drop(recorder);
        let (recorder, _) = FlightRecorder::open(&path).expect("opens");
        assert_eq!(recorder.ended(&endpoint, SequenceNumber(7)), 0);
    }

    #[test]
    fn half_a_slot_or_garbage_is_a_free_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("flight");
        std::fs::write(&path, [MAGIC, 1, 0, 0, 9]).expect("written");
        let (recorder, ended) = FlightRecorder::open(&path).expect("opens");
        assert_eq!(ended, []);
        assert_eq!(recorder.slots.lock().free, [0]);
    }
}
