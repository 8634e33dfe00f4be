//! A handler that uses WASI 0.2: clocks, random, stdio, files, sockets. The body says what to do, as in `probe`.

use wasip2::{
    cli::{environment, exit, stderr, stdout},
    clocks::{monotonic_clock, wall_clock},
    filesystem::{
        preopens,
        types::{DescriptorFlags, OpenFlags, PathFlags},
    },
    random::random,
    sockets::{instance_network, network::IpAddressFamily, tcp_create_socket},
};

wit_bindgen::generate!({ world: "handler", path: "../../../wit" });

use sprag::handler::types::Failed;

struct Wasi;

fn failed(kind: &str, text: impl std::fmt::Display) -> Result<Success, Failure> {
    Err(Failure::Failed(Failed { kind: kind.into(), text: text.to_string(), retry_after: None }))
}

impl Guest for Wasi {
    fn describe() -> HandlerInfo {
        HandlerInfo { event_types: vec!["wasi".into()] }
    }

    fn handle(message: Message) -> Result<Success, Failure> {
        let text = String::from_utf8(message.body).unwrap_or_default();
        let (mode, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match mode {
            // Waits in a host call, for ever as far as a message is concerned.
            "sleep" => {
                monotonic_clock::subscribe_duration(3_600_000_000_000).block();
                Ok(Success::Done)
            }
            "nap" => {
                monotonic_clock::subscribe_duration(20_000_000).block();
                Ok(Success::Done)
            }
            "time" => Ok(Success::Discard(wall_clock::now().seconds.to_string())),
            "random" => Ok(Success::Discard(format!("{:x}", random::get_random_u64()))),
            "stdout" => {
                _ = stdout::get_stdout().blocking_write_and_flush(rest.as_bytes());
                Ok(Success::Done)
            }
            // Writes without an end.
            "flood" => {
                let (out, line) = (stdout::get_stdout(), [b"0123456789abcdef".as_slice(); 64].concat());
                for _ in 0..4_096 {
                    _ = out.blocking_write_and_flush(&line);
                }
                Ok(Success::Done)
            }
            "stderr-trap" => {
                _ = stderr::get_stderr().blocking_write_and_flush(rest.as_bytes());
                core::arch::wasm32::unreachable()
            }
            "exit" => {
                exit::exit(Err(()));
                Ok(Success::Done)
            }
            "environment" => Ok(Success::Discard(format!(
                "{} variables, {} arguments, {} folders",
                environment::get_environment().len(),
                environment::get_arguments().len(),
                preopens::get_directories().len()
            ))),
            // Opens one thing after the other and keeps them all.
            "handles" => {
                let kept: Vec<_> = (0..1_000_000).map(|_| monotonic_clock::subscribe_duration(1)).collect();
                Ok(Success::Discard(kept.len().to_string()))
            }
            "connect" => {
                let network = instance_network::instance_network();
                match tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4) {
                    Err(error) => Ok(Success::Discard(format!("no socket: {error:?}"))),
                    Ok(socket) => {
                        use wasip2::sockets::network::{IpSocketAddress, Ipv4SocketAddress};
                        let to = IpSocketAddress::Ipv4(Ipv4SocketAddress { port: 80, address: (127, 0, 0, 1) });
                        match socket.start_connect(&network, to) {
                            Err(error) => Ok(Success::Discard(format!("no connection: {error:?}"))),
                            Ok(()) => failed("connected", "a socket was opened"),
                        }
                    }
                }
            }
            "read" | "write" => {
                let Some((folder, _)) = preopens::get_directories().into_iter().next() else {
                    return failed("no-folder", "no folder is open");
                };
                let write = mode == "write";
                let (open, flags) = if write {
                    (OpenFlags::CREATE | OpenFlags::TRUNCATE, DescriptorFlags::WRITE)
                } else {
                    (OpenFlags::empty(), DescriptorFlags::READ)
                };
                let file = match folder.open_at(PathFlags::SYMLINK_FOLLOW, rest, open, flags) {
                    Ok(file) => file,
                    Err(error) => return failed("file", format!("{error:?}")),
                };
                if write {
                    return match file.write(b"written", 0) {
                        Ok(_) => Ok(Success::Done),
                        Err(error) => failed("file", format!("{error:?}")),
                    };
                }
                match file.read(1_024, 0) {
                    Ok((bytes, _)) => Ok(Success::Discard(String::from_utf8_lossy(&bytes).into_owned())),
                    Err(error) => failed("file", format!("{error:?}")),
                }
            }
            other => failed("unknown-mode", other),
        }
    }
}

export!(Wasi);
