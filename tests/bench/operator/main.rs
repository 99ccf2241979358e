//! `make bench-operator`: measures the cost of the operator with many jobs and with large jobs. It
//! runs a real API server with etcd, the real scheduler, KWOK instead of kubelets, and the release
//! build of the operator.
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

use peers::Project;
use run::{Figures, Shape};

#[derive(Debug, Parser)]
struct Arguments {
    /// The path of the operator's program.
    #[arg(long)]
    operator: std::path::PathBuf,
    /// The largest number of pods. Each size has twice as many pods as the one before.
    #[arg(long, default_value_t = 1_600)]
    pods: u32,
    /// Measure only these sizes, as jobs × workers: 1000x10,10x1000.
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// The largest number of pods for the other projects.
    #[arg(long, default_value_t = 400)]
    peers: u32,
    /// The numbers of training jobs.
    #[arg(long, value_delimiter = ',', default_value = "125,250,500,1000")]
    training: Vec<u32>,
    /// The number of jobs that cannot start, beside a healthy job.
    #[arg(long, default_value_t = 200)]
    broken: u32,
    /// The number of pods that the simulated API server generates.
    #[arg(long, default_value_t = 50_000)]
    generated: u32,
    /// The tables to print: sizes, peers (needs sizes), training, broken, generated.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sizes,peers,training,broken,generated"
    )]
    tables: Vec<String>,
    /// `cargo bench` passes this flag to each program.
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
        println!("{}", figures.for_comparison().row());
        for project in [Project::JobSet, Project::Trainer] {
            println!("{}", peers::run(project, shape).await?.row());
        }
    }
    println!("\n{}\n", peers::Figures::notes());
    Ok(())
}

/// For each number of pods: jobs of ten workers, then ten jobs, then one job.
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
