//! Sending: one message from arguments, or many from lines.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal as _, Read},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use sprag_console::wire::{self, NewMessage};
use sprag_core::operations::{
    time::Time,
    view::{Listing, Sent},
};

use crate::{
    cli::SendArgs,
    client::Client,
    failure::{Exit, Failure, Outcome},
    hostfile, output,
};

/// Largest body that the API takes; an entity may take less.
const LARGEST_BODY: u64 = 16 << 20;
/// A batch goes out when it has this many messages or bytes.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 << 20;
/// Longest line, with room for a body in base64.
const LONGEST_LINE: u64 = 24 << 20;

pub(crate) fn send(args: SendArgs) -> Outcome {
    if let Some(file) = &args.lines {
        return lines(&args, file);
    }
    let mut message = NewMessage {
        event_type: args.event_type.clone(),
        // With an id of its own a message that is sent twice by accident runs once.
        id: Some(args.id.clone().unwrap_or_else(|| hostfile::random_hex(16))),
        session: args.session.clone(),
        content_type: args.content_type.clone(),
        at: args.at.map(Time),
        ..NewMessage::default()
    };
    for header in &args.headers {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failure::usage(format!("--header {header:?} is not K=V")));
        };
        wire::may_be_sent(name, Some(value)).map_err(Failure::usage)?;
        message.headers.insert(name.to_owned(), Value::String(value.to_owned()));
    }
    if let Some(body) = &args.body {
        let (name, value) = body_json(body, args.binary)?;
        match (name, value) {
            ("body", value) => message.body = Some(value),
            (_, Value::String(text)) => message.body_base64 = Some(text),
            _ => unreachable!("a body in base64 is a text"),
        }
    }
    message.clone().into_message().map_err(Failure::usage)?;
    let client = Client::connect(&args.host)?;
    let sent: Listing<Sent> = client.post("send", &[], &json!({ "entity": args.entity, "messages": [message] }))?;
    let Some(sent) = sent.items.first() else { return Err(Failure::failed("the host answered without a message")) };
    if args.json {
        output::json(sent)?;
    } else {
        let number = sent.sequence_number.map(|number| format!(" as number {number}")).unwrap_or_default();
        let id = sent.message_id.as_ref().map(|id| output::one_line(id.as_str())).unwrap_or_default();
        anstream::eprintln!("sent {id} to {}{number}", output::one_line(&args.entity));
    }
    Ok(Exit::Done)
}

/// The body argument as the API's `body` or `body_base64`.
pub(crate) fn body_json(argument: &str, binary: bool) -> Result<(&'static str, Value), Failure> {
    let bytes = match argument {
        "-" => read_body(io::stdin().lock(), "standard input")?,
        file if file.starts_with('@') => {
            let path = Path::new(&file[1..]);
            let opened = File::open(path)
                .map_err(|error| Failure::usage(format!("cannot read the body from {}: {error}", path.display())))?;
            read_body(opened, &path.display().to_string())?
        }
        text => return Ok(("body", Value::String(text.to_owned()))),
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(("body", Value::String(text))),
        Err(error) if binary => {
            Ok(("body_base64", Value::String(sprag_core::operations::view::base64(error.as_bytes()))))
        }
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Failure::usage(format!("the body is not UTF-8 text (byte {at})"))
                .help("add --binary to send it as it is"))
        }
    }
}

fn read_body(from: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    from.take(LARGEST_BODY + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("cannot read the body from {name}: {error}")))?;
    if bytes.len() as u64 > LARGEST_BODY {
        return Err(Failure::usage(format!(
            "the body in {name} is larger than {} MiB, the most that can be sent",
            LARGEST_BODY >> 20
        )));
    }
    Ok(bytes)
}

/// A line that waits to be sent.
struct Pending {
    number: u64,
    message: NewMessage,
}

struct Sender<'a> {
    client: Client,
    args: &'a SendArgs,
    pending: Vec<Pending>,
    pending_bytes: usize,
    sent: u64,
    bad: u64,
    progress: Progress,
}

