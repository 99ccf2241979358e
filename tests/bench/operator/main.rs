//! `make bench-operator`: what the operator costs with many jobs and with large ones. A real API server over etcd, the real
//! scheduler, and KWOK in the place of kubelets; the operator as it is shipped.
#![allow(clippy::print_stdout)]

use std::path::Path;

use clap::Parser;

mod bare;
mod broken;
mod cluster;
mod generated;
mod load;
mod operator;
mod peers;
mod process;
mod run;
mod seen;
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
    /// Only these sizes, jobs × workers each: 1000x10,10x1000.
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// Other projects are measured up to this number of pods.
    #[arg(long, default_value_t = 400)]
    peers: u32,
    /// Numbers of jobs that train.
    #[arg(long, value_delimiter = ',', default_value = "125,250,500,1000")]
    training: Vec<u32>,
    /// Jobs that cannot get on, beside one that can.
    #[arg(long, default_value_t = 200)]
    broken: u32,
    /// Pods that an API server makes up.
    #[arg(long, default_value_t = 50_000)]
    generated: u32,
    /// Tables to print: sizes, peers (needs sizes), training, broken, generated.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sizes,peers,training,broken,generated"
    )]
    tables: Vec<String>,
    /// Cargo gives it to programs of `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let is_wanted = |table: &str| arguments.tables.iter().any(|it| it == table);
    if is_wanted("sizes") {
        let peers = if is_wanted("peers") {
            arguments.peers
        } else {
            0
        };
        let shapes = if arguments.shapes.is_empty() {
            shapes(arguments.pods)
        } else {
            arguments.shapes
        };
        sizes(&arguments.operator, shapes, peers).await?;
    }
    if is_wanted("training") {
        println!("{}", training::Figures::head());
        for jobs in arguments.training {
            println!("{}", training::run(&arguments.operator, jobs).await?.row());
        }
        println!();
    }
    if is_wanted("broken") {
        println!("{}", broken::Figures::head());
        for figures in broken::run(&arguments.operator, arguments.broken).await? {
            println!("{}", figures.row());
        }
        println!("\n{}\n", broken::Figures::notes());
    }
    if is_wanted("generated") {
        println!("{}", generated::Figures::head());
        for workers in [10, 100, 1_000] {
            let jobs = arguments.generated / workers;
            let shape = Shape { jobs, workers };
            println!(
                "{}",
                generated::run(&arguments.operator, shape).await?.row()
            );
        }
        println!("\n{}", generated::Figures::notes());
    }
    Ok(())
}

async fn sizes(operator: &Path, shapes: Vec<Shape>, peers: u32) -> anyhow::Result<()> {
    let mut table = Vec::new();
    println!("{}", Figures::head());
    for shape in shapes {
        let figures = run::run(operator, shape).await?;
        println!("{}", figures.row());
        table.push(figures);
    }
    println!("\n{}\n", Figures::notes());
    if peers == 0 {
        return Ok(());
    }
    println!("{}", peers::Figures::head());
    for figures in table {
        let shape = figures.shape;
        if shape.pods() > peers {
            continue;
        }
        println!("{}", figures.beside().row());
        for who in [Who::JobSet, Who::Trainer] {
            println!("{}", peers::run(who, shape).await?.row());
        }
    }
    println!("\n{}\n", peers::Figures::notes());
    Ok(())
}

/// Many jobs of ten workers, then ten jobs of all of them, then single ones.
fn shapes(max_pods: u32) -> Vec<Shape> {
    let sizes = doubled(100, max_pods);
    let many = sizes.iter().map(|pods| Shape {
        jobs: pods / 10,
        workers: 10,
    });
    let ten = sizes.iter().skip(1).map(|pods| Shape {
        jobs: 10,
        workers: pods / 10,
    });
    let large = sizes.iter().map(|pods| Shape {
        jobs: 1,
        workers: *pods,
    });
    many.chain(ten).chain(large).collect()
}

fn doubled(first: u32, last: u32) -> Vec<u32> {
    let twice = |number: &u32| number.checked_mul(2);
    let sizes = std::iter::successors(Some(first), twice);
    sizes.take_while(|number| *number <= last).collect()
}
