//! The embedded broker alone: an engine in a folder, and AMQP on a port. The SDK tests run against it.
//!
//! `broker DIR PORT [--tls PORT CERTIFICATE KEY] [--keys] [--session-wait SECONDS] [--idle SECONDS] ENTITY…`, where an entity
//! is `queue:NAME[,OPTION…]`, `topic:NAME[,OPTION…]` or `sub:TOPIC/NAME[,OPTION…]`, and an option is `sessions`, `lock=SECONDS`,
//! `deliveries=N`, `ttl=MILLISECONDS`, `dead-letter-expired`, `duplicates=SECONDS`, `size=BYTES`, `room=BYTES`, `forward=NAME`,
//! `sql=EXPRESSION` (the last one).
//! `--keys` asks for the emulator's key; `--idle` closes links and connections that are left alone for so long. Prints `ready PORT` when it serves, and stops when its input ends or it is interrupted.

use std::{error::Error, io::Read as _, time::Duration};

use sprag_broker::{Engine, EntitySpec, FilterSpec, Options};
use sprag_gateway::{
    access::Access,
    amqp::{Config, Gateway, Tls},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or_else(|| format!("{what} is missing"));
    let folder = next("DIR")?;
    let port: u16 = next("PORT")?.parse()?;
    let mut config = Config { listen: Some(([127, 0, 0, 1], port).into()), ..Config::default() };
    let mut specs = Vec::new();
    while let Ok(argument) = next("") {
        match argument.as_str() {
            "--tls" => {
                config.tls = Some(Tls {
                    listen: ([127, 0, 0, 1], next("PORT")?.parse()?).into(),
                    certificate: next("CERTIFICATE")?.into(),
                    key: next("KEY")?.into(),
                });
            }
            "--keys" => config.access = Access::emulator(),
            "--session-wait" => config.session_wait = Duration::from_secs(next("SECONDS")?.parse()?),
            "--idle" => {
                let limit = Some(Duration::from_secs(next("SECONDS")?.parse()?));
                (config.link_idle, config.connection_idle) = (limit, limit);
            }
            entity => specs.push(spec(entity)?),
        }
    }
    let engine = Engine::open(Options::new(folder))?;
    engine.declare(specs).await?;
    let gateway = Gateway::build(config, engine.clone()).await?;
    let handle = gateway.handle();
    println!("ready {}", handle.address().map_or(0, |address| address.port()));
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    // A thread, because reading the input cannot be interrupted.
    std::thread::spawn(move || {
        let read = std::io::stdin().read_to_end(&mut Vec::new());
        drop((read, ended));
    });
    gateway
        .run(async {
            tokio::select! {
                _ = end => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        })
        .await;
    engine.close().await;
    Ok(())
}

fn spec(text: &str) -> Result<EntitySpec, Box<dyn Error>> {
    let (kind, rest) = text.split_once(':').ok_or_else(|| format!("{text:?} is no entity: KIND:NAME"))?;
    let (rest, sql) = match rest.split_once(",sql=") {
        Some((rest, sql)) => (rest, Some(sql)),
        None => (rest, None),
    };
    let mut parts = rest.split(',');
    let name = parts.next().unwrap_or_default();
    let mut spec = match kind {
        "queue" => EntitySpec::queue(name),
        "topic" => EntitySpec::topic(name),
        "sub" => {
            let (topic, name) = name.rsplit_once('/').ok_or_else(|| format!("{name:?} is not TOPIC/NAME"))?;
            let filter = sql.map_or(FilterSpec::All, |sql| FilterSpec::Sql(sql.to_owned()));
            EntitySpec::subscription(&topic.into(), name, filter)
        }
        other => return Err(format!("{other:?} is no kind of entity").into()),
    };
    for option in parts {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "sessions" => spec.requires_session = true,
            "lock" => spec.lock_duration = Duration::from_secs_f64(value.parse()?),
            "deliveries" => spec.max_delivery_count = value.parse()?,
            "ttl" => spec.default_ttl = Some(Duration::from_millis(value.parse()?)),
            "dead-letter-expired" => spec.dead_letter_on_expiry = true,
            "duplicates" => spec.duplicate_detection = Some(Duration::from_secs(value.parse()?)),
            "size" => spec.max_message_size = value.parse()?,
            "room" => spec.max_size = Some(value.parse()?),
            "forward" => spec.forward_to = Some(value.into()),
            other => return Err(format!("{other:?} is no option").into()),
        }
    }
    Ok(spec)
}
