//! Compiles the bridge against the headers of the libtorch that `LIBTORCH` names.

use std::path::PathBuf;

const SOURCES: [&str; 4] = ["error.cpp", "store.cpp", "group.cpp", "reducer.cpp"];

fn main() -> Result<(), String> {
    for variable in ["LIBTORCH", "LIBTORCH_CUDA_INCLUDE"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=src/bridge");
    let libtorch = std::env::var_os("LIBTORCH").map(PathBuf::from).ok_or(
        "LIBTORCH is not set: run trainer-image/libtorch.sh and export LIBTORCH as the directory it prints",
    )?;
    let lib = libtorch.join("lib");

    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        // The wheel leaves gloo's headers out; libtorch.sh puts the distribution's there.
        .include(libtorch.join("include-gloo"))
        .files(SOURCES.iter().map(|source| format!("src/bridge/{source}")));
    if std::env::var_os("CARGO_FEATURE_FAKE_NCCL").is_some() {
        build.file("src/bridge/fake_nccl.cpp");
    }
    if std::env::var_os("CARGO_FEATURE_NCCL").is_some() {
        build.define("USE_C10D_NCCL", None);
        let includes = std::env::var_os("LIBTORCH_CUDA_INCLUDE")
            .ok_or("feature nccl needs LIBTORCH_CUDA_INCLUDE, the directories of the CUDA and NCCL headers")?;
        build.includes(std::env::split_paths(&includes));
        println!("cargo::rustc-link-lib=torch_cuda");
        println!("cargo::rustc-link-lib=c10_cuda");
    }
    build
        .try_compile("roundhouse_c10d_bridge")
        .map_err(|error| error.to_string())?;

    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=torch_cpu");
    println!("cargo::rustc-link-lib=c10");
    // Only this package's own tests get the rpath; a program over this crate sets its own.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    Ok(())
}
