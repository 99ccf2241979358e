use super::*;

/// A state in memory with three views of 12, 1 and 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

pub(crate) const NUM_BYTES: u64 = 29;

impl state_broadcast::HostState for Bytes {}

impl Bytes {
    pub(crate) fn filled(with: u8) -> Self {
        Self(vec![with; usize::try_from(NUM_BYTES).unwrap()])
    }

    fn range(range: &Range<u64>) -> Range<usize> {
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    }
}

impl State for Bytes {
    fn table(&self) -> Result<Table, Failure> {
        Ok(table())
    }

    fn copy_out(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        into.copy_from_slice(&self.0[Self::range(&range)]);
        Ok(())
    }

    fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let range = Self::range(&(offset..offset + bytes.len() as u64));
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }
}

pub(crate) fn table() -> Table {
    let record = |name: &str, dtype, shape: Vec<usize>, bytes| Record {
        name: name.to_owned(),
        dtype,
        shape,
        bytes,
    };
    Table::from(vec![
        record("a", Dtype::F32, vec![3, 1], 12),
        record("b", Dtype::U8, vec![1], 1),
        record("c", Dtype::F64, vec![2], 16),
    ])
}

#[test]
fn a_view_begins_where_the_one_before_it_ends() {
    let offsets: Vec<u64> = table().views().iter().map(|view| view.offset).collect();
    assert_eq!((offsets, table().num_bytes()), (vec![0, 12, 13], NUM_BYTES));
}

#[test]
fn pieces_cover_a_range_without_gap_or_overlap() {
    let table = table();
    for start in 0..=NUM_BYTES {
        for end in start..=NUM_BYTES {
            let mut at = start;
            for piece in table.pieces(&(start..end)) {
                let view = &table.views()[piece.tensor];
                assert_eq!(view.offset + piece.bytes.start, at, "{start}..{end}");
                assert!(!piece.bytes.is_empty() && piece.bytes.end <= view.bytes);
                at = view.offset + piece.bytes.end;
            }
            assert_eq!(at, end, "{start}..{end}");
        }
    }
}

#[test]
fn a_table_is_written_as_a_list_of_records_without_offsets() {
    let text = serde_json::to_string(&table()).unwrap();
    assert!(
        text.starts_with(r#"[{"name":"a","dtype":"F32","shape":[3,1],"bytes":12},"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table());
}

#[test]
fn tensors_that_differ_are_named() {
    let table = table();
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
