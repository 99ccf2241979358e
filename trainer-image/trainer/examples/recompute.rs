//! Measures activation checkpointing: peak memory and CPU time of a step of a `gpt2`, with and
//! without it. It measures CPU time because that hardly depends on the load of the machine.
//!
//! `OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1000000 cargo run -p roundhouse-trainer --example
//! recompute`

use std::error::Error;
use std::process::Command;

use roundhouse_contract::trainer::ActivationCheckpointing;
use roundhouse_contract::trainer::model::{Model, ModelName};
use roundhouse_trainer::models::{Samples, TokenShape, build};
use roundhouse_trainer::{Batch, Mode};
use tch::{Kind, Tensor, kind::INT64_CPU};

const LAYERS: u32 = 8;
const WIDTH: u32 = 256;
const LENGTH: u32 = 256;
const VOCABULARY: u32 = 1024;
const NUM_SAMPLES: u32 = 16;
const NUM_STEPS: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    // Measure each case in its own process, because the peak is a property of a process.
    match std::env::args().nth(1).as_deref() {
        Some("None") => measure(ActivationCheckpointing::None),
        Some("Blocks") => measure(ActivationCheckpointing::Blocks),
        _ => {
            println!(
                "gpt2: {LAYERS} layers of width {WIDTH}, {NUM_SAMPLES} sequences of {LENGTH} tokens, vocabulary {VOCABULARY}"
            );
            for switch in ["None", "Blocks", "None", "Blocks"] {
                Command::new(std::env::current_exe()?)
                    .arg(switch)
                    .status()?;
            }
            Ok(())
        }
    }
}

fn measure(switch: ActivationCheckpointing) -> Result<(), Box<dyn Error>> {
    let mut config = Model::new(ModelName::Gpt2);
    (config.layers, config.width, config.heads) = (Some(LAYERS), Some(WIDTH), Some(8));
    (config.context, config.vocabulary) = (Some(LENGTH), Some(VOCABULARY));
    let (length, vocabulary) = (i64::from(LENGTH), i64::from(VOCABULARY));
    let samples = Samples::Tokens(TokenShape { length, vocabulary });
    let mut task = build(&config, switch, samples, 1)?;
    let shape = [i64::from(NUM_SAMPLES), length];
    let tokens = Tensor::f_randint(vocabulary, shape, INT64_CPU)?;
    let batch = Batch {
        inputs: tokens.copy(),
        targets: tokens,
        num_samples: NUM_SAMPLES.into(),
    };
    let before = peak_mib()?;
    let started = cpu_seconds()?;
    let mut loss = 0.0;
    for step in 1..=NUM_STEPS {
        roundhouse_c10d::zero_grad(task.parameters_mut().tensors_mut())?;
        let mode = Mode::Train {
            seed: 1,
            step,
            slice: 0,
        };
        let sum = task.loss(&batch, mode)?.loss;
        roundhouse_c10d::backward(&sum)?;
        loss = sum.f_to_kind(Kind::Double)?.f_double_value(&[])?;
    }
    println!(
        "{switch:?}: peak {} MiB ({} MiB before the first step), {:.2} s of CPU time for a step, loss {loss}",
        peak_mib()?,
        before,
        (cpu_seconds()? - started) / NUM_STEPS as f64
    );
    Ok(())
}

/// Peak resident memory of this process, in MiB.
fn peak_mib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.ok_or("no VmHWM in /proc/self/status")?.parse::<u64>()? / 1024)
}

/// CPU time of all threads of this process, in seconds.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15 are user and system time in hundredths of a second. Field 2 is the name in
    // parentheses, which may contain spaces.
    let (_, fields) = stat.rsplit_once(')').ok_or("no name in /proc/self/stat")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next().ok_or("too few fields in /proc/self/stat");
    let (user, system): (f64, f64) = (next()?.parse()?, next()?.parse()?);
    Ok((user + system) / 100.0)
}
