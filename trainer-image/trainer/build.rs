//! Sets the path at which `roundhouse-train` finds libtorch at run time: beside itself in an image
//! (`bin/` and `lib/`), and where it was built otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    if let Ok(libtorch) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}");
    }
}
