#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sprag_amqp::fuzzing::pieces(data));
