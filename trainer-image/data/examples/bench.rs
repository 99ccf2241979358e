//! Measures images per second of an image folder: decode, random resized crop to 224, flip,
//! normalize, batches of 64.
//!
//! `bench DIRECTORY [THREADS]` prints a row of the table that `tests/bench/data/peer.py` prints
//! with torchvision. `bench DIRECTORY --dump FILE` writes the evaluation transform's pixels of all
//! images, which the script compares with torchvision's.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use roundhouse_contract::trainer::data::{Augment, Data, DataFormat, ImageOptions};
use roundhouse_data::batch::HostBatch;
use roundhouse_data::open::{Pixels, open};
use roundhouse_data::prefetch::{OnCorrupt, Options, Prefetcher, Request};

const BATCH: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [directory, "--dump", file] => dump(Path::new(directory), Path::new(file)),
        [directory] => measure(Path::new(directory), 1),
        [directory, threads] => measure(Path::new(directory), threads.parse()?),
        _ => Err("usage: bench DIRECTORY [THREADS | --dump FILE]".into()),
    }
}

fn data() -> Data {
    let mut data = Data::new(DataFormat::ImageFolder);
    data.train = Some(".".to_owned());
    data.validation = Some(".".to_owned());
    data.image = Some(ImageOptions {
        augment: vec![Augment::ResizedCrop, Augment::Flip],
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
        ..ImageOptions::default()
    });
    data
}

fn measure(directory: &Path, num_threads: usize) -> Result<(), Box<dyn Error>> {
    for (name, pixels) in [("floats", Pixels::Normalized), ("bytes", Pixels::Bytes)] {
        let splits = open(&data(), directory, pixels, 1, None)?;
        let options = Options {
            num_threads,
            num_ahead: 2,
            on_corrupt: OnCorrupt::Fail,
        };
        let mut prefetcher = Prefetcher::new(splits.train.clone(), options)?;
        let num_samples = splits.train.num_samples() / BATCH * BATCH;
        let starts = (0..num_samples).step_by(usize::try_from(BATCH)?);
        let plan: Vec<Request> = (0..2)
            .map(|epoch| splits.order(1, epoch))
            .flat_map(|order| {
                starts
                    .clone()
                    .map(move |start| Request::of(start..start + BATCH, &order))
            })
            .collect();
        // The first epoch warms the page cache.
        let (warm, timed) = plan.split_at(plan.len() / 2);
        fetch(&mut prefetcher, warm)?;
        let started = Instant::now();
        fetch(&mut prefetcher, timed)?;
        let per_second = num_samples as f64 / started.elapsed().as_secs_f64();
        let per_thread = per_second / num_threads as f64;
        println!("| roundhouse-data, {name} | {num_threads} | {per_second:.0} | {per_thread:.0} |");
    }
    Ok(())
}

fn fetch(prefetcher: &mut Prefetcher, plan: &[Request]) -> Result<(), Box<dyn Error>> {
    let coming: Vec<Request> = plan.to_vec();
    prefetcher.expect(coming.into_iter());
    for request in plan {
        let batch = prefetcher.fetch(request)?;
        prefetcher.recycle(batch);
    }
    Ok(())
}

fn dump(directory: &Path, file: &Path) -> Result<(), Box<dyn Error>> {
    let splits = open(&data(), directory, Pixels::Bytes, 1, None)?;
    let validation = splits.validation.ok_or("there is no validation split")?;
    let mut file = std::fs::File::create(file)?;
    for sample in 0..validation.num_samples() {
        let batch = HostBatch::read(validation.as_ref(), &[sample], 0)?;
        file.write_all(&batch.values)?;
    }
    Ok(())
}
