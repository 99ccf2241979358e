use roundhouse_elastic::checkpoint::pieces;

use super::*;

fn tensors() -> NamedTensors {
    let mut named = NamedTensors {
        names: Vec::new(),
        tensors: Vec::new(),
    };
    named.add(
        "a".to_owned(),
        &Tensor::from_slice(&[1.5_f32, 2.5, 3.5]).reshape([3, 1]),
    );
    named.add("b".to_owned(), &Tensor::from_slice(&[7_u8]));
    named.add("c".to_owned(), &Tensor::from_slice(&[0.25_f64, -1.0]));
    named
}

#[test]
fn what_any_number_of_ranks_copies_out_is_copied_in() {
    let saved = tensors();
    let table = saved.table().unwrap();
    assert_eq!(table.sizes(), [12, 1, 16]);
    for world_size in [1, 2, 3, 7] {
        let mut bytes = Vec::new();
        for rank in 0..world_size {
            let mut part = Vec::new();
            let pieces = pieces(&table.sizes(), rank, world_size);
            saved.copy_out(&pieces, &mut part).unwrap();
            bytes.extend(part);
        }
        let mut loaded = tensors();
        for tensor in &mut loaded.tensors {
            let _ = tensor.zero_();
        }
        loaded.copy_in(&bytes).unwrap();
        for (saved, loaded) in saved.tensors.iter().zip(&loaded.tensors) {
            assert!(saved.equal(loaded), "{world_size} ranks");
        }
    }
}

#[test]
fn tensors_that_differ_are_named() {
    let table = tensors().table().unwrap();
    assert_eq!(table.difference(&table), None);
    let mut other = table.clone();
    other.0[1].shape = vec![2];
    let difference = table.difference(&other).unwrap();
    assert!(
        difference.contains("b [1] of U8") && difference.contains("b [2]"),
        "{difference}"
    );
    other.0.truncate(1);
    assert!(table.difference(&other).unwrap().contains("3 tensors"));
}