fn lines(args: &SendArgs, file: &Path) -> Outcome {
    let (reader, size): (Box<dyn BufRead>, _) = if file == Path::new("-") {
        (Box::new(io::stdin().lock()), None)
    } else {
        let opened =
            File::open(file).map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?;
        let size = opened.metadata().ok().map(|metadata| metadata.len());
        (Box::new(BufReader::with_capacity(1 << 20, opened)), size)
    };
    let mut sender = Sender {
        client: Client::connect(&args.host)?,
        args,
        pending: Vec::new(),
        pending_bytes: 0,
        sent: 0,
        bad: 0,
        progress: Progress::new(size),
    };
    let ended = sender.all(reader);
    sender.progress.end();
    let (sent, bad) = (sender.sent, sender.bad);
    if let Err(mut failure) = ended {
        failure.text = format!("{} ({sent} sent)", failure.text);
        return Err(failure);
    }
    anstream::eprintln!(
        "sent {sent} to {}{}",
        output::one_line(&args.entity),
        if bad == 0 { String::new() } else { format!(", {bad} lines left out") }
    );
    Ok(if bad == 0 { Exit::Done } else { Exit::Failed })
}

impl Sender<'_> {
    fn all(&mut self, mut reader: Box<dyn BufRead>) -> Result<(), Failure> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader
                .by_ref()
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut line)
                .map_err(|error| Failure::failed(format!("line {number} cannot be read: {error}")))?;
            if read == 0 {
                break;
            }
            self.progress.read(read as u64);
            if read as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
                self.flush()?;
                return Err(Failure::usage(format!("line {number} is longer than {} MiB", LONGEST_LINE >> 20)));
            }
            let parsed = match std::str::from_utf8(&line) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => {
                    NewMessage::from_line(text).and_then(|message| message.clone().into_message().map(|_| message))
                }
                Err(error) => Err(format!("not UTF-8 (byte {})", error.valid_up_to() + 1)),
            };
            match parsed {
                Ok(mut message) => {
                    message.id.get_or_insert_with(|| hostfile::random_hex(16));
                    self.pending.push(Pending { number, message });
                    self.pending_bytes += read;
                    if self.pending.len() >= BATCH || self.pending_bytes >= BATCH_BYTES {
                        self.flush()?;
                    }
                }
                Err(error) => {
                    // What came before the bad line goes out, so that the count in the message is true.
                    self.flush()?;
                    self.wrong(number, &error)?;
                }
            }
        }
        self.flush()
    }

    fn wrong(&mut self, number: u64, error: &str) -> Result<(), Failure> {
        let text = format!("line {number}: {error}");
        if !self.args.keep_going {
            return Err(Failure::usage(text).help("--keep-going leaves such lines out"));
        }
        self.bad += 1;
        self.progress.say(&text);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        match self.post(&batch) {
            Ok(()) => Ok(()),
            // All or none was accepted. One by one shows which line it is.
            Err(failure) if failure.exit == Exit::Usage && batch.len() > 1 => {
                for one in batch {
                    let number = one.number;
                    if let Err(failure) = self.post(&[one]) {
                        if failure.exit != Exit::Usage {
                            return Err(failure);
                        }
                        self.wrong(number, &failure.text)?;
                    }
                }
                Ok(())
            }
            Err(failure) if failure.exit == Exit::Usage => self.wrong(batch[0].number, &failure.text),
            Err(failure) => Err(failure),
        }
    }

    fn post(&mut self, batch: &[Pending]) -> Result<(), Failure> {
        let messages: Vec<&NewMessage> = batch.iter().map(|pending| &pending.message).collect();
        let sent: Listing<Sent> =
            self.client.post("send", &[], &json!({ "entity": self.args.entity, "messages": messages }))?;
        self.sent += sent.items.len() as u64;
        self.progress.sent(self.sent);
        if self.args.json {
            for one in &sent.items {
                output::line(&serde_json::to_string(one).map_err(|error| Failure::failed(error.to_string()))?)?;
            }
        }
        Ok(())
    }
}

/// A bar on a terminal, a counted line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    told: Instant,
    terminal: bool,
}

const TELL: Duration = Duration::from_secs(5);

impl Progress {
    fn new(size: Option<u64>) -> Self {
        let terminal = io::stderr().is_terminal();
        let bar = match size {
            Some(size) => ProgressBar::new(size).with_style(
                ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {msg} {eta}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            ),
            None => ProgressBar::new_spinner(),
        };
        bar.set_draw_target(if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
        Self { bar, told: Instant::now(), terminal }
    }

    fn read(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn sent(&mut self, sent: u64) {
        self.bar.set_message(format!("{sent} sent"));
        if !self.terminal && self.told.elapsed() >= TELL {
            self.told = Instant::now();
            anstream::eprintln!("{sent} sent");
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| anstream::eprintln!("{text}"));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
