//! From the start of the process until it is ready, and from a handler's last write until it serves.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use sprag_core::ids::Digest;
use sprag_tests::host::{Place, until};

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/shop");
const HANDLERS: [&str; 3] = ["orders", "payments", "shipping"];

/// A folder with the shop in it: a handler in Rust, one in JavaScript, one in Python.
fn shop() -> Place {
    let toml = fs::read_to_string(Path::new(SHOP).join("sprag.toml")).expect("the shop's configuration");
    let place = Place::new(&toml, &[]);
    for name in HANDLERS {
        let from = format!("{SHOP}/handlers/{name}.wasm");
        fs::copy(&from, place.handler(name)).unwrap_or_else(|error| panic!("{from}: {error} (./x setup builds it)"));
    }
    place
}

/// `sprag dev` with three handlers until `/readyz` answers 200, compiled code in the cache.
pub(crate) fn ready(times: usize) -> Vec<Duration> {
    let place = shop();
    place.dev().stop();
    let once = |_| {
        let began = Instant::now();
        let host = place.dev();
        let took = began.elapsed();
        host.stop();
        took
    };
    (0..times).map(once).collect()
}

/// A rebuilt Rust handler, from the end of its write until the host lists the new version; every build is other bytes, compiled anew.
pub(crate) fn reload(times: usize) -> Vec<Duration> {
    let place = shop();
    let host = place.dev();
    let original = fs::read(place.handler("orders")).expect("the handler");
    let took = (0..times)
        .map(|n| {
            let changed = with_custom_section(&original, n);
            let digest = Digest::of(&changed).to_string();
            fs::write(place.handler("orders"), &changed).expect("written");
            let began = Instant::now();
            until("the new version serves", Duration::from_secs(20), || {
                host.items("/api/handlers").iter().any(|handler| handler["digest"] == digest.as_str()).then_some(())
            });
            began.elapsed()
        })
        .collect();
    host.stop();
    took
}

/// The component with one more custom section, so that it is another file that does the same. The first bytes of the code change with the digest, not the work.
fn with_custom_section(component: &[u8], n: usize) -> Vec<u8> {
    let name = b"build";
    let text = format!("{n:08}");
    let mut bytes = component.to_vec();
    bytes.extend([
        0,
        u8::try_from(1 + name.len() + text.len()).expect("short"),
        u8::try_from(name.len()).expect("short"),
    ]);
    bytes.extend(name);
    bytes.extend(text.as_bytes());
    bytes
}
