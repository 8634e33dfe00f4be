//! A handler that breaks the contract itself: its exports are written by hand, below what the bindings allow. The body says how.
//!
//! It imports WASI preview 1, as C programs do, so that the host has to wrap it with the adapter.

wit_bindgen::generate!({ world: "handler", path: "../../../wit" });

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn random_get(buffer: *mut u8, len: usize) -> i32;
}

/// Where `body` lies in the record `message`: its address, then its length (the canonical ABI's layout of `wit/handler.wit`).
const BODY: usize = 104;

#[repr(C, align(8))]
struct Result([u8; 256]);

#[repr(C)]
struct Info {
    types: *const Text,
    len: usize,
}

#[repr(C)]
struct Text {
    at: *const u8,
    len: usize,
}

#[unsafe(export_name = "describe")]
extern "C" fn describe() -> *const Info {
    static NAME: &[u8] = b"broken";
    let text = Box::leak(Box::new(Text { at: NAME.as_ptr(), len: NAME.len() }));
    Box::leak(Box::new(Info { types: text, len: 1 }))
}

#[unsafe(export_name = "handle")]
extern "C" fn handle(message: *const u8) -> *const u8 {
    // SAFETY: the host has lowered a message there.
    let body = unsafe {
        let at = message.add(BODY).cast::<*const u8>().read();
        let len = message.add(BODY + 4).cast::<usize>().read();
        std::slice::from_raw_parts(at, len)
    };
    // Zeros read as `ok(done)`.
    let result = Box::leak(Box::new(Result([0; 256])));
    match body {
        b"ok" => {
            // SAFETY: the buffer has that many bytes.
            let code = unsafe { random_get(result.0.as_mut_ptr().wrapping_add(128), 8) };
            assert_eq!(code, 0);
        }
        b"case" => result.0[0] = 7,
        b"inner-case" => result.0[8] = 9,
        b"outside" => return 0x7fff_ff00 as *const u8,
        b"unaligned" => return result.0.as_ptr().wrapping_add(1),
        // `ok(discard(text))`, the text ending far outside the memory.
        b"long-text" => {
            result.0[8] = 1;
            result.0[12..16].copy_from_slice(&64_u32.to_le_bytes());
            result.0[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        // A trap after the result was given.
        b"post-return" => result.0[128] = 1,
        _ => core::arch::wasm32::unreachable(),
    }
    result.0.as_ptr()
}

#[unsafe(export_name = "cabi_post_handle")]
extern "C" fn post(result: *const u8) {
    // SAFETY: it is what `handle` returned, where that was inside the memory; otherwise the host does not come here.
    if unsafe { result.add(128).read() } == 1 {
        core::arch::wasm32::unreachable();
    }
}
