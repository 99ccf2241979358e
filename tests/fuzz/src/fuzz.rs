//! One target under libFuzzer, which takes care of arguments and of the loop: see `make fuzz`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&roundhouse_fuzz::Target> = LazyLock::new(|| {
    // A reader may catch a panic of a library. libFuzzer hears of one that nobody catches all the same.
    std::panic::set_hook(Box::new(|_| {}));
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    roundhouse_fuzz::target(&name).unwrap_or_else(|| {
        let names: Vec<_> = roundhouse_fuzz::TARGETS.iter().map(|it| it.name).collect();
        panic!("FUZZ_TARGET={name}: give one of {}", names.join(", "))
    })
});

fuzz_target!(|bytes: &[u8]| (TARGET.read)(bytes));
