//! Prints the reference page that lists all metrics. `make generate` writes it to
//! docs/reference/metrics.md.

fn main() -> anyhow::Result<()> {
    print!("{}", roundhouse_tests::metrics_page::page()?);
    Ok(())
}
