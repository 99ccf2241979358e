//! Sets where `roundhouse-train` finds libtorch when it runs: beside itself in an image (`bin/` and
//! `lib/`), otherwise where it was built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    if let Ok(libtorch) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}");
    }
}
