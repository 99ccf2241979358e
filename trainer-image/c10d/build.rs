//! Compiles the bridge against the headers of the libtorch that `LIBTORCH` names. It compiles all
//! sources as one, because reading these headers takes 5-20 s of CPU time, and all the rest 2 s.

use std::path::{Path, PathBuf};

const BRIDGE: &str = "src/bridge";
/// Sources of the feature `fake-nccl`, which is for tests. They are compiled separately, because
/// they reuse names of other sources.
const TEST_SOURCES: [&str; 2] = ["count_memory.cpp", "fake_nccl.cpp"];

fn main() -> Result<(), String> {
    for variable in ["LIBTORCH", "LIBTORCH_CUDA_INCLUDE"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed={BRIDGE}");
    println!("cargo::rerun-if-changed=build.rs");
    let libtorch = std::env::var_os("LIBTORCH").map(PathBuf::from).ok_or(
        "LIBTORCH is not set: run trainer-image/libtorch.sh and export LIBTORCH as the directory it prints",
    )?;
    let lib = libtorch.join("lib");

    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .warnings(false)
        // Debug information of libtorch's headers has hundreds of megabytes.
        .debug(false)
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        // The wheel lacks the headers of gloo; libtorch.sh copies those of the distribution there.
        .include(libtorch.join("include-gloo"));
    if std::env::var_os("CARGO_FEATURE_NCCL").is_some() {
        build.define("USE_C10D_NCCL", None);
        let includes = std::env::var_os("LIBTORCH_CUDA_INCLUDE")
            .ok_or("feature nccl needs LIBTORCH_CUDA_INCLUDE, the directories of the CUDA and NCCL headers")?;
        build.includes(std::env::split_paths(&includes));
        println!("cargo::rustc-link-lib=torch_cuda");
        println!("cargo::rustc-link-lib=c10_cuda");
    }
    if std::env::var_os("CARGO_FEATURE_FAKE_NCCL").is_some() {
        build.files(TEST_SOURCES.map(|source| Path::new(BRIDGE).join(source)));
    }
    build
        .include(BRIDGE)
        .file(together()?)
        .try_compile("roundhouse_c10d_bridge")
        .map_err(|error| error.to_string())?;

    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=torch_cpu");
    println!("cargo::rustc-link-lib=c10");
    // Only this package's own tests get the rpath. A program that uses this crate sets its own.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    Ok(())
}

/// Writes a source that includes all other sources.
fn together() -> Result<PathBuf, String> {
    let out = std::env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .ok_or("no OUT_DIR")?;
    let includes = sources()?.into_iter().map(|source| {
        let name = source.file_name().unwrap_or_default().to_owned();
        format!("#include \"{}\"\n", name.display())
    });
    let together = out.join("bridge.cpp");
    std::fs::write(&together, includes.collect::<String>())
        .map_err(|error| format!("{}: {error}", together.display()))?;
    Ok(together)
}

/// The sources of the bridge, in a fixed order.
fn sources() -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(BRIDGE).map_err(|error| format!("{BRIDGE}: {error}"))?;
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == "cpp"))
        .filter(|path| !TEST_SOURCES.iter().any(|source| path.ends_with(source)))
        .collect();
    sources.sort();
    Ok(sources)
}
