//! Counts in lock step with its peers, and behaves as training scripts do in all else: it meets them
//! where torchrun's variables say, saves its state every few steps, exits with 1 when a peer is lost,
//! and resumes from what it saved.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use roundhouse_contract::{ScriptEnvironment, ScriptProgress};

mod checkpoint;
mod world;

use checkpoint::{Checkpoint, replace};
use world::World;

/// Counts to a number, one step after the other.
#[derive(Debug, Parser)]
struct Options {
    /// Where to count to.
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// Rank 0 saves after so many steps.
    #[arg(long, default_value_t = 10)]
    every: u64,
    /// What a step takes, in milliseconds.
    #[arg(long, default_value_t = 50)]
    step_millis: u64,
    /// Where it is saved.
    #[arg(long, default_value = "/tmp")]
    directory: PathBuf,
    /// In the first generation this rank exits with a code after a step: RANK:STEP:CODE.
    #[arg(long)]
    fault: Option<String>,
    /// Whether to tell the agent how far it is.
    #[arg(long)]
    silent: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let environment = match ScriptEnvironment::read(|name| std::env::var(name).ok()) {
        Ok(environment) => environment,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match count(&options, &environment) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("rank {}: {error}", environment.rank);
            ExitCode::FAILURE
        }
    }
}

fn count(options: &Options, environment: &ScriptEnvironment) -> std::io::Result<u8> {
    let ScriptEnvironment {
        rank,
        world_size,
        generation,
        ..
    } = *environment;
    println!("pid {}", std::process::id());
    let mut world = World::meet(environment)?;
    let mut state = Checkpoint::default();
    if rank == 0 {
        state = Checkpoint::load(&options.directory)?;
    }
    // Rank 0 says where to continue.
    state.step = world.sum(state.step)?;
    state.count = world.sum(state.count)?;
    let from = state.step;
    println!("generation {generation}: rank {rank} of {world_size} continues after step {from}");
    while state.step < options.steps {
        std::thread::sleep(Duration::from_millis(options.step_millis));
        // One of the ranks adds one, so the count is the number of steps for any number of ranks.
        let is_mine = state.step % u64::from(world_size) == u64::from(rank);
        state.count += world.sum(u64::from(is_mine))?;
        state.step += 1;
        if !options.silent {
            tell(options, environment, state.step)?;
        }
        if rank == 0 {
            checkpoint::note(&options.directory, generation, state.step)?;
            if state.step.is_multiple_of(options.every) || state.step == options.steps {
                state.save(&options.directory)?;
            }
        }
        if let Some(code) = fault(options, environment, state.step) {
            eprintln!("fault at rank {rank}, step {}", state.step);
            return Ok(code);
        }
    }
    println!("counted to {} in {} steps", state.count, state.step);
    Ok(0)
}

fn tell(options: &Options, environment: &ScriptEnvironment, step: u64) -> std::io::Result<()> {
    let progress = ScriptProgress {
        step,
        total_steps: options.steps,
        ..ScriptProgress::default()
    };
    let text = serde_json::to_string(&progress)?;
    replace(&environment.progress_file, &text)
}

/// The code of a fault that is due now.
fn fault(options: &Options, environment: &ScriptEnvironment, step: u64) -> Option<u8> {
    let mut parts = options.fault.as_deref()?.split(':');
    let rank: u32 = parts.next()?.parse().ok()?;
    let at: u64 = parts.next()?.parse().ok()?;
    let code = parts.next()?.parse().ok()?;
    let is_due = environment.generation == 1 && environment.rank == rank && step == at;
    is_due.then_some(code)
}
