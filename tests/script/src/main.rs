//! Counts in lock step with its peers, and otherwise behaves like a training script: it connects to
//! its peers at the address in torchrun's variables, saves its state every few steps, exits with 1
//! when it loses a peer, and resumes from its checkpoint.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use roundhouse_contract::{ScriptEnvironment, ScriptProgress};

mod checkpoint;
mod process_group;

use checkpoint::{Checkpoint, replace};
use process_group::ProcessGroup;

/// Counts to a number, one per step, together with the other ranks.
#[derive(Debug, Parser)]
struct Options {
    /// The number to count to.
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// Steps between two checkpoints of rank 0.
    #[arg(long, default_value_t = 10)]
    every: u64,
    /// The duration of a step, in milliseconds.
    #[arg(long, default_value_t = 50)]
    step_millis: u64,
    /// The directory of the checkpoint and the ledger.
    #[arg(long, default_value = "/tmp")]
    directory: PathBuf,
    /// RANK:STEP:CODE: in the first generation, this rank exits with the code after the step.
    #[arg(long)]
    fault: Option<String>,
    /// Report no progress to the agent.
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
    let mut group = ProcessGroup::connect(environment)?;
    let mut state = Checkpoint::default();
    if rank == 0 {
        state = Checkpoint::load(&options.directory)?;
    }
    // The other ranks add 0, so the sums are the state that rank 0 has loaded.
    state.step = group.sum(state.step)?;
    state.count = group.sum(state.count)?;
    let from = state.step;
    println!("generation {generation}: rank {rank} of {world_size} continues after step {from}");
    while state.step < options.steps {
        std::thread::sleep(Duration::from_millis(options.step_millis));
        // Exactly one rank adds 1, so the count is the number of steps for any number of ranks.
        let is_mine = state.step % u64::from(world_size) == u64::from(rank);
        state.count += group.sum(u64::from(is_mine))?;
        state.step += 1;
        if !options.silent {
            report(options, environment, state.step)?;
        }
        if rank == 0 {
            checkpoint::append_to_ledger(&options.directory, generation, state.step)?;
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

fn report(options: &Options, environment: &ScriptEnvironment, step: u64) -> std::io::Result<()> {
    let progress = ScriptProgress {
        step,
        total_steps: options.steps,
        ..ScriptProgress::default()
    };
    let text = serde_json::to_string(&progress)?;
    replace(&environment.progress_file, &text)
}

/// The exit code of the fault, if it is due at this rank and step.
fn fault(options: &Options, environment: &ScriptEnvironment, step: u64) -> Option<u8> {
    let mut parts = options.fault.as_deref()?.split(':');
    let rank: u32 = parts.next()?.parse().ok()?;
    let at: u64 = parts.next()?.parse().ok()?;
    let code = parts.next()?.parse().ok()?;
    let is_due = environment.generation == 1 && environment.rank == rank && step == at;
    is_due.then_some(code)
}
