//! The contract in `wit/`, as Rust. Generated from the same files that guests use.
//!
//! The message goes into the guest borrowed, so that a run copies it once: into the guest's memory. Only `state` and `sql`
//! are async, because only they wait for something.

wasmtime::component::bindgen!({
    inline: "
        package sprag:host;
        world everything {
            include sprag:handler/handler@0.1.0;
            import sprag:handler/state@0.1.0;
            import sprag:handler/sql@0.1.0;
            import sprag:handler/config@0.1.0;
        }
    ",
    path: "../../wit",
    imports: {
        "sprag:handler/state": async | trappable,
        "sprag:handler/sql": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    ownership: Borrowing { duplicate_if_necessary: true },
});
