//! `seeds DIR` writes the seeds of each target to `DIR/TARGET`, and prints the names of the
//! targets.

use std::path::PathBuf;

use roundhouse_fuzz::TARGETS;

fn main() -> std::io::Result<()> {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: seeds DIR"));
    };
    for target in TARGETS {
        let directory = root.join(target.name);
        std::fs::create_dir_all(&directory)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
        println!("{}", target.name);
    }
    Ok(())
}
