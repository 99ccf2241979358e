//! Runs one target under libFuzzer, which parses the arguments and has the main loop. See
//! `make fuzz`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&roundhouse_fuzz::Target> = LazyLock::new(|| {
    // libFuzzer's panic hook aborts at every panic, but a reader may catch a panic of a library. A
    // panic that no reader catches still aborts the process.
    std::panic::set_hook(Box::new(|_| {}));
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    roundhouse_fuzz::target(&name).unwrap_or_else(|| {
        let names: Vec<_> = roundhouse_fuzz::TARGETS.iter().map(|it| it.name).collect();
        panic!("FUZZ_TARGET={name}: set it to one of {}", names.join(", "))
    })
});

fuzz_target!(|bytes: &[u8]| (TARGET.read)(bytes));
