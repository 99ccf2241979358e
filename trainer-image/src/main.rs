//! `roundhouse-train`: the built-in trainer. From a configuration to the model, the data and the optimizer that it
//! names; the library does the rest.

mod build;

fn main() {
    roundhouse_trainer::main(build::build)
}
