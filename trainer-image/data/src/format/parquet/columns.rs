//! Columns of a row group as vectors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;
use parquet::schema::types::SchemaDescriptor;

use super::pages::{Bounds, Pages, ROWS, TOKENS, TooLarge};

/// Memory of the values of one read, estimated from the size of earlier values.
const MAX_BATCH_BYTES: usize = 64 << 20;

/// Returns the number of the column with a name, if it has one of some types.
pub(super) fn find(schema: &SchemaDescriptor, name: &str, types: &[Type]) -> Result<usize, String> {
    let names = || schema.columns().iter().map(|column| column.path().string());
    let Some(at) = names().position(|other| other == name) else {
        let names: Vec<_> = names().collect();
        return Err(format!("has no column {name}; it has {}", names.join(", ")));
    };
    let found = schema.column(at).physical_type();
    if !types.contains(&found) {
        return Err(format!(
            "column {name} has type {found}, which cannot be used"
        ));
    }
    Ok(at)
}

/// Catches a panic of the library. It panics if the contents of a file contradict each other, which
/// is an error of the file.
pub(super) fn caught<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(ParquetError::General(
            "its description of the columns contradicts itself".to_owned(),
        ))
    })
}

fn reader(
    rows: &dyn RowGroupReader,
    column: usize,
    bounds: Bounds,
) -> Result<ColumnReader, ParquetError> {
    let pages = Pages::within(bounds, rows.get_column_page_reader(column)?);
    let description = rows.metadata().column(column).column_descr_ptr();
    Ok(get_column_reader(description, Box::new(pages)))
}

/// Values of a column, and levels that mark the rows with a value.
struct Column<T> {
    values: Vec<T>,
    definitions: Vec<i16>,
    max_definition: i16,
}

/// Reads a column. `size` returns the bytes of a value outside of the vector. They may be far more
/// than those of its page, because a value can repeat the beginning of the value before it.
fn read<T: DataType>(
    rows: &dyn RowGroupReader,
    column: usize,
    mut reader: ColumnReaderImpl<T>,
    bounds: Bounds,
    size: fn(&T::T) -> usize,
) -> Result<Column<T::T>, ParquetError> {
    let description = rows.metadata().column(column).column_descr_ptr();
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut num_bytes, mut largest, mut seen) = (0, 0, 0);
    // Read the first value alone, because its size is unknown.
    let mut batch = 1;
    loop {
        let (num_rows, num_values, num_levels) = reader.read_records(
            batch,
            Some(&mut definitions),
            Some(&mut repetitions),
            &mut values,
        )?;
        if num_rows == 0 && num_values == 0 && num_levels == 0 {
            break;
        }
        for value in values.iter().skip(seen) {
            largest = largest.max(size(value));
            num_bytes += size(value) as u64;
        }
        seen = values.len();
        if num_bytes > bounds.bytes {
            return Err(TooLarge::bytes(bounds.bytes));
        }
        batch = (2 * batch).min(MAX_BATCH_BYTES / largest.max(1)).max(1);
    }
    Ok(Column {
        values,
        definitions,
        max_definition: description.max_def_level(),
    })
}

/// Returns one value per row; `None` for a null.
fn per_row<T>(column: Column<T>) -> Vec<Option<T>> {
    let Column {
        values,
        definitions,
        max_definition,
        ..
    } = column;
    if max_definition == 0 {
        return values.into_iter().map(Some).collect();
    }
    let mut values = values.into_iter();
    let defined = |level| {
        if level == max_definition {
            values.next()
        } else {
            None
        }
    };
    definitions.into_iter().map(defined).collect()
}

/// Reads a column of bytes.
pub(super) fn bytes_of(
    rows: &dyn RowGroupReader,
    column: usize,
) -> Result<Vec<Option<ByteArray>>, ParquetError> {
    bytes_within(ROWS, rows, column)
}

/// The same with other limits.
pub(super) fn bytes_within(
    bounds: Bounds,
    rows: &dyn RowGroupReader,
    column: usize,
) -> Result<Vec<Option<ByteArray>>, ParquetError> {
    caught(|| match reader(rows, column, bounds)? {
        ColumnReader::ByteArrayColumnReader(reader) => {
            Ok(per_row(read(rows, column, reader, bounds, ByteArray::len)?))
        }
        _ => Err(ParquetError::General(
            "a column of bytes was expected".to_owned(),
        )),
    })
}

/// Reads a column of integers.
pub(super) fn numbers_of(
    rows: &dyn RowGroupReader,
    column: usize,
) -> Result<Vec<Option<i64>>, ParquetError> {
    caught(|| match reader(rows, column, ROWS)? {
        ColumnReader::Int32ColumnReader(reader) => {
            let column = per_row(read(rows, column, reader, ROWS, |_| 0)?);
            Ok(column
                .into_iter()
                .map(|value| value.map(i64::from))
                .collect())
        }
        ColumnReader::Int64ColumnReader(reader) => {
            Ok(per_row(read(rows, column, reader, ROWS, |_| 0)?))
        }
        _ => Err(ParquetError::General(
            "a column of whole numbers was expected".to_owned(),
        )),
    })
}

/// Reads all numbers of a column of lists, one list after the other. Nulls are left out.
pub(super) fn listed(rows: &dyn RowGroupReader, column: usize) -> Result<Vec<i64>, ParquetError> {
    caught(|| match reader(rows, column, TOKENS)? {
        ColumnReader::Int32ColumnReader(reader) => {
            let values = read(rows, column, reader, TOKENS, |_| 0)?.values;
            Ok(values.into_iter().map(i64::from).collect())
        }
        ColumnReader::Int64ColumnReader(reader) => {
            Ok(read(rows, column, reader, TOKENS, |_| 0)?.values)
        }
        _ => Err(ParquetError::General(
            "a column of token lists was expected".to_owned(),
        )),
    })
}
