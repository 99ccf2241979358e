use super::*;

#[test]
fn trainings_with_different_generations_can_be_equal() {
    // One undisturbed generation, and three generations of which the second was superseded in part.
    let loss = |file: &mut File| {
        for line in &mut file.lines {
            line.loss = 1.0 / line.step as f64;
        }
        rehash(file);
    };
    let mut undisturbed = file(1, None, 12);
    loss(&mut undisturbed);
    let mut first = file(1, None, 4);
    loss(&mut first);
    let mut second = file(2, Some(first.lines[3].head()), 9);
    loss(&mut second);
    let mut third = file(5, Some(second.lines[2].head()), 11);
    loss(&mut third);
    let disturbed = vec![third, first, second];
    let compared = compare(vec![undisturbed.clone()], disturbed.clone()).unwrap();
    let Comparison::Equal { histories, digest } = compared else {
        panic!("{compared:?}");
    };
    assert_eq!(histories.each_ref().map(Vec::len), [12, 11]);
    // For a repeated step, the history contains the newer line.
    assert_eq!(histories[1][7].generation, 5);
    let [own, other] = histories;
    let again = compare(disturbed.clone(), vec![undisturbed.clone()]).unwrap();
    assert_eq!(
        again,
        Comparison::Equal {
            histories: [other, own],
            digest
        }
    );
    // Change one bit of one loss.
    let mut other = undisturbed;
    other.lines[6].loss = f64::from_bits(other.lines[6].loss.to_bits() + 1);
    rehash(&mut other);
    let compared = compare(vec![other.clone()], disturbed.clone()).unwrap();
    let Comparison::Differs { step, lines } = compared else {
        panic!("{compared:?}");
    };
    assert_eq!((step, lines[0]), (7, other.lines[6]));
    // An inconsistent ledger cannot be compared.
    other.lines[0].end = 9;
    assert!(compare(vec![other], disturbed).is_err());
    assert_eq!(compare(Vec::new(), Vec::new()), Err(Finding::Empty));
}
