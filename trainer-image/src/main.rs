//! `roundhouse-train`: the built-in trainer. It builds the model, the data and the optimizer of a
//! configuration; the library does the rest.

mod build;

fn main() {
    roundhouse_trainer::main(build::build)
}
