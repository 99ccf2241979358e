//! Compiles the bridge against the headers of the libtorch that `LIBTORCH` names.
//!
//! The headers of libtorch take 5-20 seconds of CPU time per source, so an object is kept under the hash of all
//! that went into it, beside the target directory's `build`: a change recompiles the sources that it touches, and
//! builds with other features share the rest.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

const BRIDGE: &str = "src/bridge";
/// Compiled with feature `fake-nccl` alone.
const OPTIONAL: [&str; 1] = ["fake_nccl.cpp"];

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
        // Debug information of libtorch's headers is hundreds of megabytes.
        .debug(false)
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        // The wheel leaves gloo's headers out; libtorch.sh puts the distribution's there.
        .include(libtorch.join("include-gloo"));
    if std::env::var_os("CARGO_FEATURE_NCCL").is_some() {
        build.define("USE_C10D_NCCL", None);
        let includes = std::env::var_os("LIBTORCH_CUDA_INCLUDE")
            .ok_or("feature nccl needs LIBTORCH_CUDA_INCLUDE, the directories of the CUDA and NCCL headers")?;
        build.includes(std::env::split_paths(&includes));
        println!("cargo::rustc-link-lib=torch_cuda");
        println!("cargo::rustc-link-lib=c10_cuda");
    }
    build.objects(objects(&build, &lib)?);
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

/// Compiles what has changed, as many sources at once as Cargo allows, and returns the objects of all.
fn objects(build: &cc::Build, lib: &Path) -> Result<Vec<PathBuf>, String> {
    let sources = sources()?;
    let inputs = inputs(build, lib)?;
    let kept = kept()?;
    let jobs = std::env::var("NUM_JOBS")
        .ok()
        .and_then(|jobs| jobs.parse().ok());
    let (next, (sender, results)) = (AtomicUsize::new(0), channel());
    std::thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1) {
            let (sender, sources, next, kept) = (sender.clone(), &sources, &next, &kept);
            scope.spawn(move || {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let _ = sender.send(object(build, source, inputs, kept));
                }
            });
        }
        drop(sender);
        results.iter().collect()
    })
}

fn object(build: &cc::Build, source: &Path, inputs: u64, kept: &Path) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    hash_with_headers(source, &mut hasher)?;
    let stem = source.file_stem().unwrap_or_default().display();
    let object = kept.join(format!("{stem}-{:016x}.o", hasher.finish()));
    if object.exists() {
        return Ok(object);
    }
    // Another build may write the same object: each writes its own file and renames it.
    let unfinished = object.with_extension(format!("{}.tmp", std::process::id()));
    let mut command = build
        .try_get_compiler()
        .map_err(|error| error.to_string())?
        .to_command();
    command.arg("-c").arg(source).arg("-o").arg(&unfinished);
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {words}", source.display()));
    }
    std::fs::rename(&unfinished, &object).map_err(|error| error.to_string())?;
    Ok(object)
}

fn sources() -> Result<Vec<PathBuf>, String> {
    let has_fake = std::env::var_os("CARGO_FEATURE_FAKE_NCCL").is_some();
    let mut sources = files("cpp")?;
    sources.retain(|source| has_fake || !OPTIONAL.iter().any(|name| source.ends_with(name)));
    // The longest ones first.
    sources.sort_by_key(|source| !source.ends_with("reducer.cpp"));
    Ok(sources)
}

/// Hashes a file of the bridge and those of its headers that it includes.
fn hash_with_headers(file: &Path, hasher: &mut DefaultHasher) -> Result<(), String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    (file, &text).hash(hasher);
    let own = |line: &str| {
        Some(Path::new(BRIDGE).join(line.strip_prefix("#include \"")?.strip_suffix('"')?))
    };
    let headers = text.lines().filter_map(own);
    headers
        .into_iter()
        .try_for_each(|header| hash_with_headers(&header, hasher))
}

/// Hash of what all sources share: the compiler and its arguments, and the libtorch.
fn inputs(build: &cc::Build, lib: &Path) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    let compiler = build
        .try_get_compiler()
        .map_err(|error| error.to_string())?;
    (compiler.path(), compiler.args()).hash(&mut hasher);
    let library = lib.join("libtorch_cpu.so");
    let metadata =
        std::fs::metadata(&library).map_err(|error| format!("{}: {error}", library.display()))?;
    metadata.len().hash(&mut hasher);
    Ok(hasher.finish())
}

/// Files of the bridge, in a fixed order.
fn files(extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(BRIDGE).map_err(|error| format!("{BRIDGE}: {error}"))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    Ok(files)
}

/// Where objects are kept: beside `build` in the profile's directory.
fn kept() -> Result<PathBuf, String> {
    let out = std::env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .ok_or("no OUT_DIR")?;
    let profile = out
        .ancestors()
        .nth(3)
        .ok_or("OUT_DIR is not below a profile")?;
    let kept = profile.join("roundhouse-c10d-objects");
    std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    Ok(kept)
}
