//! The memory allocator of a handler: the standard library's, with its first 128 KiB set aside in the component itself.
//!
//! A handler gets a fresh instance for each message, and the standard allocator begins by growing that instance's memory. For the host each
//! growth, and taking it back afterwards, is a system call that interrupts the other processors: it cost more than all the rest of a small
//! handler's run (measured: 8,900 messages a second with it, 12,000 without). Memory that is part of the component from the start costs
//! nothing until it is touched. What does not fit grows the memory as ever.
//!
//! A handler that brings an allocator of its own switches this one off: `default-features = false`.

use core::{
    alloc::{GlobalAlloc, Layout},
    arch::wasm32,
    cell::{Cell, UnsafeCell},
    ptr,
};

use dlmalloc::{Allocator, Dlmalloc};

/// Bytes that a component has from the start. Most handlers need less than this for a message of a few kilobytes.
const FIRST: usize = 128 * 1024;
/// WebAssembly's.
const PAGE: usize = 64 * 1024;

#[repr(align(16))]
struct Space(UnsafeCell<[u8; FIRST]>);

// SAFETY: a component has one thread.
unsafe impl Sync for Space {}

static SPACE: Space = Space(UnsafeCell::new([0; FIRST]));

/// Where the allocator gets memory from: the space of the component once, then by growing the memory.
struct Source {
    given: Cell<bool>,
}

// SAFETY: a component has one thread.
unsafe impl Send for Source {}

// SAFETY: each region is handed out once, is as large as it says and is zero.
unsafe impl Allocator for Source {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        if size <= FIRST && !self.given.replace(true) {
            return (SPACE.0.get().cast(), FIRST, 0);
        }
        let pages = size.div_ceil(PAGE);
        match wasm32::memory_grow::<0>(pages) {
            usize::MAX => (ptr::null_mut(), 0, 0),
            before => {
                // Memory that ends where addresses end: the end itself has no address.
                let end_has_address = (before + pages) * PAGE != 0;
                let size = pages * PAGE - if end_has_address { 0 } else { 16 };
                (ptr::with_exposed_provenance_mut(before * PAGE), size, 0)
            }
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

struct Memory(UnsafeCell<Dlmalloc<Source>>);

// SAFETY: a component has one thread.
unsafe impl Sync for Memory {}

#[global_allocator]
static MEMORY: Memory = Memory(UnsafeCell::new(Dlmalloc::new_with_allocator(Source { given: Cell::new(false) })));

// SAFETY: all of it is the wrapped allocator, which nobody else reaches; a component has one thread, and the allocator does not call back.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { (*self.0.get()).malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        unsafe { (*self.0.get()).calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { (*self.0.get()).free(at, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        unsafe { (*self.0.get()).realloc(at, layout.size(), layout.align(), new_size) }
    }
}
