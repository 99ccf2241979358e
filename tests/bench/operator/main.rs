//! `make bench-operator`: what the operator costs with many jobs and with large ones. A real API server over etcd, the real
//! scheduler, and KWOK in the place of kubelets; the operator as it is shipped.
#![allow(missing_docs, clippy::print_stdout)]

use clap::Parser;

mod cluster;
mod load;
mod operator;
mod peers;
mod process;
mod run;
mod training;

use peers::Who;
use run::{Figures, Shape};

#[derive(Debug, Parser)]
struct Arguments {
    /// The operator's program.
    #[arg(long)]
    operator: std::path::PathBuf,
    /// Largest number of pods; each size is twice the one before.
    #[arg(long, default_value_t = 1_600)]
    pods: u32,
    /// Other projects are measured up to this number of pods.
    #[arg(long, default_value_t = 400)]
    peers: u32,
    /// Largest number of jobs that train.
    #[arg(long, default_value_t = 1_000)]
    training: u32,
    /// Cargo gives it to programs of `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut table = Vec::new();
    println!("{}", Figures::head());
    for shape in shapes(arguments.pods) {
        let figures = run::run(&arguments.operator, shape).await?;
        println!("{}", figures.row());
        table.push(figures);
    }
    println!("\n{}\n", Figures::notes());
    println!("{}", peers::Figures::head());
    for figures in table {
        let shape = figures.shape;
        if shape.pods() > arguments.peers {
            continue;
        }
        println!("{}", figures.beside().row());
        for who in [Who::JobSet, Who::Trainer] {
            println!("{}", peers::run(who, shape).await?.row());
        }
    }
    println!("\n{}\n", peers::Figures::notes());
    println!("{}", training::Figures::head());
    for jobs in doubled(125, arguments.training) {
        println!("{}", training::run(&arguments.operator, jobs).await?.row());
    }
    Ok(())
}

/// Many jobs of ten workers, then single jobs of all of them.
fn shapes(max_pods: u32) -> Vec<Shape> {
    let sizes = doubled(100, max_pods);
    let many = sizes.iter().map(|pods| Shape {
        jobs: pods / 10,
        workers: 10,
    });
    let large = sizes.iter().map(|pods| Shape {
        jobs: 1,
        workers: *pods,
    });
    many.chain(large).collect()
}

fn doubled(first: u32, last: u32) -> Vec<u32> {
    let twice = |number: &u32| number.checked_mul(2);
    let sizes = std::iter::successors(Some(first), twice);
    sizes.take_while(|number| *number <= last).collect()
}
