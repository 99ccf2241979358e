use super::*;

/// The identity of [`data_schedule`] with a batch of ten samples for two workers.
fn scaled_identity() -> LedgerIdentity {
    LedgerIdentity {
        reference_replicas: Some(2),
        ..identity()
    }
}

/// Returns files whose generations have steps of these numbers of samples; an epoch has 25.
fn scaled_ledger(generations: &[(u64, &[u64])]) -> Vec<File> {
    let mut head = Head::start(&scaled_identity());
    let (mut epoch, mut start) = (0, 0);
    let mut files = Vec::new();
    for (generation, sizes) in generations {
        let previous = (head.step > 0).then_some(head);
        let mut lines = Vec::new();
        for size in *sizes {
            let batch = crate::data_schedule::Batch {
                step: head.step + 1,
                epoch,
                places: start..start + size,
                ends_epoch: start + size == 25,
            };
            lines.push(head.next(&batch, *generation, 0.5));
            head = lines[lines.len() - 1].head();
            (epoch, start) = if batch.ends_epoch {
                (epoch + 1, 0)
            } else {
                (epoch, start + size)
            };
        }
        let identity = scaled_identity();
        files.push(File {
            header: Header {
                generation: *generation,
                previous,
                identity,
                start: None,
            },
            lines,
        });
    }
    files
}

#[test]
fn batches_that_follow_the_workers_are_proven() {
    // One worker, then three, then two. The last step is cut off by the end of training.
    let files = scaled_ledger(&[
        (1, &[5, 5, 5]),
        (2, &[10]),
        (3, &[15, 10]),
        (4, &[10, 10, 3]),
    ]);
    let proof = audit(files, &[]).unwrap();
    assert_eq!((proof.num_steps, proof.num_samples), (9, 73));
    assert_eq!((proof.num_epochs, proof.cursor), (2, 23));
    // The only step of a generation: no other line shows whether its batch is full.
    assert!(audit(scaled_ledger(&[(1, &[3]), (2, &[5, 5])]), &[]).is_ok());
}

#[test]
fn batch_must_be_constant_and_possible_for_some_workers() {
    for (sizes, step) in [
        (&[5, 5, 10, 5][..], 3),
        (&[10, 5, 10], 2),
        (&[10, 11], 2),
        (&[6, 6, 6], 1),
    ] {
        let finding = audit(scaled_ledger(&[(1, sizes)]), &[]).unwrap_err();
        let found = match finding {
            Finding::SamplesLeftOut { step, .. } | Finding::SamplesRepeated { step, .. } => step,
            other => panic!("{sizes:?}: {other}"),
        };
        assert_eq!(found, step, "{sizes:?}");
    }
    // Without a reference number of workers no other batch is allowed.
    let mut files = scaled_ledger(&[(1, &[5, 5])]);
    files[0].header.identity = identity();
    rehash(&mut files[0]);
    assert!(audit(files, &[]).is_err());
}
