use std::path::Path;

use tch::TchError;

use super::*;

#[test]
fn memory_and_device_errors_are_neither_defects_nor_lost_peers() {
    let memory = "CUDA out of memory. Tried to allocate 20.00 MiB";
    let device = "CUDA error: uncorrectable ECC error encountered";
    for (words, code) in [
        (memory, ExitCode::Internal),
        (device, ExitCode::HardwareFault),
        ("shapes do not fit", ExitCode::Internal),
    ] {
        let failure = Failure::from(TchError::Torch(words.to_owned()));
        assert_eq!(failure.exit_code(), code, "{failure}");
        assert!(failure.to_string().contains(words), "{failure}");
    }
    let failure = Failure::from(TchError::Torch(memory.to_owned())).on_rank(3);
    let text = failure.to_string();
    assert!(
        text.contains("rank 3") && text.contains("trainer.microBatchSize"),
        "{text}"
    );
    assert!(failure.is_own() && !failure.is_peer_lost());
}

#[test]
fn local_errors_in_a_collective_or_copy_are_not_lost_peers() {
    let collective = |words: &str| {
        lost(roundhouse_c10d::Error {
            kind: roundhouse_c10d::ErrorKind::of_message(words),
            message: words.to_owned(),
        })
    };
    let copy = |words: &str| refused(TchError::Torch(words.to_owned()));
    let of = [&collective as &dyn Fn(&str) -> failure::Failure, &copy];
    for failure in of.map(|of| of("CUDA error: uncorrectable ECC error encountered")) {
        let failure = Failure::from(failure);
        assert_eq!(failure.exit_code(), ExitCode::HardwareFault, "{failure}");
        assert!(failure.is_own() && failure.to_string().contains("ECC"));
    }
    for failure in of.map(|of| of("CUDA out of memory")) {
        let text = Failure::from(failure).on_rank(3).to_string();
        assert!(text.contains("rank 3: out of memory"), "{text}");
        assert!(text.contains("trainer.microBatchSize"), "{text}");
    }
    assert!(Failure::from(collective("connection reset by peer")).is_peer_lost());
}

#[test]
fn invalid_data_is_named_and_permanent() {
    let failure = Failure::data(Path::new("/data/x"), "is missing");
    assert_eq!(failure.to_string(), "/data/x: is missing");
    assert!(failure.exit_code().is_permanent());
}

#[test]
fn divergence_names_its_ranks() {
    let words = |ranks: &[u32]| {
        let failure = Failure::Diverged {
            step: 3,
            loss: f64::NAN,
            gradient_norm: 2.0,
            skipped_before: 0,
            ranks: ranks.to_vec(),
        };
        failure.to_string()
    };
    assert!(
        words(&[]).contains("training diverges; lower"),
        "{}",
        words(&[])
    );
    assert!(words(&[4]).contains("diverges on rank 4; lower"));
    assert!(words(&[0, 2]).contains("diverges on ranks 0, 2; lower"));
}
